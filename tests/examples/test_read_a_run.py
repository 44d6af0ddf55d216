# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The example that reads a run: what it prints is what the program that made the run did."""

import re

import pytest

from tests.builders.processes import OF_BUSY_MACHINES


@pytest.fixture(scope="module")
def done(example):
    ran = example("read_a_run")
    ran.printed = ran.run_all()
    return ran


@pytest.mark.full
def test_it_prints_what_happened(done):
    """Steps, the slowest trajectory, the worst step and the spans by name."""
    lines = done.printed["python read_run.py"].splitlines()
    run_id = done.telemetry().name
    assert lines[0] == f"run {run_id}: 3 steps, 24 trajectories"
    steps = [re.fullmatch(r"step (\d): (\d+\.\d\d) s, (\d+)% in (\w+)", line).groups() for line in lines[1:4]]
    assert [number for number, *_ in steps] == ["1", "2", "3"]
    assert float(steps[1][1]) >= 1.5, "step 2 has a call of 1.5 s"
    assert steps[1][3] == "gen"
    assert re.fullmatch(r"slowest: slow/[01] of step 2, \d\.\d\d s: llm stub \d\.\d\d s, tool add .*", lines[4])
    assert lines[5].startswith("worst step: 2, most of it llm stub: ")
    counts = dict(reversed(line.split(None, 1)) for line in lines[6:])
    for name in OF_BUSY_MACHINES:
        counts.pop(name, None)
    assert counts == {
        "chat stub": "48", "execute_tool add": "24", "verl.phase.gen": "3", "verl.phase.update_actor": "3",
        "verl.reward": "24", "verl.step": "3", "verl.trajectory": "24", "verl.turn": "48",
    }  # fmt: skip


def test_its_cells_run_in_any_notebook(done):
    """Each cell begins with a title, and the script is plain Python."""
    source = (done.folder / "read_run.py").read_text("utf-8")
    titles = re.findall(r"^# %%(.*)$", source, re.MULTILINE)
    assert len(titles) == 5
    assert all(title.strip() for title in titles)
    compile(source, "read_run.py", "exec")
