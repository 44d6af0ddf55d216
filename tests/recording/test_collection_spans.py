# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From ended spans to records: many at once, each with the ids that anybody else sees of it."""

import contextlib
import logging
import threading

import pytest

import verl_otel
from verl_otel.model import RANDOM, SAMPLED, SharedAttributes, SpanRecord
from verl_otel.recording import collection
from verl_otel.recording import span as span_module
from verl_otel.recording.collection import collect
from verl_otel.recording.sampling import POLICY
from verl_otel.testing import capture


@pytest.fixture
def no_exemplars():
    """Ask for no exemplars."""
    POLICY.exemplars = False
    yield
    POLICY.exemplars = True


@pytest.mark.parametrize(
    "number", [1, collection.AT_ONCE - 1, collection.AT_ONCE, collection.AT_ONCE + 1, 5 * collection.AT_ONCE]
)
def test_every_span_of_a_batch_has_its_own_id(recorded, number):
    """However many spans end below one, each is recorded once, below it, in its trace, under an id of its own."""
    with verl_otel.step(1) as step:
        for _ in range(number):
            with verl_otel.span("work"):
                pass
        batch = collect().spans
    ids = step.resolve()
    assert len({span.span_id for span in batch}) == len(batch) == number
    assert {(span.trace_id, span.parent_id, span.trace_state) for span in batch} == {
        (ids.trace_id, ids.span_id, "verl=s")
    }
    assert all(type(span) is SpanRecord and len(span) == len(SpanRecord._fields) for span in batch)


def test_ids_that_are_asked_for_later_are_those_that_were_sent(recorded):
    """Who keeps a span and asks for its ids after it was drained gets those under which it was recorded; so does a late child."""
    with verl_otel.step(1), verl_otel.span("kept") as kept:
        pass
    before = {span.name: span for span in collect().spans}["kept"]
    context = kept.get_span_context()
    assert (context.trace_id, context.span_id, context.trace_flags) == (
        before.trace_id,
        before.span_id,
        SAMPLED | RANDOM,
    )
    assert kept.resolve().parent_id == before.parent_id
    assert (kept.start_ns, kept.end_ns) == (before.start_ns, before.end_ns)


def test_a_span_that_was_not_kept_has_an_id_when_it_is_asked(recorded, monkeypatch):
    """In the trace of its trajectory, not sampled, and the same each time; a child that ends later is below it."""
    monkeypatch.setattr(POLICY, "ratio", 0.0)
    with verl_otel.trajectory("prompt", 0) as trajectory:
        with verl_otel.turn(0) as turn:
            late = verl_otel.tool("python")
            late.__enter__()
        collect()
        late.close()
    collect()
    context = turn.get_span_context()
    assert context.is_valid
    assert not context.trace_flags & SAMPLED
    assert context.trace_id == trajectory.resolve().trace_id
    assert turn.resolve().span_id == context.span_id == late.resolve().parent_id


def test_a_child_that_outlives_its_parent_leads_to_it(recorded):
    """A span that ends in another drain than the one around it has that one's recorded id as its parent."""
    outer = verl_otel.span("outer").__enter__()
    inner = verl_otel.span("inner").__enter__()
    outer.end()
    (parent,) = collect().spans
    inner.close()
    outer.close()
    (child,) = collect().spans
    assert (child.name, child.parent_id, child.trace_id) == ("inner", parent.span_id, parent.trace_id)


def test_ids_are_the_same_for_all_who_ask_while_a_drain_works(fast_switching):
    """Threads that ask for the ids of spans which are just being drained see what is recorded, whoever was first."""
    with capture() as captured:
        for _ in range(20):
            made, seen = [], {}
            with verl_otel.step(1):
                for _ in range(3 * collection.AT_ONCE):
                    with verl_otel.span("work") as span:
                        made.append(span)

                def ask(made=made, seen=seen):
                    for span in made:
                        seen[span] = span.get_span_context().span_id

                asker = threading.Thread(target=ask)
                asker.start()
                captured.refresh()
                asker.join()
            recorded_ids = {span.span_id for span in captured.spans if span.name == "work"}
            assert set(seen.values()) <= recorded_ids
            assert len(set(seen.values())) == len(made)


def test_spans_of_one_place_share_their_attributes(recorded):
    """Calls of which nothing was said hold the attributes of their place as one object; what is said of one is its own."""

    @verl_otel.tool("python")
    def call(said=False):
        if said:
            inner = verl_otel.recording.span.current_span()
            inner.set_attribute("said", True)

    call(), call(), call(said=True)
    first, second, third = collect().spans
    assert type(first.attributes) is SharedAttributes
    assert first.attributes is second.attributes
    assert third.attributes == {**first.attributes, "said": True}
    assert "said" not in first.attributes


def test_the_usual_labels_do_not_stick(recorded):
    """A place whose calls differ in a label is measured under the label of each call, in whatever order they come."""

    @verl_otel.reward
    def score(source):
        verl_otel.recording.span.current_span().set_attribute("verl.data.source", source)
        return 1.0

    @verl_otel.tool("python")
    def fail(error):
        if error:
            raise ValueError

    for source in ("math", "code", "math"):
        score(source)
    for error in (False, True, False):
        with contextlib.suppress(ValueError):
            fail(error)
    assert recorded.value("verl.reward.duration", verl_data_source="math") == 2
    assert recorded.value("verl.reward.duration", verl_data_source="code") == 1
    tools = {
        dict(point.labels).get("error.type"): point.value.samples
        for point in recorded.points
        if "tool" in point.instrument.name
    }
    assert tools == {None: 2, "ValueError": 1}


def test_a_failure_is_reported_after_the_lock(recorded, swallow, monkeypatch):
    """A handler of the user's may ask for ids, or wait for a thread that does, while it is told that a decision failed."""
    free = []

    class Handler(logging.Handler):
        def emit(self, record):
            def ask():
                free.append(span_module._ids_lock.acquire(timeout=5))
                span_module._ids_lock.release()

            asking = threading.Thread(target=ask)
            asking.start()
            asking.join()

    def decide(span, trace_id):
        raise RuntimeError("broken")

    with verl_otel.step(1):
        pass
    monkeypatch.setattr(POLICY, "decide", decide)
    handler = Handler()
    logging.getLogger("verl_otel").addHandler(handler)
    try:
        assert not collect().spans
    finally:
        logging.getLogger("verl_otel").removeHandler(handler)
    assert free
    assert all(free)


def test_exemplars_can_be_switched_off(recorded, no_exemplars):
    """Without exemplars histograms count as ever and lead to no trace."""
    with verl_otel.tool("python"):
        pass
    (point,) = recorded.points
    assert (point.value.samples, point.exemplars) == (1, ())
