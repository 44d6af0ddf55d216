# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster that somebody else has started: two raylets, none of which has anything of our environment."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ray"))

import bed_run
from ray_job import find_port

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


@contextlib.contextmanager
def start(folder, nodes=2, cpus=16):
    """Start the raylets and yield the address of the cluster; everything is ended afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "OTEL_", "CPU_BED_", "RAY_"))
    }
    environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    port = find_port()
    head = ["--head", f"--port={port}", "--num-gpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    processes = []
    try:
        for number in range(nodes):
            where = head if number == 0 else [f"--address=127.0.0.1:{port}"]
            log = folder / f"node-{number}.log"
            command = [Path(sys.executable).with_name("ray"), "start", *where, f"--num-cpus={cpus}", "--block"]
            with log.open("wb") as out:
                processes.append(
                    subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
                )
            wait_until_started(processes[-1], log)
        yield f"127.0.0.1:{port}"
    finally:
        for process in reversed(processes):
            bed_run.end(process)


def wait_until_started(process, log, seconds=60):
    deadline = time.monotonic() + seconds
    while STARTED not in log.read_text("utf-8", "replace"):
        assert process.poll() is None, log.read_text("utf-8", "replace")
        assert time.monotonic() < deadline, f"Ray did not start within {seconds} s"
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
