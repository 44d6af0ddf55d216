# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import itertools
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

import verl_otel
from verl_otel._internal import process_state
from verl_otel.model import RANDOM, SAMPLED
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.sampling import MAX_STEPS, POLICY
from verl_otel.recording.span import Span

_steps = itertools.count(1_000_000)


@pytest.fixture
def step():
    """Return the number of a step that no test has used: the policy counts by step."""
    return next(_steps)


def trajectories(number, step=None):
    for index in range(number):
        with verl_otel.trajectory(f"uid-{index}", index, step=step), verl_otel.turn(0):
            pass


def sampled(captured):
    """Return how many trajectories were kept whole."""
    return sum(span.flags & SAMPLED for span in captured.spans if span.name == "verl.trajectory")


@given(st.floats(0, 1), st.integers(0, (1 << 128) - 1))
@settings(deadline=None, max_examples=200, database=None)
def test_the_decision_is_that_of_opentelemetrys_sampler(ratio, trace_id):
    """For any ratio and trace id the decision is that of `TraceIdRatioBased`, so that all processes agree."""
    expected = TraceIdRatioBased(ratio).should_sample(None, trace_id, "verl.trajectory").decision.is_sampled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(POLICY, "ratio", ratio)
        assert POLICY.decide(Span(CallSite("trajectory")), trace_id) == (SAMPLED | RANDOM if expected else RANDOM)


def test_an_unsampled_trajectory_takes_everything_below_with_it(recorded):
    """Below a trajectory that is not kept nothing is kept, at any depth; the metrics are complete."""
    POLICY.ratio = 0.0
    with verl_otel.trajectory("uid"), verl_otel.turn(0), verl_otel.llm("qwen"), verl_otel.tool("python"):
        pass
    (root,) = recorded.spans
    assert (root.name, root.flags, root.parent_id) == ("verl.trajectory", RANDOM, 0)
    for metric in ("verl.rollout.turn.duration", "gen_ai.client.inference.duration", "verl.tool.call.duration"):
        assert recorded.value(metric) == 1
    assert all(point.exemplars == () for point in recorded.points)


def test_step_traces_are_always_kept(recorded):
    """Steps, validations and what is in them are kept whatever the ratio for trajectories."""
    POLICY.ratio = 0.0
    with verl_otel.step(1), verl_otel.phase("gen"):
        pass
    with Span(CallSite("validation", hook=True)):
        pass
    with verl_otel.tool("alone"):
        pass
    assert len(recorded.spans) == 4
    assert all(span.flags & SAMPLED for span in recorded.spans)


def test_above_the_number_a_share_is_kept_whole(recorded, step):
    """Above the number that is kept in any case a share of the trajectories is kept whole."""
    POLICY.whole_per_step, POLICY.share_above = 100, 0.25
    trajectories(2100, step)
    assert 100 + 400 <= sampled(recorded) <= 100 + 600


def test_the_ratio_holds_below_the_number_too(recorded, step):
    """What the ratio leaves out is not kept by the number per step."""
    POLICY.ratio, POLICY.whole_per_step = 0.0, 10
    trajectories(5, step)
    assert sampled(recorded) == 0


def test_the_number_per_step_holds_for_steps_that_overlap(recorded, step):
    """With trajectories of two steps in turn, as in asynchronous training, the number holds for each step."""
    POLICY.whole_per_step, POLICY.share_above = 5, 0.0
    for _ in range(50):
        trajectories(1, step)
        trajectories(1, step + 1_000_000)
    assert sampled(recorded) == 10


def test_the_number_holds_for_each_step_of_an_own_loop(recorded):
    """Its trajectories have no number of a step: they are those of the step in which they begin."""
    POLICY.whole_per_step, POLICY.share_above = 5, 0.0
    for number in range(2):
        with verl_otel.step(number):
            for index in range(10):
                with verl_otel.trajectory(f"p{index}"):
                    pass
    assert sampled(recorded) == 10


def test_a_validation_has_a_number_of_its_own(recorded, step):
    """It trains nothing, and takes nothing away from the trajectories that the same step trains on, nor they from it."""
    POLICY.whole_per_step, POLICY.share_above = 4, 0.0
    trajectories(4, step)
    for _ in range(6):
        with Span(CallSite("trajectory"), {"verl.step.number": step, "verl.validate": True}):
            pass
    assert sampled(recorded) == 4 + 4


def test_a_session_counts_its_steps_anew(recorded, step):
    """The trajectories of a step of the session before do not use up the number of the next one."""
    POLICY.whole_per_step, POLICY.share_above = 3, 0.0
    trajectories(5, step)
    assert sampled(recorded) == 3
    process_state.clear_records()
    trajectories(5, step)
    assert sampled(recorded) == 6


def test_many_threads_may_count_at_once(recorded, fast_switching, step):
    """Threads that begin trajectories of ever new steps do not disturb each other, and few steps are remembered."""
    POLICY.whole_per_step = 1
    failures = []

    def work(first):
        try:
            for number in range(first, first + 3000):
                POLICY.decide(Span(CallSite("trajectory"), {"verl.step.number": number}), 1)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(step + index * 10_000,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(POLICY._counts) <= MAX_STEPS + len(threads)
