# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel explain --brief``: bounded, and every finding with the ids that prove it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import stories
from verl_otel.analysis import Run
from verl_otel.analysis.model import Event
from verl_otel.cli import explain


def test_a_verdict_has_its_evidence(call, tmp_path):
    folder = stories.training(tmp_path / "r1", "r1").write()
    result = call("explain", "--brief", folder)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "run r1: finished, 2 steps, 4 trajectories"
    (step,) = [step for step in Run.open(folder).steps() if step.verdicts]
    assert f"step 2: 15.00 s [trace {step.trace_id:032x}]" in lines
    (cause,) = [line for line in lines if line.startswith("  cause: ")]
    assert "update_actor" in cause
    assert f"kind {step.verdicts[0].kind}, cause worker" in cause
    assert any(line.startswith("do (") for line in lines)
    assert lines[-1].startswith("more: verl-otel explain --step N r1")


def test_the_ids_are_those_of_the_json(call, tmp_path):
    folder = stories.training(tmp_path / "r1", "r1").write()
    document = json.loads(call("explain", "--json", folder).out)
    brief = call("explain", "--brief", folder).out
    assert all(step["trace_id"] in brief for step in document["steps"])


@given(st.integers(0, 200), st.text(max_size=3000))
def test_it_is_bounded_whatever_happened(count, text):
    story_run = _run()
    events = tuple(Event("stall", 1, text, {}) for _ in range(count))
    steps = story_run.steps * 40
    shown = explain.render_brief(story_run._replace(events=events, problems=(text,) * count), steps)
    lines = shown.split("\n")
    assert len(lines) <= explain.MAX_LINES
    assert all(len(line) <= explain.MAX_LINE + 3 for line in lines)


_kept = []


def _run():
    if not _kept:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            _kept.append(Run.open(stories.training(Path(folder) / "r1", "r1").write()).explanation)
    return _kept[0]
