# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a gateway needs for the trajectories of a large run that all wait for their roots, and for twice as many."""

import pytest

from tests.collector.flood import ATTRIBUTES, post
from tests.collector.load import SPANS, TRACES, make_traces, with_mark
from tests.collector.memory import resident_mib
from tests.collector.trajectories import group

IN_FLIGHT = 8192 // TRACES
"""Requests of trajectories that wait at once."""
ORPHANS = 50
"""Of every how manieth request no root ever comes: 2 %."""
NEW, WAITING, SAMPLED = (
    f"otelcol_processor_tail_sampling_{name}"
    for name in ("new_trace_id_received", "sampling_traces_on_memory", "global_count_traces_sampled")
)


@pytest.mark.pipeline
def test_the_memory_of_a_large_run(start_pipeline, wait_for, capsys):
    """8,192 trajectories of 30 spans wait at any moment, 2 % never end: memory levels off; of twice as many the oldest go, counted; marked ones are whole.

    Twenty minutes of a run pass in one: each trajectory ends when 8,192 others have begun after it.
    """
    tiers = start_pipeline(
        "traces-to-file.yaml", OTELCOL_TRACE_PERCENT="0", OTELCOL_WAITING_TRACES="12000", OTELCOL_ROOT_WAIT="1s"
    )
    first, roots = make_traces(range(SPANS, 1, -1)), make_traces((1,))
    marked = make_traces((1,), {**ATTRIBUTES, "verl.sampling.keep": True})
    own, begun = tiers.gateway.own, 0

    def begin(requests):
        nonlocal begun
        for _ in range(requests):
            begun += 1
            assert post(tiers.agent.http_url, with_mark(first, begun)) == 200
            if begun > IN_FLIGHT and (begun - IN_FLIGHT) % ORPHANS:
                assert post(tiers.agent.http_url, with_mark(roots, begun - IN_FLIGHT)) == 200
        wait_for(lambda: own(NEW) >= begun * TRACES, 120, 0.5)
        return resident_mib(tiers.gateway)

    empty = resident_mib(tiers.gateway)
    full = begin(IN_FLIGHT)
    later = [begin(IN_FLIGHT) for _ in range(3)]
    with capsys.disabled():
        print(f"MiB: empty {empty:.0f}, 8,192 waiting {full:.0f}, later {[round(each) for each in later]}", flush=True)
    assert max(later[1:]) < 1.3 * max(full, later[0])
    kept = range(begun - 9, begun + 1)
    for number in kept:
        assert post(tiers.agent.http_url, with_mark(marked, number)) == 200
    wait_for(lambda: own(SAMPLED, sampled="true") == len(kept) * TRACES, 60, 0.5)
    before = begun
    for number in range(before + 1, before + 1 + 2 * IN_FLIGHT):  # twice as many, none of which ends
        assert post(tiers.agent.http_url, with_mark(first, number)) == 200
    wait_for(lambda: own(NEW) >= (before + 2 * IN_FLIGHT) * TRACES, 120, 0.5)
    wait_for(lambda: own(WAITING) == 12000, 60, 0.5)
    sizes = [len(spans) for spans in group(tiers.gateway.spans()).values()]
    assert sizes == [SPANS] * TRACES * len(kept)
    with capsys.disabled():
        print(f"MiB with twice as many: {resident_mib(tiers.gateway):.0f}", flush=True)
    assert resident_mib(tiers.gateway) < 1.3 * max(full, *later)
