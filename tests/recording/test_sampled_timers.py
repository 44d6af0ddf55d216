# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Timed calls that are too many to be spans: a few are kept, all are measured."""

import asyncio
import itertools
import pickle

import pytest

import verl_otel
from tests.fakes.fold_locks import hold
from verl_otel._internal import error_boundary
from verl_otel.recording import collection, sampled_timers
from verl_otel.recording.api import timer_series
from verl_otel.recording.sampled_timers import MAX_FAILED, SLOWEST, SampledTimer, find_sampled_timer
from verl_otel.recording.sampling import POLICY
from verl_otel.recording.series import CEILING, CHUNK
from verl_otel.recording.span import current_span

_number = itertools.count()


@pytest.fixture
def name():
    """Return the name of a timer that nobody has used in this process."""
    return f"test.leaf.{next(_number)}"


@pytest.fixture
def leaf(recorded, name):
    """Return a leaf that has drawn its call, so that only the slowest are kept."""
    verl_otel.timed(name, span=True)
    made = find_sampled_timer(timer_series(name))
    made.record(0.0)
    made._drawn.clear()
    return made


def lengths(spans):
    return sorted(round(span.stop - span.start, 6) for span in spans)


def test_every_call_is_measured_and_the_drawn_one_is_a_span(recorded, name):
    """Each call of a function is in the histogram; the first one after a drain is a span, below the span around it."""

    @verl_otel.timed(name, span=True)
    def work(value):
        return value

    with verl_otel.span("around"):
        assert [work(value) for value in range(2 * CHUNK + 5)] == list(range(2 * CHUNK + 5))
    assert recorded.value(name) == 2 * CHUNK + 5
    around = recorded.span("around")
    kept = [span for span in recorded.spans if span.name == name]
    assert 1 <= len(kept) <= 1 + SLOWEST
    assert {(span.trace_id, span.parent_id) for span in kept} == {(around.trace_id, around.span_id)}
    assert all(around.start_ns <= span.start_ns <= span.end_ns <= around.end_ns for span in kept)


@pytest.mark.parametrize("order", [list(range(50)), list(range(49, -1, -1)), [7, 49, 3, 48, 47, 1, 46, 0, 5]])
def test_the_slowest_are_kept(leaf, order):
    """Of many calls the slowest are kept, in whatever order they come."""
    for seconds in order:
        leaf.record(seconds / 1000)
    assert lengths(leaf.take()) == [seconds / 1000 for seconds in sorted(order)[-SLOWEST:]]


def test_what_waits_is_bounded(leaf):
    """A name whose every call is slower than the one before, or fails, holds no more than a few spans."""
    for seconds in range(1000):
        leaf.record(seconds + 1.0)
        leaf.fail(1.0, ValueError())
    assert len(leaf._slowest) <= 4 * SLOWEST + 1
    assert len(leaf.take()) == SLOWEST + MAX_FAILED


def test_a_drain_begins_anew(recorded, name):
    """After each drain a call is drawn again, and what was slow before counts no more."""
    timer = verl_otel.timed(name, span=True)
    for _ in range(3):
        for _ in range(20):
            with timer:
                pass
        kept = [span for span in collection.collect().spans if span.name == name]
        assert 1 <= len(kept) <= 1 + SLOWEST


def test_failures_are_kept_with_their_error(recorded, name):
    """A call that fails is a failed span and is measured under its error; the exception passes."""

    @verl_otel.timed(name, span=True)
    def work(fail):
        if fail:
            raise KeyError

    work(fail=False)
    with pytest.raises(KeyError):
        work(fail=True)
    failed = [span for span in recorded.spans if span.attributes.get("error.type") == "KeyError"]
    assert len(failed) == 1
    assert recorded.value(name, error_type="KeyError") == 1


def test_a_generator_that_is_closed_early_has_not_failed(recorded, name):
    """A consumer that has had enough is no failure: such calls are measured, and the failed ones keep their room."""

    @verl_otel.timed(name, span=True)
    def produce(fail):
        if fail:
            raise KeyError
        yield from range(10)

    for _ in range(3 * MAX_FAILED):
        generator = produce(fail=False)
        next(generator)
        generator.close()
    with pytest.raises(KeyError):
        next(produce(fail=True))
    kept = [span for span in recorded.spans if span.name == name]
    assert len(kept) <= 1 + SLOWEST + 1
    assert [span.attributes.get("error.type") for span in kept].count("KeyError") == 1
    values = {point.labels: point.value.samples for point in recorded.points if point.instrument.name == name}
    assert values == {(): 3 * MAX_FAILED, (("error.type", "KeyError"),): 1}


def test_a_cancelled_call_takes_no_room_from_a_failed_one(leaf):
    """Cancelled calls are kept where failures leave room, and not instead of them."""
    for _ in range(3 * MAX_FAILED):
        leaf.fail(1.0, asyncio.CancelledError())
    leaf.fail(2.0, ValueError())
    kept = leaf.take()
    assert len(kept) == MAX_FAILED
    assert [span.error for span in kept].count("ValueError") == 1
    for _ in range(2 * MAX_FAILED):
        leaf.fail(2.0, ValueError())
        leaf.fail(1.0, asyncio.CancelledError())
    assert {span.error for span in leaf.take()} == {"ValueError"}


def test_a_leaf_is_never_current(recorded, name):
    """What opens inside a leaf lies beside it."""
    with verl_otel.span("around"), verl_otel.timed(name, span=True):
        assert current_span().name == "around"
        with verl_otel.span("inside"):
            pass
    around, inside, kept = (recorded.span(each) for each in ("around", "inside", name))
    assert inside.parent_id == kept.parent_id == around.span_id


def test_leaves_of_a_trace_that_is_not_kept_are_not_kept(recorded, name):
    """A leaf below a trajectory that the sampler dropped is measured and no span."""
    POLICY.ratio = 0.0
    with verl_otel.trajectory("u", 0), verl_otel.timed(name, span=True):
        pass
    assert recorded.value(name) == 1
    assert name not in {span.name for span in recorded.spans}


def test_kept_leaves_have_exemplars(recorded, name):
    """The histogram of a leaf leads to a call that was kept, and counts it once."""
    with verl_otel.timed(name, span=True):
        pass
    (span,) = recorded.spans
    (point,) = [point for point in recorded.points if point.instrument.name == name]
    assert [exemplar.span_id for exemplar in point.exemplars] == [span.span_id]
    assert point.value.samples == 1


def test_a_full_buffer_is_folded_or_counted(leaf):
    """A leaf whose buffer is full folds it as any histogram does; what is dropped while others fold is counted."""
    with hold(leaf.series.lock):
        for _ in range(CEILING + 10):
            leaf.record(0.0)
    assert len(leaf.buffer) == CEILING
    assert sum(leaf.series.dropped.values()) == 11  # and the one of the fixture


def test_one_name_is_one_leaf_here_and_where_it_arrives(leaf, name):
    """Timers of one name share one leaf, and a pickled one is that of the process that it arrives in."""
    assert verl_otel.timed(name, span=True)._measured is leaf
    arrived = pickle.loads(pickle.dumps(leaf))
    assert isinstance(arrived, SampledTimer)
    assert arrived is leaf


def test_what_is_forgotten_is_taken_by_nobody(leaf):
    """After a fork the kept calls are the parent's to report."""
    leaf.record(9.0)
    sampled_timers._clear()
    assert leaf.take() == []


def test_timers_with_spans_are_bounded(recorded, name, monkeypatch, caplog):
    """Beyond a number of names a timer is measured and keeps no spans, which is said once; those before go on."""
    monkeypatch.setattr(sampled_timers, "MAX_TIMERS", len(sampled_timers._sampled_timers) + 1)
    error_boundary.reset()
    for number in (0, 1, 2, 1, 0):
        with verl_otel.timed(f"{name}.{number}", span=True):
            pass
    assert [recorded.value(f"{name}.{number}") for number in range(3)] == [2, 2, 1]
    assert {span.name for span in recorded.spans} == {f"{name}.0"}
    assert len(caplog.records) == 1
