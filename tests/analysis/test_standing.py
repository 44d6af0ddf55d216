# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The line of code at which what a verdict names stood meanwhile."""

import pytest

from tests.builders import stories, texts
from verl_otel.analysis import reader
from verl_otel.model import LinkRecord

SLOW = 4
PLACES = {
    "write_dump": "train.py:12 in write_dump",
    "hold": "agent.py:7 in hold",
    "wait": "agent.py:9 in wait",
}


def stand(process, begin, end, function, trajectory=None):
    """A thread stood at a line."""
    path, _, rest = PLACES[function].partition(":")
    number = rest.partition(" ")[0]
    made = process.span(
        "verl.thread.stood", begin, end, verl__blocked__line=f'File "{path}", line {number} in {function}'
    )
    if trajectory is not None:
        link = LinkRecord(trajectory.trace_id, trajectory.span_id, {"verl.link.type": "culprit"})
        process.spans[-1] = made._replace(links=(link,))


def add_steps(story, *, late=(), more=2.0, phase=0.0, after=0.0):
    """Eight steps of four trajectories in one process; returns it, and where the trajectories, the phase and the end of the slow one are.

    ``late``: trajectories that take ``more`` seconds longer in no call. ``phase``, ``after``: by how much its update and the time after it do.
    """
    trainer = story.process()
    now, slow = 0.0, {}
    for number in range(1, 9):
        is_slow = number == SLOW
        members = [
            stories.trajectory(
                trainer,
                now + 0.1,
                now + 1.0 + more * (is_slow and index in late),
                uid=f"u{number}",
                index=index,
                step=number,
            )
            for index in range(4)
        ]
        end = now + 1.1 + more * (is_slow and bool(late))
        done = end + 1.0 + phase * is_slow
        stories.step(trainer, number, now, done, [("gen", now, end), ("update_actor", end, done)], members)
        if is_slow:
            slow = {"members": members, "began": now, "update": end, "end": done}
        now = done + 0.1 + after * is_slow
    return trainer, slow


def explain(story):
    """The verdicts of the slow step, and the text of all."""
    run = reader.read([story.write()])[0]
    held = {step.number: step.verdicts for step in run.steps if step.verdicts}
    assert list(held) == [SLOW]
    return held[SLOW], texts.explain(run)


@pytest.mark.parametrize(("where", "kind"), [("phase", "phase"), ("after", "between")])
def test_a_slow_part_of_the_trainer_is_named_with_its_line(story, where, kind):
    """Of two stays that which was there while it was slow, and not the one in another phase."""
    trainer, slow = add_steps(story, **{where: 2.0})
    begin = slow["update"] if where == "phase" else slow["end"]
    stand(trainer, begin, begin + 1.9, "write_dump")
    stand(trainer, slow["began"], slow["began"] + 1.0, "hold")
    (verdict,), text = explain(story)
    assert (verdict.kind, verdict.line) == (kind, PLACES["write_dump"])
    assert f", at {PLACES['write_dump']}." in text


def test_a_stay_that_explains_too_little_is_not_named(story):
    """A fifth of the time."""
    trainer, slow = add_steps(story, phase=2.5)
    stand(trainer, slow["update"], slow["update"] + 0.5, "write_dump")
    (verdict,), _ = explain(story)
    assert verdict.line == ""


def test_a_slow_trajectory_is_named_with_its_own_line(story):
    """Another one stood elsewhere."""
    trainer, slow = add_steps(story, late=(1,))
    stand(trainer, slow["began"] + 0.5, slow["began"] + 2.8, "wait", slow["members"][1])
    stand(trainer, slow["began"] + 0.2, slow["began"] + 2.8, "write_dump")
    (verdict,), text = explain(story)
    assert (verdict.kind, verdict.cause, verdict.line) == ("trajectory", "trajectory", PLACES["wait"])
    assert PLACES["wait"] in text


def test_trajectories_that_wait_for_one_of_them_are_one_verdict_with_its_line(story):
    """One holds a lock, at a line of its own; the others are at the line that takes it. None of them alone would have made the step shorter."""
    trainer, slow = add_steps(story, late=(0, 1, 2, 3))
    for index, member in enumerate(slow["members"]):
        stand(trainer, slow["began"] + 0.5, slow["began"] + 2.8, "hold" if index == 2 else "wait", member)
    (verdict,), text = explain(story)
    assert (verdict.kind, verdict.line, pytest.approx(verdict.saved, abs=0.2)) == ("code", PLACES["hold"], 2.0)
    where = f"took 2.00 s longer than usual (on trainer-0), at {PLACES['hold']}."
    assert f"Several trajectories delayed it: own code and waiting time {where}" in " ".join(text.split())


def test_a_stay_is_no_cause_of_its_own(story):
    """Work may take as long as it does."""
    trainer, slow = add_steps(story)
    stand(trainer, slow["update"], slow["update"] + 0.9, "write_dump")
    assert not any(step.verdicts for step in reader.read([story.write()])[0].steps)


def test_trajectories_that_are_slow_together_without_a_line_have_no_verdict(story):
    """A busy machine makes all of them slower: only a line says that they waited for the same."""
    add_steps(story, late=(0, 1, 2, 3))
    assert not any(step.verdicts for step in reader.read([story.write()])[0].steps)


@pytest.mark.parametrize("where", ["phase", "after"])
def test_what_took_longer_for_want_of_a_cpu_says_so(story, where):
    """Short waits for a CPU are no cause of their own, and many of them in one part explain why it took longer; those elsewhere do not."""
    trainer, slow = add_steps(story, **{where: 2.0})
    begin = slow["update"] if where == "phase" else slow["end"]
    for piece in range(4):
        at = begin + 0.1 + 0.45 * piece
        trainer.span("verl.process.paused", at, at + 0.4, reason="cpu", verl__paused__queued_seconds=0.35)
    (verdict,), text = explain(story)
    assert verdict.cause_name == "no CPU"
    assert "no CPU" in text


def test_waits_for_a_cpu_elsewhere_explain_no_slow_phase(story):
    """They lie in another phase of the step."""
    trainer, slow = add_steps(story, phase=2.0)
    for piece in range(2):
        trainer.span(
            "verl.process.paused", slow["began"] + 0.5 * piece, slow["began"] + 0.5 * piece + 0.45, reason="cpu"
        )
    (verdict,), _ = explain(story)
    assert (verdict.kind, verdict.cause_name) == ("phase", "update_actor")
