# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What held a step is reported when the step ends; healthy steps have no report."""

import logging
import random

import pytest

from verl_otel.recording import run_log
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import logs
from verl_otel.session import live_verdicts, python_logging
from verl_otel.session.live_verdicts import LiveVerdicts


def train(steps, slow=None, *, jitter=0.0):
    """End steps of two seconds, with a tracker of 0.1 s after each; ``slow`` is (step, name of the part, seconds)."""
    chance, verdicts, before = random.Random(1), LiveVerdicts(), 0.0
    now = verdicts._began
    for number in range(1, steps + 1):
        extra = dict.fromkeys(("gen", "update_actor", "logging", "own code"), 0.0)
        extra = {key: chance.uniform(0, jitter) for key in extra}
        if slow is not None and slow[0] == number:
            extra[slow[1]] += slow[2]
        log_end = now + 0.1 + extra["logging"]
        start = log_end + 0.05 + extra["own code"]
        middle = start + 1.0 + extra["gen"]
        stop = middle + 1.0 + extra["update_actor"]
        intervals = [("logging", now, log_end), ("gen", start, middle), ("update_actor", middle, stop)]
        verdicts.end_step(number, before, start, stop, intervals)
        before = now = stop
    return verdicts


@pytest.mark.parametrize(
    ("part", "kind", "text", "step"),
    [
        ("gen", "phase", "step 7 took 4.5 s: phase gen 2.5 s longer than usual", 7),
        ("logging", "between", "step 7 began 2.5 s late: logging took longer than usual", 6),
        ("own code", "between", "step 7 began 2.5 s late: own code took longer than usual", 6),
    ],
)
def test_what_held_a_step_is_reported_once(recorded, caplog, monkeypatch, part, kind, text, step):
    """One line, and the seconds by kind and cause. `explain` shows time between two steps at the first of them."""
    monkeypatch.setattr(RECORDER, "run_id", "r1")
    with caplog.at_level(logging.WARNING, "verl_otel"):
        train(12, (7, part, 2.5))
    (line,) = caplog.messages
    assert text in line
    assert line.endswith(f"Evidence: verl-otel explain r1 --step {step}")
    assert recorded.value("verl.step.held", verl_held_kind=kind, verl_held_cause=part) == pytest.approx(2.5, abs=0.01)


def test_every_held_step_is_an_event(recorded):
    """Also within the time after a line of the log: with kind, cause and seconds. The line itself is not copied to the run log."""
    run_log.configure(logs.INFO, 0)
    python_logging.install()
    try:
        train(12, (7, "gen", 2.5))
        (record,) = run_log.take()
    finally:
        python_logging.uninstall()
        run_log._reset()
    assert (record.scope, record.step, record.level) == ("held", 7, logs.WARNING)
    assert record.fields == {
        "kind": "phase", "cause": "gen", "held_seconds": pytest.approx(2.5), "step_seconds": pytest.approx(4.5),
    }  # fmt: skip


def test_healthy_steps_have_no_line(recorded, caplog):
    """Neither equal steps nor noisy ones, nor the first step, which is slow."""
    with caplog.at_level(logging.WARNING, "verl_otel"):
        train(300, jitter=0.2)
        train(20, (1, "gen", 30.0))
    assert not caplog.messages
    assert not [point for point in recorded.points if point.instrument.name == "verl.step.held"]


@pytest.mark.parametrize(("slow_step", "reported"), [(2, False), (3, False), (4, True)])
def test_a_step_is_judged_by_two_others_at_least(recorded, slow_step, reported):
    """The first one does not count: before the fourth step it is not known which of them are the usual ones."""
    train(6, (slow_step, "gen", 30.0))
    held = [point for point in recorded.points if point.instrument.name == "verl.step.held"]
    assert bool(held) == reported


def test_the_goodput_is_the_share_of_time_in_steps(recorded):
    """Steps of two seconds, 0.15 s apart."""
    train(50)
    assert recorded.value("verl.goodput") == pytest.approx(2.0 / 2.15, abs=0.01)


def test_start_up_and_validations_are_no_goodput(recorded):
    """Wherever verl validates: between two steps, or in the phase ``testing`` of a step, as the legacy trainer does. No second is lost twice."""
    verdicts = LiveVerdicts(100.0)
    verdicts.end_step(1, 0.0, 180.0, 190.0, [("gen", 180.0, 190.0)])
    assert recorded.value("verl.goodput") == pytest.approx(10 / 90)
    verdicts.end_step(
        2, 190.0, 200.0, 220.0, [("testing", 190.0, 200.0), ("gen", 200.0, 210.0), ("testing", 210.0, 220.0)]
    )
    assert recorded.value("verl.goodput") == pytest.approx(20 / 120)
    for number, long in enumerate([10.0, 10.0, 10.0, 60.0], start=3):  # the last validation is what held its step
        start = 220.0 + 30.0 * (number - 3)
        phases = [("gen", start, start + 10), ("testing", start + 10, start + 10 + long)]
        verdicts.end_step(number, start - 1, start, start + 10 + long, phases)
    assert recorded.value("verl.step.held", verl_held_cause="testing") == pytest.approx(50.0)
    assert recorded.value("verl.goodput") == pytest.approx(60 / (220 + 90 + 70 - 100))


def test_lines_are_few(recorded, caplog, monkeypatch):
    """Not every step has a line; the metric has every step."""
    monkeypatch.setattr(live_verdicts, "LINE_SECONDS", float("inf"))
    verdicts = LiveVerdicts()
    with caplog.at_level(logging.WARNING, "verl_otel"):
        for _ in range(3):
            verdicts._report(1, 3.0, live_verdicts.Held("phase", "gen", 1.0), evidence=1)
    assert len(caplog.messages) == 1
    assert recorded.value("verl.step.held") == 3.0


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        (None, "nothing delayed any of 12 steps noticeably"),
        ((7, "gen", 2.5), "1 of 12 steps took longer than those before, by 2.5 s, most by phase gen: 2.5 s"),
        (
            (7, "logging", 2.5),
            "1 of 12 steps took longer than those before, by 2.5 s, most by logging between steps: 2.5 s",
        ),
    ],
)
def test_the_run_has_one_verdict(recorded, slow, text):
    """A sentence on all steps, with the same goodput and seconds as the metrics."""
    summary = train(12, slow).summarize()
    assert summary["verdict"] == text
    assert summary["goodput"] == pytest.approx(recorded.value("verl.goodput"), abs=1e-4)
    assert summary["held_seconds"] == pytest.approx(2.5 if slow else 0.0, abs=0.01)


def test_a_rank_that_may_have_waited_says_so(recorded, caplog, monkeypatch):
    """Rank 0 waits in its phase for the slow rank, and does not know it; a part of the time between steps is its own."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rank = " on rank 0, which may have waited for another one in it"
    with caplog.at_level(logging.WARNING, "verl_otel"):
        assert train(12, (7, "gen", 2.5)).summarize()["verdict"].endswith(f"most by phase gen: 2.5 s{rank}")
    assert f"phase gen 2.5 s longer than usual{rank}" in caplog.text
    assert "rank" not in train(12, (7, "logging", 2.5)).summarize()["verdict"]


def test_before_the_first_step_there_is_no_verdict():
    """A run without a step has no summary."""
    assert LiveVerdicts().summarize() == {}


@pytest.mark.parametrize(("slow", "lines"), [((7, "gen", 2.5), 1), (None, 0)])
def test_a_run_that_was_held_says_so_at_its_end(caplog, slow, lines):
    """One line with the verdict on all steps and the command that shows more; a run that nothing held is silent."""
    verdicts = train(12, slow)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "verl_otel"):
        verdicts.log_end("r1")
    text = "1 of 12 steps took longer than those before, by 2.5 s, most by phase gen: 2.5 s"
    assert caplog.messages == [f"verl-otel: {text}. Which trajectory, rank or tool: verl-otel explain r1"] * lines


def test_the_last_line_says_which_side_to_grow(recorded, caplog):
    """Also after a run whose steps nothing held."""
    verdicts = train(12, None)
    with caplog.at_level(logging.WARNING, "verl_otel"):
        verdicts.log_end("r1", "short are the rollouts")
    assert caplog.messages[-1].startswith(
        "verl-otel: nothing delayed any of 12 steps noticeably; short are the rollouts. "
    )


def test_the_lines_can_be_switched_off(recorded, caplog, monkeypatch):
    """The metric stays."""
    monkeypatch.setattr(RECORDER, "verdict_lines", False)
    with caplog.at_level(logging.WARNING, "verl_otel"):
        train(12, (7, "gen", 2.5)).log_end("r1")
    assert not caplog.messages
    assert recorded.value("verl.step.held") == pytest.approx(2.5)


def test_no_command_is_named_that_finds_no_files(recorded, caplog, monkeypatch):
    """A run whose exporters write none has the lines without a command."""
    monkeypatch.setattr(RECORDER, "writes_files", False)
    with caplog.at_level(logging.WARNING, "verl_otel"):
        train(12, (7, "gen", 2.5)).log_end("r1")
    assert len(caplog.messages) == 2
    assert not [line for line in caplog.messages if "verl-otel explain" in line]


def test_a_step_without_a_number_is_named_in_no_command(recorded, caplog):
    """``explain --step ?`` could not run."""
    verdicts, before = LiveVerdicts(), 0.0
    with caplog.at_level(logging.WARNING, "verl_otel"):
        for start in range(0, 60, 10):
            stop = start + (9.0 if start == 50 else 1.0)
            verdicts.end_step(None, before, start, stop, [("gen", start, stop)])
            before = stop
    (line,) = caplog.messages
    assert line.startswith("verl-otel: a step took 9.0 s")
    assert "verl-otel explain" in line
    assert "--step" not in line
