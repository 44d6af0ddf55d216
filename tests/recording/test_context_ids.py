# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import random

import pytest

from verl_otel.recording import context

SEEDED = """
    import random
    random.seed(42)
    from verl_otel.recording import context
    random.seed(42)
    print(context.make_trace_id(), context.make_span_id(), context.draw())
"""


@pytest.mark.full
def test_two_processes_with_one_seed_have_different_ids(run_python):
    """Two processes that seed `random` with the same number make different trace ids, span ids and draws."""
    first, second = run_python(SEEDED).split(), run_python(SEEDED).split()
    assert not set(first) & set(second)


def test_ids_do_not_use_up_the_users_random_numbers():
    """A seeded run draws the same numbers with and without ids in between."""
    random.seed(7)
    expected = [random.random() for _ in range(3)]
    random.seed(7)
    drawn = []
    for _ in range(3):
        context.make_trace_id(), context.make_span_id(), context.draw()
        drawn.append(random.random())
    assert drawn == expected


@pytest.mark.parametrize("make", [context.make_trace_id, context.make_span_id])
def test_an_id_is_never_zero(monkeypatch, make):
    """An id is not 0 even when the generator says 0: OpenTelemetry takes that for no id."""
    monkeypatch.setattr(context, "_bits", lambda _: 0)
    assert make() == 1


def test_ids_fill_their_width_and_do_not_repeat():
    """Trace ids use 128 bits, span ids 64, and 10,000 of them are distinct."""
    traces = {context.make_trace_id() for _ in range(10_000)}
    spans = {context.make_span_id() for _ in range(10_000)}
    assert len(traces) == len(spans) == 10_000
    assert 1 << 120 < max(traces) < 1 << 128
    assert 1 << 60 < max(spans) < 1 << 64
