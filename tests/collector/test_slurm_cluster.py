# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The jobs for Slurm on a real Slurm of two nodes: what is started, what arrives, and an end that leaves nothing."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.collector import ray_bed, slurm_bed
from tests.collector.test_deploy_slurm import SEND, SLURM, SPAN
from tests.collector.tiers import COLLECTOR, Prometheus, read_spans
from tests.end_to_end import bed_run, ray_cluster
from tests.verl_cpu import cpu_train

pytest.importorskip("ray", reason="Ray is not installed in this environment")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "ray-cluster.sbatch"
LOOK = """import json, os, ray, sys
from verl_otel.integrations.ray import cluster_endpoint, discovery
ray.init(log_to_driver=False)
with discovery.open_store(os.environ["RAY_ADDRESS"]) as client:
    endpoint = cluster_endpoint.decode(client.internal_kv_get(cluster_endpoint.KEY, b"verl_otel", timeout=10)).http
nodes = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
print("FOUND " + json.dumps({"nodes": nodes, "endpoint": endpoint, "run": os.environ["VERL_OTEL_RUN_ID"]}), flush=True)
sys.exit(7)
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def slurm(programs):
    """Two nodes; skipped where there is no Slurm."""
    missing = slurm_bed.find_missing()
    if missing:
        pytest.skip(missing)
    with (
        tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        slurm_bed.start(folder) as running,
    ):
        yield running


@pytest.fixture
def submit(slurm, tmp_path):
    """Submit a job of two nodes with a command; returns its id. It is cancelled with the test."""
    jobs = []

    def run(*command, script=SCRIPT, **variables):
        environ = {
            "PATH": f"{ray_bed.BIN}:{os.environ['PATH']}",
            "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 16, "GPU": 1}),
            "RAY_PORT": ray_bed.find_port(),
            "RAY_DASHBOARD_PORT": ray_bed.find_port(),
            "CLUSTER_DIR": tmp_path / "cluster",
            "STACK_OPTIONS": "--free-ports --json",
            **ray_bed.QUIET,
            **variables,
        }
        jobs.append(slurm.submit("--nodes=2", script, *command, cwd=tmp_path, **environ))
        return jobs[-1]

    yield run
    for job in jobs:
        if slurm.show(job)["JobState"] not in ENDED:
            slurm.call("scancel", job)
            slurm.await_true(lambda job=job: slurm.show(job)["JobState"] in ENDED, "end", 90)


def list_processes(job, slurm):
    """Return the command lines of all processes of a job. Both nodes share the list of processes."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if environ.get("SLURM_JOB_ID") == job and environ.get("SLURM_CONF") == slurm.environ["SLURM_CONF"]:
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found


def read(folder, name="job.log"):
    path = folder / name
    return path.read_text("utf-8", "replace") if path.exists() else ""


def await_end(slurm, job, wait_for, seconds):
    """Wait until a job has ended; returns its exit code. No process of it is left."""
    wait_for(lambda: slurm.show(job)["JobState"] in ENDED, seconds, 0.5)
    wait_for(lambda: not list_processes(job, slurm), 10, 0.5)
    return slurm.show(job)["ExitCode"]


def test_a_command_finds_all_nodes_and_the_stack_and_its_exit_code_is_that_of_the_job(
    slurm, submit, tmp_path, wait_for
):
    """Ray has one node on each node of the job, its store has the endpoint, and afterwards no process is left."""
    job = submit(sys.executable, "-c", LOOK)
    code = await_end(slurm, job, wait_for, 240)
    assert code == "7:0", read(tmp_path)
    (line,) = [line for line in read(tmp_path).splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert sorted(found["nodes"]) == [slurm.node.outside, slurm.node.inside]
    assert found["run"] == f"slurm-{job}"
    stack = json.loads(read(tmp_path, "cluster/stack-addresses"))
    assert found["endpoint"] == stack["otlp_http"]
    assert "task 0: Killed" not in read(tmp_path, "cluster/stack.log")
    assert "Local node finished draining" in read(tmp_path, "cluster/ray-head.log")


def test_a_head_that_does_not_start_ends_the_job_with_the_reason(slurm, submit, tmp_path, wait_for):
    """Without waiting for the time that a start may take."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ray").write_text("#!/bin/sh\necho broken on purpose\nexit 1\n")
    (tmp_path / "bin" / "ray").chmod(0o755)
    job = submit("true", PATH=f"{tmp_path}/bin:{ray_bed.BIN}:{os.environ['PATH']}")
    code = await_end(slurm, job, wait_for, 60)
    assert code == "1:0"
    assert "Ray's head on node-a does not answer" in read(tmp_path)
    assert "broken on purpose" in read(tmp_path, "cluster/ray-head.log")


@pytest.mark.pipeline
def test_the_signal_before_the_time_limit_ends_the_command_in_order(slurm, submit, tmp_path, wait_for):
    """SIGTERM to the script alone, as by ``--signal=B:TERM@180``: the command may end, then the rest is ended."""
    waits = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(3))\nprint('waits', flush=True)\ntime.sleep(600)"
    job = submit(sys.executable, "-c", waits)
    wait_for(lambda: "waits" in read(tmp_path), 240, 0.5)
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    assert await_end(slurm, job, wait_for, 60) == "3:0", read(tmp_path)
    assert "Local node finished draining" in read(tmp_path, "cluster/ray-head.log")


@pytest.mark.pipeline
def test_scancel_leaves_nothing(slurm, submit, tmp_path, wait_for):
    """All steps get SIGTERM at once, and the endpoint is no longer published by anybody."""
    job = submit(sys.executable, "-c", "import time\nprint('waits', flush=True)\ntime.sleep(600)")
    wait_for(lambda: "waits" in read(tmp_path), 240, 0.5)
    slurm.call("scancel", job)
    await_end(slurm, job, wait_for, 60)
    assert slurm.show(job)["JobState"] == "CANCELLED"


def make_training(out):
    """Return the command of a training of four steps on two nodes that resumes, and its environment."""
    environ = cpu_train.make_environment(out)
    overrides = [
        "trainer.nnodes=2", "actor_rollout_ref.rollout.agent.num_workers=2", "trainer.test_freq=-1",
        "trainer.save_freq=1", f"trainer.default_local_dir={out}/checkpoints", "trainer.resume_mode=auto",
        *ray_cluster.make_overrides("auto", environ),
    ]  # fmt: skip
    command = cpu_train.make_command(out, steps=4, overrides=overrides)
    changed = {name: value for name, value in environ.items() if os.environ.get(name) != value and name != "PATH"}
    return command, changed


@pytest.mark.pipeline
def test_a_requeued_training_goes_on_as_the_same_run(slurm, submit, programs, tmp_path, wait_for):
    """Requeued after its second checkpoint, the job resumes: one run with two attempts, and what Prometheus has kept equals the bed's log."""
    command, environ = make_training(tmp_path)
    job = submit(*command, **environ)
    wait_for(lambda: read(tmp_path, "checkpoints/latest_checkpointed_iteration.txt") == "2", 400, 0.2)
    slurm.call("scontrol", "requeue", job)
    wait_for(lambda: slurm.show(job)["Restarts"] == "1" and slurm.show(job)["JobState"] == "RUNNING", 120, 0.5)
    restarted = time.time()
    assert await_end(slurm, job, wait_for, 400) == "0:0", read(tmp_path)[-4000:]
    training = bed_run.Training(tmp_path)
    assert sorted(step for step in training.scalars() if step) == [3, 4]  # verl's logger begins a new file
    (run,) = (tmp_path / "cluster" / "runs").glob("slurm-*")
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["run_id"] == f"slurm-{job}"
    assert len(manifest["attempts"]) == 2
    second = [each for each in training.bed("trajectory") if each["start"] > restarted]
    totals = {"verl_rollout_trajectory_duration_seconds_count": len(second), "verl_training_steps_total": 2}
    assert read_kept(programs, tmp_path, totals, second[-1]["end"] + 40) == totals


def read_kept(programs, folder, names, at):
    """Return the sums of series at a Unix time from what the ended stack of a job has kept."""
    kept = Prometheus(programs.prometheus, folder, "kept")
    stack = json.loads(read(folder, "cluster/stack-addresses"))
    subprocess.run(["cp", "-r", f"{stack['data']}/prometheus", kept.folder / "data"], check=True)
    kept.start()
    try:
        found = {name: kept.ask("query", query=f"sum({name})", time=at)["result"] for name in names}
    finally:
        kept.kill()
    return {name: float(result[0]["value"][1]) for name, result in found.items() if result}


@pytest.mark.pipeline
def test_with_an_agent_on_each_node_what_is_sent_last_arrives(slurm, submit, programs, tmp_path, wait_for):
    """``train.sbatch``: each node sends a span right before the end, and each is kept: agents are emptied before Slurm ends them."""
    (tmp_path / "send.py").write_text(SEND)
    (tmp_path / "spans.sh").write_text(
        f'#!/bin/sh\nexec python3 {tmp_path}/send.py "$(cat {tmp_path}/span-$SLURM_PROCID)"\n'
    )
    for number in range(2):
        (tmp_path / f"span-{number}").write_text(SPAN % (number + 1))
    send = f"srun --overlap --ntasks=2 --ntasks-per-node=1 sh {tmp_path}/spans.sh; exit 7"
    variables = {"OTELCOL_DIR": COLLECTOR, "OTELCOL": programs.otelcol, "OTELCOL_KEPT": tmp_path / "kept"}
    job = submit("bash", "-c", send, script=SLURM / "train.sbatch", **variables)
    assert await_end(slurm, job, wait_for, 120) == "7:0", read(tmp_path)
    kept = [span for _, span, _ in read_spans([tmp_path / "kept" / "traces.jsonl"])]
    assert sorted(kept) == [f"{1:016x}", f"{2:016x}"], read(tmp_path)
    assert "items in its queue" not in read(tmp_path)
    assert not (tmp_path / "kept" / "credentials").exists()
