# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""More trajectories than may wait: the oldest that nothing spoke for go, counted; marked ones are out of reach by then."""

import random

from tests.collector.flood import ATTRIBUTES, make_request, post
from tests.collector.trajectories import group

MARKED = {**ATTRIBUTES, "verl.sampling.keep": True}


def test_the_oldest_unmarked_traces_go_first_and_are_counted(start_tier, wait_for):
    """With room for 1,000 and 1,900 that wait, the 900 oldest are dropped; what was marked before is whole; the count is exact."""
    tier = start_tier(
        "local", ["local.yaml", "traces-to-file.yaml"], OTELCOL_TRACE_PERCENT="0", OTELCOL_WAITING_TRACES="1000"
    )
    draw = random.Random(7)
    ids = [draw.getrandbits(128) for _ in range(2000)]
    marked, oldest, young = ids[:100], ids[100:1000], ids[1000:]

    def send(chosen, number, **words):
        for first in range(0, len(chosen), 250):
            assert post(tier.http_url, make_request(chosen[first : first + 250], number, **words)) == 200

    send(ids[:1000], 2)
    send(marked, 1, root=True, attributes=MARKED)
    send(young, 2)
    send(young, 1, root=True, attributes=MARKED)
    send(oldest, 1, root=True, attributes=MARKED)
    wait_for(lambda: len(tier.spans()) >= 2 * 100 + 900 + 2 * 1000, 30)
    sizes = {int(trace_id, 16): len(spans) for trace_id, spans in group(tier.spans()).items()}
    assert {sizes[each] for each in marked} == {2}
    assert {sizes[each] for each in oldest} == {1}, "the spans that had waited are gone, the marked root is there"
    assert {sizes[each] for each in young} == {2}

    def dropped():
        name = "otelcol_processor_tail_sampling"
        waiting = tier.own(f"{name}_sampling_traces_on_memory")
        return (
            tier.own(f"{name}_new_trace_id_received") - tier.own(f"{name}_global_count_traces_sampled") - waiting == 900
        )

    wait_for(dropped, 10, 0.3)
