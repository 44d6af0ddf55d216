# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A disk that is full from the beginning, or after any number of bytes: the training goes on, the loss is counted and told once."""

import json
import os
import subprocess
import sys

import pytest

from tests.builders.environments import inherit

pytestmark = pytest.mark.attack

STEPS = 8
WORK = """
import errno, json, os, sys
import verl_otel
from verl_otel import session
limit = int(sys.argv[1])
if sys.argv[2] == "write":  # the disk is full from this write on: ENOSPC
    real, count = os.write, 0
    def write(handle, data):
        global count
        count += 1
        if count > limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data)
    os.write = write
verl_otel.init(exporters="file")
session.current().begin_run()
session.record_run({"verl.project": "p"})
steps = 0
for number in range(STEPS):
    with verl_otel.step(number), verl_otel.phase("gen"):
        for index in range(20):
            with verl_otel.trajectory(f"uid-{number}", index, ), verl_otel.turn(), verl_otel.llm("tiny"):
                pass
    steps += 1
    session.current().flush(5.0)
current = session.current()
verl_otel.shutdown()
dropped = sum(sum(each.dropped("spans").values()) for each in current.exporters)
sys.stdout.write("RESULT " + json.dumps({"steps": steps, "dropped": dropped}))
sys.stdout.flush()
""".replace("STEPS", str(STEPS))
ALL = STEPS * (2 + 20 * 3)


def train(tmp_path, run_dir, limit, kind):
    """Run the work on a full disk; return what it counted, its log, and the spans in its files."""
    environ = inherit("VERL_", "OTEL_", "PYTEST")
    environ |= {
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_RUN_DIR": str(run_dir),
        "VERL_OTEL_RUN_ID": "r1",
        "VERL_OTEL_DRAIN_INTERVAL": "0.05",
    }
    script = tmp_path / "work.py"
    script.write_text(WORK)
    command = [sys.executable, script, str(limit), kind]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    kept = 0
    for path in (run_dir / "r1").glob("traces-*"):
        for line in path.read_bytes().splitlines():
            try:
                groups = json.loads(line)["resourceSpans"]
            except ValueError:
                continue  # the line in which the disk became full
            kept += sum(len(scope["spans"]) for group in groups for scope in group["scopeSpans"])
    return json.loads(done.stdout.partition("RESULT ")[2]), done.stderr.splitlines(), kept


def check(result, log, kept):
    """The work was done; each span is in a file or counted, and each kind of loss was told once."""
    assert result["steps"] == STEPS
    assert kept + result["dropped"] == ALL
    assert len(log) == len(set(log)), log
    assert all(line.startswith("verl-otel: ") for line in log)
    if result["dropped"]:
        assert sum("telemetry is being dropped" in line or "cannot write" in line for line in log) >= 1


@pytest.mark.parametrize("limit", range(25))
def test_a_disk_that_is_full_from_a_write_on(tmp_path, limit):
    """The disk becomes full at each of the first writes."""
    check(*train(tmp_path, tmp_path / "runs", limit, "write"))


@pytest.mark.parametrize("size", ["4k", "16k", "64k", "1m"])
def test_a_small_disk(tmp_path, size):
    """A real file system of a few pages: also folders and names need room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes=64", "verl-otel-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system")
    try:
        check(*train(tmp_path, disk / "runs", 0, "none"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
