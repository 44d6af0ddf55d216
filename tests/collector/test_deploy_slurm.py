# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The job for Slurm, run with the real Collector on this machine: what was sent last arrives, nothing is left, the training decides."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from tests.collector.tiers import COLLECTOR, read_spans

SLURM = COLLECTOR / "deploy" / "slurm"
SCRIPTS = [
    SLURM / "train.sbatch",
    SLURM / "collector.sh",
    COLLECTOR.parent / "examples" / "ray-cluster.sbatch",
    COLLECTOR / "build.sh",
    COLLECTOR / "generate.sh",
]
SRUN = """#!/bin/bash
# As srun: the step runs what follows the options. At SIGTERM its tasks are killed.
while [ "${1#--}" != "$1" ]; do shift; done
# On a node that does not share the folder FAR nothing is under its name.
if [ -n "${FAR:-}" ]; then
    export OTELCOL_KEPT=${OTELCOL_KEPT/$FAR/$FAR-elsewhere} OTELCOL_CREDENTIALS=${OTELCOL_CREDENTIALS/$FAR/$FAR-elsewhere}
    set -- "${@/$FAR/$FAR-elsewhere}"
fi
SLURM_STEP_ID=$$ setsid "$@" &
TASK=$!
echo "$TASK" >"$TMPDIR/../step.$$"
trap 'kill -KILL -- -"$TASK"' TERM
wait "$TASK"
"""
SCANCEL = """#!/bin/bash
# As scancel --signal=NAME JOB.STEP: each process of the step gets the signal.
kill -"${1#--signal=}" -- -"$(cat "$TMPDIR/../step.${2#*.}")"
"""
SPAN = """{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"0123456789abcdef0123456789abcdef","spanId":"%016x","name":"verl.step",
"kind":1,"traceState":"verl=s","startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000001000000000"}]}]}]}"""
SEND = """import os, sys, time, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
deadline = time.monotonic() + 180
while True:
    try:
        url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
        opener.open(urllib.request.Request(url, sys.argv[1].encode(), {"Content-Type": "application/json"}), timeout=60)
        break
    except OSError:
        assert time.monotonic() < deadline
        time.sleep(0.1)
"""


def find_job():
    """Return the number of a job whose eight ports are free; any, because others may look for one at the same time."""
    for job in random.sample(range(1000), 1000):
        try:
            for port in range(20000 + job * 8, 20008 + job * 8):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return job
    raise AssertionError("no eight free ports in a row")


@pytest.fixture
def submit(programs, tmp_path):
    """Run the job as ``sbatch`` would, on a cluster of one node: returns the running script and the folder of what is kept."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the job's certificates, is not installed")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"srun": SRUN, "scancel": SCANCEL, "scontrol": "#!/bin/bash\necho localhost\n"}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "send.py").write_text(SEND)
    started = []

    def run(training, **variables):
        script = tmp_path / "train.sh"
        script.write_text(f"#!/bin/bash\n{training}\n")
        script.chmod(0o755)
        clean = inherit("OTEL", "VERL_", "SLURM")
        environ = clean | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": str(find_job()),
            "SLURM_JOB_NODELIST": "node[1]",
            "SLURM_JOB_NUM_NODES": "1",
            "OTELCOL_DIR": str(COLLECTOR),
            "OTELCOL": str(programs.otelcol),
            "OTELCOL_KEPT": str(tmp_path / "kept"),
            "TMPDIR": str(tmp_path / "scratch"),
        }
        environ.pop("SLURM_TMPDIR", None)
        job = subprocess.Popen(
            ["bash", SLURM / "train.sbatch", script],
            env=environ | variables,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(job)
        return job

    yield run
    for job in started:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def kept_spans(folder):
    return [span for _, span, _ in read_spans([folder / "kept" / "traces.jsonl"])]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_it_is_sound_bash(script):
    """Bash reads it, and shellcheck has nothing to say."""
    subprocess.run(["bash", "-n", script], check=True)
    subprocess.run([Path(sys.executable).with_name("shellcheck"), script], check=True)


def test_what_is_sent_last_arrives(submit, tmp_path):
    """A span sent right before the end of the training is kept; queues, keys and processes are gone; the exit code is the training's."""
    job = submit(f"python3 {tmp_path}/send.py '{SPAN % 1}' && python3 {tmp_path}/send.py '{SPAN % 2}'; exit 7")
    _, said = job.communicate(timeout=240)
    assert job.returncode == 7
    assert said == ""
    assert sorted(kept_spans(tmp_path)) == [f"{1:016x}", f"{2:016x}"]
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not (tmp_path / "kept" / "credentials").exists()


def test_a_job_whose_time_is_over_ends_in_order(submit, tmp_path, wait_for):
    """SIGTERM to the script ends the training, which may finish what it does; then what it has sent is sent on."""
    send = f"python3 {tmp_path}/send.py"
    job = submit(
        f"trap '{send} \"$(cat {tmp_path}/last)\"; exit 3' TERM; touch {tmp_path}/trains; while :; do sleep 0.1; done"
    )
    (tmp_path / "last").write_text(SPAN % 3)
    wait_for((tmp_path / "trains").exists, 60)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=240)
    assert job.returncode == 3
    assert kept_spans(tmp_path) == [f"{3:016x}"]


def test_a_gateway_that_is_away_ends_too(submit, tmp_path):
    """A queue that cannot be emptied holds the end of the job for 20 s and no longer, and the number of items is said."""
    sent = f"python3 {tmp_path}/send.py '{SPAN % 4}'"
    job = submit(sent, OTELCOL_TRACE_STORE="127.0.0.1:1")  # nobody
    _, said = job.communicate(timeout=240)
    assert job.returncode == 0
    assert "the gateway on" in said
    assert "ends with 1 items in its queue" in said


def test_the_training_runs_without_a_collector(submit, tmp_path):
    """A cluster without certificates or without the program trains; the reason is in the log of the job."""
    job = submit(f"env > {tmp_path}/environment; exit 5", OTELCOL_KEPT="/dev/null/nowhere")
    _, said = job.communicate(timeout=240)
    assert job.returncode == 5
    assert "no Collector in this job" in said
    assert "VERL_OTEL_ENABLED" not in (tmp_path / "environment").read_text()


def test_a_folder_that_not_all_nodes_share_is_told(submit, tmp_path):
    """Where another node does not see OTELCOL_KEPT the job says which folder and which node, starts no Collector, and trains."""
    job = submit(f"env > {tmp_path}/environment; exit 5", FAR=str(tmp_path / "kept"))
    _, said = job.communicate(timeout=240)
    assert job.returncode == 5
    assert f"OTELCOL_KEPT={tmp_path / 'kept'} cannot be read and written on: {socket.gethostname()}." in said
    assert "no Collector in this job" in said
    assert "VERL_OTEL_ENABLED" not in (tmp_path / "environment").read_text()
    assert not (tmp_path / "kept" / "credentials").exists()
