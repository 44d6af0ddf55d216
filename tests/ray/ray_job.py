# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A script that starts a Ray head of its own and submits a job to it, or checks it.

Usage: ray_job.py [check]
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent


def find_port():
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def head(folder):
    """Run a head node in the foreground of a process of ours and yield its two addresses."""
    port, dashboard = find_port(), find_port()
    command = [
        BIN / "ray", "start", "--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=4",
        f"--temp-dir={folder}", "--disable-usage-stats", "--include-dashboard=true",
        f"--ray-client-server-port={find_port()}", f"--dashboard-agent-listen-port={find_port()}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def submit(dashboard):
    """Submit a job that sets our variables and a hook itself, wait for it, and return its status and logs."""
    from ray.job_submission import JobSubmissionClient

    client = retry(lambda: JobSubmissionClient(dashboard))
    runtime_env = {
        "env_vars": {
            "VERL_OTEL_ENABLED": "1", "MY_VALUE": "of the job", "PYTHONPATH": str(HERE),
            "VERL_OTEL_RUN_DIR": os.environ["VERL_OTEL_RUN_DIR"],
        },
        "worker_process_setup_hook": "ray_hook.users_hook",
    }  # fmt: skip
    entrypoint = f"{sys.executable} {HERE / 'ray_hook.py'} job"
    job = retry(lambda: client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env))
    deadline = time.monotonic() + 240
    while client.get_job_status(job).value not in ("SUCCEEDED", "FAILED", "STOPPED") and time.monotonic() < deadline:
        time.sleep(0.5)
    return {"status": client.get_job_status(job).value, "logs": client.get_job_logs(job)}


def check(address):
    """Return what ``verl-otel check --cluster`` says of the cluster."""
    environ = {**os.environ, "RAY_ADDRESS": address}
    done = retry(lambda: run_check(environ))
    return {"check": done.stdout, "code": done.returncode}


def run_check(environ):
    done = subprocess.run(
        [BIN / "verl-otel", "check", "--cluster"], env=environ, capture_output=True, text=True, check=False
    )
    if "no running Ray cluster" in done.stdout:
        raise ConnectionError(done.stdout)
    return done


def retry(function, seconds=240):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return function()
        except (ConnectionError, RuntimeError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def main():
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder, head(folder) as (address, dashboard):
        result = check(address) if sys.argv[1:] == ["check"] else submit(dashboard)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
