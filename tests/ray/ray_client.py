# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own that calls its actors by Ray Client, on a cluster that was started apart from it.

Usage: ray_client.py   (settings of the client by environment; variables of the cluster in CLUSTER, as JSON)

Starts the head with ports of the system's choice, and ends it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CPUS, MEMORY = 2, 100 << 20


def free_ports(count):
    """Ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_head(folder):
    """Start a head with a server of Ray Client; returns its process and the address for clients."""
    names = ("port", "ray-client-server-port", "node-manager-port", "object-manager-port", "runtime-env-agent-port")
    more = ("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "metrics-export-port")
    ports = dict(zip((*names, *more), free_ports(len(names) + len(more)), strict=True))
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--include-dashboard=false"]
    command += [f"--num-cpus={CPUS}", f"--object-store-memory={MEMORY}", f"--temp-dir={folder}"]
    command += ["--min-worker-port=0", "--max-worker-port=0", *(f"--{name}={port}" for name, port in ports.items())]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VERL_OTEL_")}
    environ |= json.loads(os.environ.get("CLUSTER", "{}"))
    head = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return head, f"ray://127.0.0.1:{ports['ray-client-server-port']}"


def wait_for(head, port):
    """Wait for the server: a client gives up after 30 s."""
    while head.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return


def train(address):
    """Three steps with two actors, one of which is looked up by its name, and a function."""
    import ray

    import verl_otel

    class Plain:
        def roll_out(self, uid, index):
            return index

    class Agent:
        def roll_out(self, uid, index):
            with verl_otel.trajectory(uid, index), verl_otel.tool("search"):
                return index

    verl_otel.init()
    ray.init(address)
    kind = Plain if "CLUSTER" in os.environ else Agent
    agents = [ray.remote(kind).options(name=f"agent-{index}").remote() for index in range(2)]
    agents[1] = ray.get_actor("agent-1")
    called = []
    for number in range(1, 4):
        with verl_otel.step(number), verl_otel.phase("gen"):
            first = agents[0].roll_out.remote(f"p{number}", 0)
            second = agents[1].roll_out.options(num_returns=1).remote(f"p{number}", index=1)
            called.append(ray.get([first, second, ray.remote(lambda: 2).remote()]))
    ray.shutdown()
    return called


def main():
    folder = tempfile.mkdtemp(prefix="ray")  # paths of sockets are short
    head, address = start_head(folder)
    try:
        wait_for(head, int(address.rpartition(":")[2]))
        print("RESULT " + json.dumps(train(address)), flush=True)
    finally:
        head.terminate()
        head.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
