# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster that was started before: two raylets, none of which has anything of our environment."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

from tests.builders.environments import inherit
from tests.end_to_end import bed_run
from tests.ray.ray_job import find_port

FORWARDED = (
    "PYTHONPATH",
    "VERL_PLATFORM",
    "VERL_FILE_LOGGER_PATH",
    "VERL_USE_EXTERNAL_MODULES",
    "CPU_BED_",
    "HF_",
    "OMP_",
    "TOKEN",
)
"""What the bed, not verl-otel, needs in every worker."""
STARTED = "Ray runtime started"
OBSTACLES = Path(__file__).resolve().parent / "obstacles"
LACKS = "lacks_verl_otel"
"""Resource of a node on which verl-otel is not installed; the bed's `order_nodes` knows it."""


@contextlib.contextmanager
def start(folder, nodes=2, cpus=16, python=sys.executable, lacking=None):
    """Start the raylets and yield the address of the cluster; everything is ended afterwards.

    Args:
        folder: Where their logs go.
        nodes: Number of raylets.
        cpus: Logical CPUs of each.
        python: Interpreter of their environment.
        lacking: Number of the node whose workers lack verl-otel, where `OBSTACLES` is in the PYTHONPATH of the job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environ = inherit("VERL_", "OTEL_", "CPU_BED_", "RAY_")
    environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    port = find_port()
    head = ["--head", f"--port={port}", "--num-gpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    processes = []
    try:
        for number in range(nodes):
            where = head if number == 0 else [f"--address=127.0.0.1:{port}"]
            log = folder / f"node-{number}.log"
            resources = {
                **({"cpu": 1} if number == 0 else {}),  # verl before 0.9 asks for its device
                **({LACKS: 1} if number == lacking else {}),
            }
            command = [
                Path(python).with_name("ray"), "start", *where, f"--num-cpus={cpus}", "--block",
                f"--resources={json.dumps(resources)}",
            ]  # fmt: skip
            hidden = {"CPU_BED_HIDE": "verl_otel@worker"} if number == lacking else {}
            processes.append(start_node(command, environ | hidden, log))
        yield f"127.0.0.1:{port}"
    finally:
        for process in reversed(processes):
            bed_run.end(process)


def start_node(command, environ, log, tries=3):
    """Start a raylet and return its process; try again where the machine was too busy for Ray's 30 seconds, or where it hangs."""
    while True:
        tries -= 1
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            wait_until_started(process, log)
        except AssertionError:
            is_ended = process.poll() is not None
            bed_run.end(process)
            if not tries or (is_ended and bed_run.NO_NODE not in log.read_text("utf-8", "replace")):
                raise
        else:
            return process


def wait_until_started(process, log, seconds=180):
    deadline = time.monotonic() + seconds
    while STARTED not in log.read_text("utf-8", "replace"):
        assert process.poll() is None, log.read_text("utf-8", "replace")
        assert time.monotonic() < deadline, (
            f"Ray did not start within {seconds} s:\n{log.read_text('utf-8', 'replace')[-3000:]}"
        )
        time.sleep(0.2)


def make_overrides(address, environ):
    """Return verl's settings that join the cluster, with what the bed needs in its workers."""
    ray_init = "ray_kwargs.ray_init"
    forwarded = {name: value for name, value in environ.items() if name.startswith(FORWARDED)}
    return [
        f"{ray_init}.address={address}", f"{ray_init}.num_cpus=null", f"{ray_init}.num_gpus=null",
        f"~{ray_init}.include_dashboard",
        *(f"+{ray_init}.runtime_env.env_vars.{name}='{value}'" for name, value in forwarded.items()),
    ]  # fmt: skip
