# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Encoded spans that wait."""

from hypothesis import given
from hypothesis import strategies as st

from verl_otel.exporting.otlp.exporter import REQUEST_BYTES, Part, SpanQueue

PARTS = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 512)), max_size=30)


def empty(queue):
    """Return the requests that a sender would make."""
    while queue:
        parts = queue.join()
        yield parts
        queue.remove(parts)


@given(PARTS, st.integers(1, 400))
def test_what_is_not_dropped_is_sent_once_and_in_order(parts, capacity):
    """The oldest make room; what is left comes out whole, in the order in which it came."""
    queue = SpanQueue(capacity)
    dropped = sum(queue.add(*part) for part in parts)
    sent = [part for request in empty(queue) for part in request]
    assert sent == parts[len(parts) - len(sent) :]
    assert dropped + sum(part.spans for part in sent) == sum(spans for _, spans in parts)
    assert sum(len(part.body) for part in sent) <= capacity


def test_a_request_has_a_fair_size():
    """Small parts are joined up to the size of a request; one that is larger goes alone."""
    queue = SpanQueue(100 * REQUEST_BYTES)
    for size in (REQUEST_BYTES // 2, REQUEST_BYTES // 2, 1, 2 * REQUEST_BYTES, 1):
        queue.add(b"x" * size, 1)
    assert [len(parts) for parts in empty(queue)] == [2, 1, 1, 1]


def test_what_was_refused_together_goes_one_by_one():
    """Each of them is sent alone; what comes after them is joined again."""
    queue = SpanQueue(1000)
    for _ in range(3):
        queue.add(b"bad", 1)
    queue.separate(queue.join())
    queue.add(b"later", 1)
    queue.add(b"later", 1)
    assert [len(parts) for parts in empty(queue)] == [1, 1, 1, 2]


def test_what_was_dropped_while_it_was_sent_is_not_taken_twice():
    """A full queue drops what is on its way; only what is still there is removed."""
    queue = SpanQueue(6)
    queue.add(b"aaa", 1)
    queue.add(b"bbb", 2)
    sent = queue.join()
    assert queue.add(b"ccc", 4) == 1
    queue.remove(sent)
    assert queue.join() == [Part(b"ccc", 4)]
    assert queue.clear() == 4
    assert not queue
