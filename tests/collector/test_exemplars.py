# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From a slow bucket to the trace: exemplars that Prometheus answers with, and the traces that the gateway has kept."""

HISTOGRAM = "verl_rollout_trajectory_duration_seconds_bucket"
SLOW_SECONDS = 3


def test_the_slowest_trajectory_is_one_click_away(start_pipeline, start_prometheus, run_trajectories, wait_for):
    """The exemplar of the top bucket is the slowest trajectory of the run, and its trace was kept though no other was drawn."""
    tiers = start_pipeline("traces-to-file.yaml", OTELCOL_TRACE_PERCENT="0", OTELCOL_SLOW=f"{SLOW_SECONDS}s")
    prometheus = start_prometheus(tier=tiers.gateway)
    _, recorded = run_trajectories(tiers.agent.http_url, 300, SLOW_SECONDS)
    seconds = {
        trace_id: (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9
        for trace_id, spans in recorded.items()
        for span in spans.values()
        if span["name"] == "verl.trajectory"
    }
    slowest = max(seconds.values())
    assert slowest > SLOW_SECONDS

    def top_exemplar():
        found = [(value, labels["trace_id"]) for _, labels, value in prometheus.exemplars(HISTOGRAM)]
        return max(found) if found and max(found)[0] >= slowest - 0.01 else None

    value, trace_id = wait_for(top_exemplar, 60, 0.5)
    assert abs(value - seconds[trace_id]) < 0.01
    wait_for(lambda: trace_id in {each for each, _, _ in tiers.gateway.spans()}, 30, 0.2)
    shown = {labels["trace_id"] for _, labels, _ in prometheus.exemplars(HISTOGRAM)}
    wait_for(lambda: shown <= {each for each, _, _ in tiers.gateway.spans()}, 30, 0.2)
    assert len(shown) > 1, "nothing but the slowest is shown"
    for series, labels, measured in prometheus.exemplars(HISTOGRAM):
        assert measured <= float(series["le"]), "it is in a bucket that it does not belong to"
        assert abs(measured - seconds[labels["trace_id"]]) < 0.01, "it does not lead to what was measured"
        assert labels["span_id"] in recorded[labels["trace_id"]]
