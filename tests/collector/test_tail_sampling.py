# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which trajectories the gateway keeps: those that failed, were slow or marked, and the drawn share; each whole, each span once."""

from collections import Counter

from tests.collector.trajectories import group, is_kept

SLOW_SECONDS = 8
"""Longer than a batch of the others takes on a busy machine."""
PERCENT = 10


def test_exactly_the_right_trajectories_are_kept_whole(start_pipeline, run_trajectories, wait_for):
    """Of 2,000 trajectories from 3 processes, whose roots arrive last, those that are failed, slow, marked or drawn are kept, with every span; and the step."""
    tiers = start_pipeline(
        "traces-to-file.yaml", OTELCOL_TRACE_PERCENT=PERCENT, OTELCOL_SLOW=f"{SLOW_SECONDS}s", OTELCOL_ROOT_WAIT="2s"
    )
    kinds, recorded = run_trajectories(tiers.agent.http_url, 2000, SLOW_SECONDS)
    sizes = Counter(len(spans) for spans in recorded.values())
    assert sizes == {6: 2000, 2: 1}, "what the test sends is not whole: trajectories of 6 spans, and a step"
    wanted = {
        trace_id for trace_id, spans in recorded.items() if is_kept(trace_id, spans.values(), SLOW_SECONDS, PERCENT)
    }
    assert {*kinds["failed"], *kinds["marked"], *kinds["slow"]} <= wanted
    assert 200 < len(wanted) < 1000, "nearly everything or nearly nothing is kept: this would test nothing"

    def whole():
        return len(tiers.gateway.spans()) >= sum(len(recorded[trace_id]) for trace_id in wanted)

    def nobody_waits():
        return tiers.gateway.own("otelcol_processor_tail_sampling_sampling_traces_on_memory") == 0

    wait_for(whole, 60)
    wait_for(nobody_waits, 60, 0.5)
    found = tiers.gateway.spans()
    assert group(found).keys() == wanted
    for trace_id, spans in group(found).items():
        assert spans.keys() == recorded[trace_id].keys(), trace_id
    assert set(Counter(span_id for _, span_id, _ in found).values()) == {1}, "a span was sent twice"
