# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A gateway that is killed: what has spoken for itself is on the disk, what waits for a word is not."""

from collections import Counter

from tests.collector.tiers import fetch
from tests.collector.trajectories import group, is_kept
from verl_otel.prometheus_names import label_name


def test_a_killed_gateway_loses_only_what_nothing_spoke_for(start_tier, start_pipeline, run_trajectories, wait_for):
    """Killed while the trace store is away, the gateway has on its disk: the step, marked spans, and every trajectory that is kept."""
    store = start_tier("store", ["local.yaml", "traces-to-file.yaml"], run=False)
    tiers = start_pipeline(
        OTELCOL_TRACE_STORE=store.addresses["grpc"],
        OTELCOL_TRACE_PERCENT="2",
        OTELCOL_SLOW="3600s",
        OTELCOL_ROOT_WAIT="600s",
    )
    _, recorded = run_trajectories(tiers.agent.http_url, 400, 0.1)
    sent = sum(map(len, recorded.values()))
    wanted = {trace_id for trace_id, spans in recorded.items() if is_kept(trace_id, spans.values(), 3600, percent=2)}
    assert 20 < len(wanted) < 200
    wait_for(lambda: tiers.gateway.own("otelcol_receiver_accepted_spans") == sent, 30, 0.2)
    waiting = "otelcol_processor_tail_sampling_sampling_traces_on_memory"
    wait_for(lambda: tiers.gateway.own(waiting) == len(recorded) - len(wanted), 30, 0.2)
    tiers.gateway.kill()
    store.start()
    tiers.gateway.start()
    wait_for(lambda: len(store.spans()) >= sum(len(recorded[trace_id]) for trace_id in wanted), 120, 0.5)
    found = store.spans()
    assert group(found).keys() == wanted
    assert all(spans.keys() == recorded[trace_id].keys() for trace_id, spans in group(found).items())
    assert set(Counter(span_id for _, span_id, _ in found).values()) == {1}, "a span was sent twice"


def test_a_killed_agent_has_what_it_accepted(start_tier, start_pipeline, run_sender, run_trajectories, wait_for):
    """Killed while the gateway is away, the agent has every span and every point on its disk, and sends them when both are back."""
    tiers = start_pipeline("traces-to-file.yaml", OTELCOL_TRACE_PERCENT="100")
    tiers.gateway.kill()
    _, recorded = run_trajectories(tiers.agent.http_url, 100, 0.1)
    said = run_sender("send_catalogue", tiers.agent.http_url, "trainer", run_id="other").printed[-1]
    tiers.agent.kill()
    tiers.gateway.start()
    tiers.agent.start()
    sent = {span_id for spans in recorded.values() for span_id in spans}
    wait_for(lambda: sent <= {span_id for _, span_id, _ in tiers.gateway.spans()}, 60, 0.5)
    names = {label_name(each["name"]) for each in said}

    def has_metrics():
        page = fetch(f"http://{tiers.gateway.addresses['metrics']}/metrics")
        return all(f"\n{name}" in page for name in names)

    wait_for(has_metrics, 60, 0.5)
