# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which trajectories are marked for whoever samples traces: the few that somebody will want to look at."""

import asyncio
import random

import pytest

import verl_otel
from verl_otel.recording import sampling
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.sampling import MARKS
from verl_otel.recording.span import Span
from verl_otel.semconv import attributes as attr


@pytest.fixture(autouse=True)
def fresh():
    """Begin with nothing seen."""
    MARKS.clear()
    yield
    MARKS.clear()


def reason(seconds, step=1, **values):
    """Return why a trajectory with these attributes is marked; names with ``__`` for dots."""
    span = Span(CallSite("trajectory"), {attr.STEP_NUMBER: step})
    for name, value in values.items():
        span.set_attribute(name.replace("__", "."), value)
    MARKS.mark(span, seconds)
    assert bool(span.attributes.get(attr.SAMPLING_KEEP)) == (attr.SAMPLING_REASON in span.attributes)
    return span.attributes.get(attr.SAMPLING_REASON)


def test_the_slowest_of_its_step_so_far_is_marked():
    """Each new slowest one is, in every step anew; the others are not."""
    assert [reason(each) for each in (3, 1, 2, 4, 4, 3.5)] == ["slowest", None, None, "slowest", None, None]
    assert reason(1, step=2) == "slowest"
    assert reason(5, step=1) == "slowest"


def ended(step, start, seconds):
    """Return a trajectory that ran for so many seconds."""
    span = Span(CallSite("trajectory"), {attr.STEP_NUMBER: step})
    span.start, span.stop = start, start + seconds
    return span


@pytest.mark.full
@pytest.mark.parametrize("drains", [1, 7, 300])
def test_trajectories_that_begin_together_have_few_marks(monkeypatch, drains):
    """1,536 trajectories of a step end in the order of their duration: the slowest is marked, and hardly any other, however often is drained."""
    source = random.Random(5)
    spans = [ended(1, 1000 + source.uniform(0, 0.2), source.expovariate(0.1)) for _ in range(1536)]
    spans.sort(key=lambda span: span.stop)
    slowest = max(spans, key=lambda span: span.stop - span.start)
    marked = []
    for number in range(drains):
        batch = spans[number * 1536 // drains : (number + 1) * 1536 // drains]
        now = batch[-1].stop + 0.01
        monkeypatch.setattr(sampling, "clock", lambda now=now: now)
        opened = sorted((ended(1, span.start, 0) for span in spans if span.stop > now), key=lambda span: span.start)
        for span in opened:
            span.stop = 0.0
        late = [span for span in spans if batch[-1].stop < span.stop <= now]
        MARKS.look_ahead(batch, sorted([*opened, *late], key=lambda span: span.start))
        for span in batch:
            MARKS.mark(span, span.stop - span.start)
        marked += [span for span in batch if attr.SAMPLING_REASON in span.attributes]
    assert slowest in marked
    assert len(marked) <= 2 * sampling.PER_STEP


def test_steps_are_judged_apart(recorded):
    """A drain in which several steps and a validation end marks the slowest of each, whatever is open of others."""
    waiting = verl_otel.trajectory("open", 0, step=9)
    waiting.__enter__()
    for step in (1, 2):
        for validate in (False, True):
            for index in range(5):
                with verl_otel.trajectory(f"{index}", 0, step=step, validate=validate):
                    for _ in range(2000 * (index == 3)):
                        pass
    groups = {}
    for span in recorded.spans:
        groups.setdefault((span.attributes[attr.STEP_NUMBER], span.attributes[attr.VALIDATE]), []).append(span)
    waiting.__exit__(None, None, None)
    assert len(groups) == 4
    for group in groups.values():
        slowest = max(group, key=lambda span: span.end_ns - span.start_ns)
        assert [span for span in group if span.attributes.get(attr.SAMPLING_REASON) == "slowest"] == [slowest]


def test_what_a_histogram_shows_is_marked(recorded):
    """Of 500 trajectories each that an exemplar leads to has a mark; marks for this are as few as buckets, and the top one is the slowest."""
    for index in range(500):
        with verl_otel.trajectory(f"{index}", 0, step=1):
            for _ in range(index):
                pass
        if index % 50 == 0:
            assert recorded.spans  # a drain
    marked = {span.span_id: span.attributes.get(attr.SAMPLING_REASON) for span in recorded.spans}
    (point,) = [each for each in recorded.points if each.instrument.name == "verl.rollout.trajectory.duration"]
    assert point.exemplars
    assert {marked[each.span_id] for each in point.exemplars} <= {"exemplar", "slowest"}
    assert list(marked.values()).count("exemplar") <= sampling.SHOWN_PER_STEP
    slowest = max(recorded.spans, key=lambda span: span.end_ns - span.start_ns)
    assert max(point.exemplars, key=lambda each: each.value).span_id == slowest.span_id


def test_marks_for_exemplars_are_bounded():
    """A step whose buckets need new exemplars again and again does not have each of its trajectories kept; what is marked is shown."""
    spans = [ended(1, 0, 1) for _ in range(100)]
    assert [MARKS.allows_exemplar(span, needed=True) for span in spans] == [True] * sampling.SHOWN_PER_STEP + [
        False
    ] * 84
    assert MARKS.allows_exemplar(spans[0], needed=False)
    assert not MARKS.allows_exemplar(ended(2, 0, 1), needed=False)
    assert MARKS.allows_exemplar(ended(2, 0, 1), needed=True)


PARTS = ("verl.rollout.turn.duration", "verl.tool.call.duration", "gen_ai.client.inference.duration")


@pytest.mark.parametrize("drains", ["often", "once"])
def test_what_histograms_of_turns_tools_and_calls_show_is_kept(recorded, drains):
    """Each exemplar leads to a trajectory that is marked, and few are marked for that."""
    for index in range(300):
        with verl_otel.trajectory(f"{index}", 0, step=1), verl_otel.turn(0):
            with verl_otel.llm("model"):
                sum(range(index * 10))
            with verl_otel.tool("python"):
                sum(range(index * 20))
            if drains == "often" and index % 25 == 0:
                assert recorded.spans is not None  # a drain, with the trajectory open
    trajectories = [span for span in recorded.spans if span.name == "verl.trajectory"]
    kept = {span.trace_id for span in trajectories if span.attributes.get(attr.SAMPLING_KEEP)}
    shown = {name: [] for name in PARTS}
    for point in recorded.points:
        if point.instrument.name in shown:
            shown[point.instrument.name] += point.exemplars
    assert all(shown.values())
    assert {exemplar.trace_id for exemplars in shown.values() for exemplar in exemplars} <= kept
    assert len(kept) <= 2 * sampling.SHOWN_PER_STEP + sum(
        span.attributes.get(attr.SAMPLING_REASON) == "slowest" for span in trajectories
    )


def test_a_part_that_ends_after_its_trajectory_shows_nothing():
    """That one is written and can no longer be marked. One that has a mark already may be shown."""
    trajectory, part = ended(1, 0, 5), Span(CallSite("tool"))
    part.outer, part.start, part.stop = trajectory, 1.0, 6.0
    assert not MARKS.allows_exemplar(part, needed=True)
    part.stop = 4.0
    assert not MARKS.allows_exemplar(part, needed=False)
    assert attr.SAMPLING_KEEP not in trajectory.attributes
    assert MARKS.allows_exemplar(part, needed=True)
    assert trajectory.attributes[attr.SAMPLING_REASON] == "exemplar"
    part.stop = 6.0
    assert MARKS.allows_exemplar(part, needed=False)


@pytest.mark.parametrize(
    ("error", "expected"), [(ValueError(), "failure"), (TimeoutError(), "timeout"), (asyncio.TimeoutError(), "timeout")]
)
def test_what_failed_is_marked(recorded, error, expected):
    """A trajectory that raised has a mark, whatever its duration."""
    with verl_otel.trajectory("a", 0):
        pass
    with pytest.raises(type(error)), verl_otel.trajectory("b", 0):
        raise error
    spans = {span.attributes[attr.SAMPLE_UID]: span.attributes for span in recorded.spans}
    assert spans["b"][attr.SAMPLING_KEEP] is True
    assert spans["b"][attr.SAMPLING_REASON] == expected


def test_what_was_cancelled_is_not_marked(recorded):
    """A cancellation is no failure."""
    with verl_otel.trajectory("slowest", 0):
        for _ in range(20000):
            pass
    with pytest.raises(asyncio.CancelledError), verl_otel.trajectory("b", 0):
        raise asyncio.CancelledError
    (span,) = [span for span in recorded.spans if span.attributes[attr.SAMPLE_UID] == "b"]
    assert attr.SAMPLING_KEEP not in span.attributes


def test_a_score_out_of_line_is_marked_a_few_times_a_step():
    """A score far from those before it is; scores in line are not, and a step has no more than a handful of these marks."""
    assert reason(100) == "slowest"
    source = random.Random(3)
    assert not any(reason(1, verl__reward__score=source.uniform(0, 1)) for _ in range(200))
    assert [reason(1, verl__reward__score=50.0 * 4**each) for each in range(6)].count("reward") == sampling.PER_STEP
    assert reason(1, step=2) == "slowest"
    assert reason(1, step=2, verl__reward__score=-1e7) == "reward"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), "text"])
def test_odd_scores_do_no_harm(score):
    """What is no finite number is no outlier, and spoils nothing for those that follow."""
    assert reason(100) == "slowest"
    for _ in range(50):
        assert reason(1, verl__reward__score=score) is None
    for each in range(60):
        assert reason(1, verl__reward__score=each % 2) is None


def test_a_cut_response_is_marked_a_few_times_a_step():
    """Early in training most responses are cut: some of them are enough."""
    assert reason(100) == "slowest"
    cut = [reason(1, gen_ai__response__finish_reasons=("length",)) for _ in range(50)]
    assert cut.count("truncated") == sampling.PER_STEP
    assert reason(1, gen_ai__response__finish_reasons=("stop",)) is None


def test_memory_is_bounded():
    """Steps and data sources without end are forgotten."""
    for step in range(1000):
        reason(1, step=step, verl__data__source=str(step), verl__reward__score=1.0)
    assert len(MARKS.steps) <= sampling.MAX_STEPS + 1
    assert len(MARKS.scores) <= sampling.MAX_STEPS + 1
