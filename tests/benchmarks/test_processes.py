# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Fresh processes: what they find comes back, what breaks is said, settings of the caller do not reach them."""

import time
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.case import load_cases
from benchmarks.processes import Failed, Measured
from tests.benchmarks.benchmarks_found import case

WRITE = "import sys, pathlib, os, json; pathlib.Path(sys.argv[sys.argv.index('--out') + 1]).write_text(json.dumps({}))"


def ran(source, **more):
    return processes.measure(case(**more), rounds=2, prefix=("-c", source))


def test_a_case_is_measured_in_a_process_of_its_own():
    """A real one: two rounds of each variant that was asked for, in seconds."""
    off = load_cases()["off-metrics"]
    found = processes.measure(off, rounds=2, variants=["baseline", "verl_otel"])
    assert {name: len(values) for name, values in found.seconds.items()} == {"baseline": 2, "verl_otel": 2}
    assert all(0 < value < 1e-3 for values in found.seconds.values() for value in values)
    only = processes.measure(off, rounds=2, variants=["verl_otel"])
    assert list(only.seconds) == ["verl_otel"]


def test_telemetry_of_the_caller_is_not_measured(monkeypatch):
    """Switches of any telemetry in the environment are left out; where runs are written is a folder that goes away."""
    for name in ("VERL_OTEL_ENABLED", "OTEL_SDK_DISABLED", "LOGFIRE_TOKEN"):
        monkeypatch.setenv(name, "1")
    said = "{'seconds': {k: [1.0] for k in os.environ if k.startswith(('VERL_', 'OTEL_', 'LOGFIRE_'))}, 'missing': {}, 'figures': {}}"
    found = ran(WRITE.format(said))
    assert list(found.seconds) == ["VERL_OTEL_RUN_DIR"]


@pytest.mark.parametrize(
    ("source", "said"),
    [("raise SystemExit('it broke')", "exit code 1.*it broke"), ("pass", "exit code 0"), ("while True: pass", "0 s")],
)
def test_a_process_that_breaks_is_told(source, said):
    """With its code and the end of what it said; one that hangs is ended."""
    with pytest.raises(Failed, match=f"(?s){said}"):
        ran(source, seconds=0.3 if "while" in source else 60)


def test_cases_take_turns(monkeypatch):
    """One process of each case, then the next of each; one that failed twice is not tried again."""
    order = []

    def measure(each, rounds, first):
        order.append(each)
        if each.name == "b":
            raise Failed("broken")
        return Measured({"baseline": [1.0] * rounds})

    monkeypatch.setattr(processes, "measure", measure)
    cases = [case(suite=word) for word in ("hot", "ray")]
    cases[0].__dict__["name"], cases[1].__dict__["name"] = "a", "b"
    said = []
    found = processes.measure_all(cases, processes=3, rounds=4, progress=said.append)
    assert [each.name for each in order] == ["a", "b", "a", "b", "a"]
    assert [(each.name, len(measured), failures) for each, measured, failures in found] == [
        ("a", 3, []),
        ("b", 0, ["broken", "broken"]),
    ]
    assert said[0] == "process 1 of 3, case 1 of 2: a"


def test_no_process_begins_out_of_time(monkeypatch):
    """What was measured until then stays."""
    monkeypatch.setattr(processes, "measure", lambda each, rounds, first: Measured({}))
    found = processes.measure_all([case()], processes=3, rounds=1, progress=print, deadline=time.monotonic() - 1)
    assert [len(measured) for _, measured, _ in found] == [0]


def test_an_interrupted_run_shows_what_it_has(monkeypatch):
    """Ctrl-C in the second turn: the first stays, and the process that was measuring is ended."""
    calls = []

    def measure(each, rounds, first):
        calls.append(each)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return Measured({})

    monkeypatch.setattr(processes, "measure", measure)
    found = processes.measure_all([case()], processes=3, rounds=1, progress=print)
    assert [len(measured) for _, measured, _ in found] == [1]


def test_what_a_process_leaves_behind_is_ended(tmp_path, wait_for):
    """A child of it that would run for a minute, as Ray's do when it breaks, is gone with it."""
    pid = tmp_path / "pid"
    source = (
        "import subprocess, sys, pathlib\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(left.pid))\n"
        "raise SystemExit('broken')"
    )
    with pytest.raises(Failed):
        ran(source)

    def is_gone():
        stat = Path("/proc", pid.read_text(), "stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    wait_for(is_gone)
