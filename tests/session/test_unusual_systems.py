# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Systems that are not as usual: processes of others are hidden, the wall clock jumps, no thread can be started."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.builders.processes import OF_BUSY_MACHINES

HIDDEN = """
import os, sys, time
import verl_otel
from verl_otel._internal import error_boundary; from verl_otel import session
os.environ["HOME"], folder = sys.argv[1], sys.argv[1]
verl_otel.init(exporters="file", run_dir=folder + "/warm", metric_interval=1)  # modules that another user may not read are loaded here
with verl_otel.step(0):
    pass
verl_otel.shutdown()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
visible = [name for name in os.listdir("/proc") if name.isdigit()]
verl_otel.init(exporters="file", run_dir=folder + "/runs", metric_interval=1, drain_interval=0.1)
with verl_otel.step(1), verl_otel.phase("gen"):
    time.sleep(1.5)
session.flush()
verl_otel.shutdown()
print(len(visible), os.path.exists("/proc/1"), error_boundary.counts())
"""
JUMPING = """
import sys, time
offset, real, real_ns = [0], time.time, time.time_ns
time.time, time.time_ns = lambda: real() + offset[0], lambda: real_ns() + offset[0] * 10**9
import verl_otel
from verl_otel._internal import error_boundary
verl_otel.init(exporters="file", run_dir=sys.argv[1], run_id="r", metric_interval=1, drain_interval=0.05)
for number in range(1, 9):
    offset[0] = (0, 10_800, -10_800, 0)[number % 4]
    with verl_otel.step(number), verl_otel.phase("gen"):
        offset[0] += (0, 7_200, -7_200)[number % 3]
        time.sleep(0.1)
verl_otel.shutdown()
print(error_boundary.counts())
"""
WITHOUT_THREADS = """
import sys, threading
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
import verl_otel
verl_otel.init(exporters="file,otlp,prometheus", run_dir=sys.argv[1], run_id="r")
with verl_otel.step(1):
    pass
verl_otel.shutdown()
print("done")
"""


def run(*command):
    """Run a command in time and without an error; return what it printed."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts /proc anew, as root")
def test_processes_of_other_users_may_be_hidden(tmp_path, read_run):
    """With ``hidepid=2`` a process sees only those of its own user: host and process are measured, and nothing fails."""
    root = next(folder for folder in tmp_path.parents if folder.name.startswith("pytest-of-"))
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:  # pytest's own folders, also those of a worker of pytest-xdist
        if folder.is_relative_to(root):
            folder.chmod(0o755)
    script = tmp_path / "hidden.py"
    script.write_text(HIDDEN)
    shell = f"mount -o remount,hidepid=2 /proc && exec {sys.executable} {script} {tmp_path}"
    if subprocess.run(["unshare", "-m", "mount", "-o", "remount,hidepid=2", "/proc"], check=False).returncode:
        pytest.skip("/proc cannot be mounted anew here")
    assert run("unshare", "-m", "sh", "-c", shell) == "1 False {}"
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.name != "targets")
    names = {point.name for point in read_run(folder).scalars}
    assert {"process.cpu.time", "system.cpu.time", "system.memory.usage"} <= names


@pytest.mark.full
def test_a_wall_clock_that_jumps_changes_no_duration(tmp_path, read_run):
    """Jumps of hours back and forth, between and within steps: durations stay, no stall is reported, `report` reads the run."""
    script = tmp_path / "jumping.py"
    script.write_text(JUMPING)
    assert run(sys.executable, script, tmp_path) == "{}"
    spans = [span for span in read_run(tmp_path / "r").spans if span.name not in OF_BUSY_MACHINES]
    seconds = [(span.end_ns - span.start_ns) / 1e9 for span in spans]
    assert len(seconds) == 16
    assert all(0.1 <= duration < 60 for duration in seconds)
    assert not (tmp_path / "r" / "events.jsonl").exists()
    assert "8 steps" in run(sys.executable, "-c", "from verl_otel.cli import main; main()", "report", tmp_path / "r")


@pytest.mark.full
def test_a_system_that_starts_no_more_threads_ends_no_program(tmp_path, read_run):
    """At the limit of processes: what needs a thread is left out with a line in the log, and the files are written at the end."""
    script = tmp_path / "without_threads.py"
    script.write_text(WITHOUT_THREADS)
    assert run(sys.executable, script, tmp_path) == "done"
    assert [span.name for span in read_run(tmp_path / "r").spans] == ["verl.step"]
