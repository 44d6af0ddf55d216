# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Records to export: builders with defaults, and Hypothesis strategies for anything that a record may hold."""

import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from verl_otel.model import (
    NONE_DROPPED,
    REMOTE,
    SAMPLED,
    Batch,
    EventRecord,
    Exemplar,
    HistogramValue,
    Instrument,
    LinkRecord,
    OpenSpan,
    Point,
    Resource,
    Scope,
    SharedAttributes,
    SpanRecord,
)

steady = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
"""Decorates property tests: no deadline, because others may use the machine."""

RESOURCE = Resource({"service.name": "verl", "verl.role": "trainer", "host.name": "node-1", "verl.rank": 3})
SCOPE = Scope("verl_otel", "1.2.3", "urn:test:1")
NOW = 1_800_000_000_000_000_000


def make_span(number=1, **fields):
    """Return an ended root span whose id is ``number``."""
    span = SpanRecord(
        number << 64 | 7, number, 0, f"span {number}", 1, NOW, NOW + 10**9, {}, (), (), 0, "", SAMPLED, ""
    )
    return span._replace(**fields)


def make_batch(*numbers, **fields):
    """Return a batch of spans by their numbers."""
    return Batch(NOW, tuple(make_span(number) for number in numbers))._replace(**fields)


def make_open(number=1, age=2.0):
    """Return a span that has not ended."""
    return OpenSpan(make_span(number, end_ns=0), time.perf_counter() - age, "verl.phase.gen", "step")


def make_point(name="verl.test", kind="gauge", value=1.0, unit="", labels=(), description="A test.", exemplars=()):
    """Return one point."""
    return Point(Instrument(name, kind, unit, description), tuple(labels), NOW - 10**9, NOW, value, tuple(exemplars))


def make_histogram(*values, bounds=(0.1, 1.0, 10.0)):
    """Return the histogram of some values."""
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[sum(value > bound for bound in bounds)] += 1
    low, high = (min(values), max(values)) if values else (float("inf"), float("-inf"))
    return HistogramValue(len(values), float(sum(values)), low, high, tuple(bounds), tuple(counts))


def plain(value):
    """Return what OTLP can hold of a value: no lone surrogates, integers of 64 bits or else text."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < 1 << 63 else str(value)
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def plain_mapping(attributes):
    return {plain(key): plain(value) for key, value in attributes.items()}


EDGES = st.sampled_from([0, 1, -1, (1 << 63) - 1, -(1 << 63)])
broken = st.lists(st.one_of(st.characters(), st.characters(categories=["Cs"])), max_size=6).map("".join)
"""Text with lone surrogates (`st.text` draws hardly any of them)."""
texts = st.one_of(st.text(max_size=8), broken)
valid_texts = st.text(max_size=8)
any_integers = st.one_of(st.integers(), EDGES, st.sampled_from([1 << 63, -(1 << 63) - 1, 1 << 64]))
integers64 = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), EDGES)
times = st.integers(0, (1 << 64) - 1)
trace_ids, span_ids = st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1)
trace_states = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True),
    st.from_regex(r"[a-zA-Z0-9:.]{1,8}", fullmatch=True),
    max_size=3,
).map(lambda pairs: ",".join(f"{key}={value}" for key, value in pairs.items()))


def attributes(integers=any_integers, keys=texts):
    """Attributes whose keys stay distinct when they have become plain."""
    primitives = (texts, st.booleans(), integers, st.floats())
    values = st.one_of(*primitives, *(st.lists(kind, max_size=3).map(tuple) for kind in primitives))
    pairs = st.lists(st.tuples(keys, values), max_size=3, unique_by=lambda pair: plain(pair[0]))
    return pairs.map(dict)


few = st.one_of(st.just(0), st.integers(0, (1 << 32) - 1))
none_dropped = st.just(NONE_DROPPED)


def spans(integers=any_integers, event_names=texts, link_flags=(0, REMOTE), link_states=trace_states):
    """Any span that the recorder or the user's SDK can hand over."""
    mine = attributes(integers)
    links = st.builds(LinkRecord, trace_ids, span_ids, mine, link_states, st.sampled_from(link_flags), few)
    events = st.builds(EventRecord, event_names, times, mine, few)
    dropped = st.one_of(none_dropped, st.tuples(few, few, few))
    scopes = st.sampled_from([None, SCOPE, Scope("mine"), Scope("yours", "2"), Scope("theirs", "", "urn:theirs")])
    made = st.builds(
        SpanRecord,
        trace_ids,
        span_ids,
        st.one_of(st.just(0), span_ids),
        texts,
        st.integers(1, 5),
        times,
        times,
        st.one_of(mine, mine.map(SharedAttributes)),
        st.lists(links, max_size=2).map(tuple),
        st.lists(events, max_size=2).map(tuple),
        st.integers(0, 2),
        texts,
        st.sampled_from([SAMPLED, SAMPLED | REMOTE]),
        trace_states,
        scopes,
        dropped,
    )
    return made.map(_consistent)


def _consistent(span):
    """Only an error has a message, and only a child has a remote parent: the SDK's spans know nothing else."""
    message = span.message if span.status == 2 else ""
    return span._replace(message=message, flags=span.flags if span.parent_id else SAMPLED)


exemplars = st.builds(Exemplar, st.floats(allow_nan=False, allow_infinity=False), times, trace_ids, span_ids)
labels = st.lists(st.tuples(texts, texts), max_size=3, unique_by=lambda pair: plain(pair[0])).map(tuple)
resources = attributes(integers64, texts.filter(bool)).map(Resource)


@st.composite
def histogram_values(draw):
    bounds = tuple(sorted(draw(st.sets(st.floats(allow_nan=False, allow_infinity=False), max_size=4))))
    counts = tuple(draw(st.lists(st.integers(0, 1 << 40), min_size=len(bounds) + 1, max_size=len(bounds) + 1)))
    samples = max(1, sum(counts))
    low, high = sorted((draw(st.floats(allow_nan=False)), draw(st.floats(allow_nan=False))))
    return HistogramValue(samples, draw(st.floats()), low, high, bounds, counts)


@st.composite
def metrics(draw):
    """Points of several instruments, each with several label sets."""
    found = []
    names = draw(st.lists(valid_texts, max_size=4, unique=True))
    for name in names:
        kind = draw(st.sampled_from(["histogram", "counter", "updown", "gauge"]))
        instrument = Instrument(name, kind, draw(valid_texts), draw(valid_texts))
        for mine in draw(st.lists(labels, min_size=1, max_size=2, unique=True)):
            histogram = kind == "histogram"
            value = draw(
                histogram_values() if histogram else st.one_of(st.floats(), st.integers(-(1 << 63) + 1, (1 << 63) - 1))
            )
            kept = tuple(draw(st.lists(exemplars, max_size=2))) if histogram else ()
            found.append(Point(instrument, mine, draw(times), draw(times), value, kept))
    return found
