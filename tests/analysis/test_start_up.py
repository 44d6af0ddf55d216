# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The time before the first step is divided without a gap, for each attempt of a run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import stories, trees
from tests.builders.stories import T0, Story
from verl_otel.analysis import reader, start_up
from verl_otel.cli import wording


def parts(roots, start=0, end=100):
    return [(part.kind, part.name, part.nanoseconds) for part in start_up.divide(1, start, end, roots).parts]


def test_a_call_is_the_start_of_its_workers_and_the_method():
    """Until the method began on the first rank its process started; what follows a call is named by it."""
    init = trees.call(
        "init_model",
        20,
        50,
        trees.worker("actor-0", "init_model", 45, 50),
        trees.worker("actor-1", "init_model", 42, 49),
    )
    sync = trees.node("trainer-0", "verl.weight_sync", 80, 90, trees.call("update_weights", 81, 89))
    assert parts([sync, init]) == [
        ("begin", "", 20),
        ("workers_start", "init_model", 22),
        ("call", "init_model", 8),
        ("between", "init_model", 30),
        ("weight_sync", "", 10),
        ("between", "weight_sync", 10),
    ]


def test_without_calls_it_is_one_part():
    """An own loop has nothing before its first step; the step itself is none of it."""
    assert parts([trees.step(100, 200)]) == [("begin", "", 100)]
    assert wording.describe_start_up(start_up.divide(1, 0, 100, [])) == [
        ("not divided: no call to workers in it", 1e-7)
    ]


TIMES = st.tuples(st.integers(-20, 120), st.integers(0, 60))


@settings(max_examples=100)
@given(st.lists(st.tuples(TIMES, st.sampled_from(["call", "verl.validation", "verl.weight_sync"])), max_size=80))
def test_parts_cover_the_start_up_without_a_gap(intervals):
    """However calls overlap, each nanosecond is in one part, and the number of parts is bounded."""
    roots = [
        trees.call("m", begin, begin + length, trees.worker("actor-0", "m", begin + length // 2, begin + length))
        if kind == "call"
        else trees.node("trainer-0", kind, begin, begin + length)
        for (begin, length), kind in intervals
    ]
    found = parts(roots)
    assert sum(length for _, _, length in found) == 100
    assert all(length > 0 for _, _, length in found)
    assert len(found) <= start_up.MAX_PARTS
    texts = wording.describe_start_up(start_up.divide(1, 0, 100, roots))
    assert sum(length for _, length in texts) == pytest.approx(1e-7)


def test_the_first_step_is_none_of_it_while_it_is_open(tmp_path):
    story = Story(tmp_path / "r1")
    loop = story.process("process")
    step = loop.still_open("verl.step", 2, 9)
    loop.span("verl.phase.gen", 2, 8, step)
    story.manifest(attempts=[{"started": T0 + 1}])
    (only,) = reader.read([story.write()])[0].start_ups
    assert only.seconds == pytest.approx(1)


def test_each_attempt_has_its_own(tmp_path):
    """It begins where the manifest says that the attempt was started, and ends with the first step of the attempt."""
    story = Story(tmp_path / "r1")
    for start in (0, 100):
        trainer, worker = story.process("trainer"), story.process("actor_rollout_ref", verl__rank=0)
        call = trainer.span("verl.call init_model", start + 4, start + 9, None, kind=stories.CLIENT)
        worker.span("verl.worker Actor.init_model", start + 7, start + 9, call, kind=stories.SERVER)
        for number in range(1, 3):
            begin = start + 6 + 4 * number
            stories.step(trainer, number, begin, begin + 4, [("gen", begin, begin + 4)], [])
    story.manifest(attempts=[{"started": T0 + 1, "ended": T0 + 18}, {"started": T0 + 100, "ended": T0 + 118}])
    first, second = reader.read([story.write()])[0].start_ups
    assert (first.attempt, second.attempt) == (1, 2)
    assert (first.seconds, second.seconds) == (pytest.approx(9), pytest.approx(10))
    assert [(part.kind, round(part.nanoseconds / 1e9)) for part in second.parts] == [
        ("begin", 4), ("workers_start", 3), ("call", 2), ("between", 1),
    ]  # fmt: skip
