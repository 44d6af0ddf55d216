# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of nodes with networks of their own, `verl-otel stack --cluster` on its head, and trainings on it.

The head is this machine, with the address of the cable to the second node. Each other node is a network namespace, which reaches nothing else.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.parse
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import otlp_json
from tests.builders.environments import inherit
from tests.collector.nodes import Node
from tests.collector.tiers import fetch
from tests.end_to_end import bed_run, ray_cluster
from tests.ray.ray_job import find_port
from tests.verl_cpu import cpu_train

BIN = Path(sys.executable).parent
QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",
}


CPUS = 64
"""Of each node: actors of fully asynchronous trainings ask for 10 each."""


class RayNode:
    """A raylet. The variables of its environment are those of its workers.

    Args:
        folder: Where its log goes.
        host: The `Node` that it runs on; None for this machine.
        address: The address that other nodes reach.
        interface: The network interface with that address.
    """

    def __init__(self, folder, host, address, interface):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.host, self.address, self.interface = folder, host, address, interface
        self.process = None

    def start(self, *where):
        environ = inherit("VERL_", "OTEL_", "CPU_BED_", "RAY_") | QUIET
        environ |= {"GLOO_SOCKET_IFNAME": self.interface, "RAY_TMPDIR": str(self.folder)}
        command = [
            BIN / "ray",
            "start",
            *where,
            f"--node-ip-address={self.address}",
            f"--num-cpus={CPUS}",
            "--num-gpus=1",
            "--block",
        ]
        run = self.host.run if self.host is not None else lambda function, *arguments: function(*arguments)
        self.process = run(ray_cluster.start_node, command, environ, self.folder / "ray.log")

    def stop(self):
        if self.process is not None:
            bed_run.end(self.process)
            self.process = None


@contextlib.contextmanager
def start_cluster(folder, names=("node-b",), *, dashboard=False):
    """Start a head and a node for each name; yields them, and ``host:port`` of the head.

    ``dashboard``: start Ray's dashboard, to which jobs are submitted; its URL is yielded, too.
    """
    made = SimpleNamespace(dashboard=f"http://127.0.0.1:{find_port()}" if dashboard else "")
    with contextlib.ExitStack() as ending:
        # Short: Ray's sockets lie in it.
        hidden = Path(
            ending.enter_context(tempfile.TemporaryDirectory(prefix="vo-", dir="/tmp", ignore_cleanup_errors=True))
        )
        hosts = [Node(name, number) for number, name in enumerate(names)]
        for host in hosts:
            ending.callback(host.close)
        made.node = hosts[0]
        made.head = RayNode(hidden, None, made.node.outside, made.node.cable)
        made.others = [RayNode(hidden / host.cable, host, host.inside, "eth0") for host in hosts]
        made.second = made.others[0]
        made.address = f"{made.head.address}:{find_port()}"
        options = [f"--port={made.address.rpartition(':')[2]}", "--disable-usage-stats"]
        if dashboard:
            options += [
                f"--dashboard-port={made.dashboard.rpartition(':')[2]}",
                f"--dashboard-agent-listen-port={find_port()}",
            ]
        else:
            options.append("--include-dashboard=false")
        made.start_head = lambda: made.head.start("--head", *options)
        made.start_second = lambda: made.second.start(f"--address={made.address}")
        ending.callback(made.head.stop)
        made.start_head()
        for other in made.others:
            ending.callback(other.stop)
            other.start(f"--address={made.address}")
        yield made


@contextlib.contextmanager
def start_stack(folder, address, *options, ray=None):
    """Start ``verl-otel stack --cluster``; yields what it prints, with its process.

    ``ray``: the folder of the head, where Ray lists the targets of its own metrics. By default none, not that of another Ray of this machine.
    """
    words = [BIN / "verl-otel", "stack", "--cluster", "--address", address, "--free-ports", "--json"]
    words += ["--data", folder / "stack", "--run-dir", folder / "stack-runs", *options]
    errors = (folder / "stack.log").open("w+")
    environ = inherit("OTEL", "VERL_", "PYTEST", "RAY_") | QUIET | {"RAY_TMPDIR": str(ray or folder)}
    process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("{"), (folder / "stack.log").read_text()
        yield SimpleNamespace(**json.loads(line), process=process, log=folder / "stack.log")
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=180)
        errors.close()


def query(stack, promql):
    """Return the answer of Prometheus: labels and value of each series."""
    form = urllib.parse.urlencode({"query": promql})
    found = json.loads(fetch(f"{stack.prometheus}/api/v1/query?{form}"))["data"]["result"]
    return [(each["metric"], float(each["value"][1])) for each in found]


def choose_sizes(nodes):
    """Return settings of a batch that three ranks share evenly."""
    return ["data.train_batch_size=6", "actor_rollout_ref.actor.ppo_mini_batch_size=3"] if nodes == 3 else []


@contextlib.contextmanager
def start_training(out, address, *, steps=2, nodes=2, mode="sync", **variables):
    """Start a training with a rank and an engine on each of ``nodes``; its only variable of verl-otel is the switch."""
    environ = cpu_train.make_environment(out, **variables)
    overrides = [
        f"trainer.nnodes={nodes}", "actor_rollout_ref.rollout.agent.num_workers=2", "trainer.test_freq=-1",
        "trainer.total_epochs=100",  # an epoch has 16 steps
        *choose_sizes(nodes),
        *ray_cluster.make_overrides(address, environ),
    ]  # fmt: skip
    settings = {"VERL_OTEL_ENABLED": 1, "VERL_OTEL_RUN_DIR": out / "runs", **QUIET, **variables}
    with bed_run.start(out, steps=steps, mode=mode, overrides=overrides, **settings) as (training, process):
        yield training, process


@contextlib.contextmanager
def submit_training(out, cluster, *, steps=2, nodes=2, mode="sync", **variables):
    """Start a training by ``ray job submit``, as `start_training` does otherwise; the process is that of the command, which waits for the job."""
    environ = cpu_train.make_environment(out)
    needed = {name: value for name, value in environ.items() if name.startswith(ray_cluster.FORWARDED)}
    needed |= {"VERL_OTEL_ENABLED": "1", "VERL_OTEL_RUN_DIR": str(out / "runs"), **variables}
    ray_init = "ray_kwargs.ray_init"
    overrides = [
        f"trainer.nnodes={nodes}", "actor_rollout_ref.rollout.agent.num_workers=2", "trainer.test_freq=-1",
        *choose_sizes(nodes),
        f"{ray_init}.address=auto", f"{ray_init}.num_cpus=null", f"{ray_init}.num_gpus=null", f"~{ray_init}.include_dashboard",
    ]  # fmt: skip
    ray = [BIN / "ray", "job"]
    name = f"{out.name}-{uuid.uuid4().hex[:8]}"
    submit = ["submit", "--address", cluster.dashboard, "--submission-id", name, "--runtime-env-json"]
    words = cpu_train.make_command(out, steps=steps, mode=mode, overrides=overrides)
    command = [*map(str, [*ray, *submit, json.dumps({"env_vars": needed})]), "--", *words]
    with bed_run.start(out, command=command, **QUIET) as (training, process):
        try:
            yield training, process
        finally:
            if process.poll() is None:
                stop = [*ray, "stop", "--address", cluster.dashboard, name]
                subprocess.run(stop, env=inherit("RAY_") | QUIET, capture_output=True, timeout=60, check=False)


def read_instances(training):
    """Return the instances that have written metrics."""
    lines = [line for path in training.folder.glob("metrics-*.jsonl") for line in otlp_json.read_objects(path)]
    return {resource["service.instance.id"] for line in lines for resource, _, _ in otlp_json.each_metric(line)}


def await_totals(stack, training, wait_for, steps=None):
    """Wait until Prometheus has as many steps, trajectories, calls and rewards of a run as verl and the bed wrote down by themselves.

    ``steps``: of a fully asynchronous training, whose logger of verl counts parameter versions.
    """
    of = {kind: len(training.bed(kind)) for kind in ("trajectory", "server", "score")}
    expected = {
        "verl_training_steps_total": steps or len([step for step in training.scalars() if step > 0]),
        "verl_rollout_trajectory_duration_seconds_count": of["trajectory"],
        "gen_ai_client_inference_duration_seconds_count": of["server"],
        "verl_reward_duration_seconds_count": of["score"],
    }
    assert min(expected.values()) > 0, expected
    run = training.folder.name

    def read():
        found = {name: query(stack, f'sum(last_over_time({name}{{verl_run_id="{run}"}}[1h]))') for name in expected}
        return {name: value[0][1] for name, value in found.items() if value}

    def is_complete():
        return read() == expected

    try:
        wait_for(is_complete, 60, 1)
    except pytest.fail.Exception:
        assert read() == expected


def hold(step="*"):
    """Return the variable by which a trainer waits, when it logs a step, until `release`."""
    return {"CPU_BED_PLANT": f"log!until_released:600:{step}"}


def release(training):
    """Let a held trainer go on."""
    (training.out / "log" / "released").touch()


def await_tokens(stack, training, process, engines, wait_for):
    """Wait, while a trainer is held in its last step, until the engines' own counters add up to the tokens that the bed has counted."""
    wait_for(lambda: training.bed("plant") or process.poll() is not None, 400, 1)
    assert process.poll() is None, training.log[-4000:]
    promql = f'vllm:generation_tokens_total{{verl_run_id="{training.folder.name}"}}'

    def read():
        return [value for _, value in query(stack, promql)]

    def count():
        return sum(line["count"] for line in training.bed("tokens"))

    wait_for(lambda: len(read()) == engines and sum(read()) == count() > 0, 60, 1)
    assert min(read()) > 0
    assert query(stack, f"sum({promql})")[0][1] == count()
