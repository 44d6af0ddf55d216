# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics from the SDK to Prometheus: every value arrives, under the same names and labels on every path."""

import re
import time

import pytest

from tests.builders import golden_names
from verl_otel.prometheus_names import label_name

BASE = {"job", "instance", "verl_role", "verl_run_id"}
OVERLAYS = {"scrape": (), "push": ("metrics-by-otlp.yaml",), "remote write": ("metrics-by-remote-write.yaml",)}
SELECT = '{verl_run_id="r", __name__!~"target_info|scrape_.*|up"}'


def read_series(prometheus):
    """Return every series of the run: (name, labels) to value. ``le`` is a number: "30" when pushed and "30.0" when scraped."""
    found = {}
    for labels, value in prometheus.query(SELECT):
        bound = {"le": str(float(labels["le"]))} if "le" in labels else {}
        key = labels.pop("__name__"), frozenset({**labels, **bound}.items())
        assert key not in found, f"twice: {key}"
        found[key] = value
    return found


def expect(said, role):
    """Return the series that Prometheus has to have: (name, labels) to value, by the golden table and what a sender recorded."""
    table, wanted = golden_names.read(), {}
    base = {"job": "verl", "instance": f"r/{role}-3", "verl_role": role, "verl_run_id": "r"}
    for each in said:
        if "." in each["name"] and each["name"] not in table:
            continue  # a row without a golden name fails tests/contracts
        name = table.get(each["name"], (each["name"],))[0]
        labels = {**base, **{label_name(key): text for key, text in each["labels"].items()}}
        value = each["value"]
        if isinstance(value, dict):
            wanted[name + "_count", frozenset(labels.items())] = value["count"]
            wanted[name + "_sum", frozenset(labels.items())] = value["sum"]
            for bound, count in {**value["buckets"], "inf": value["count"]}.items():
                wanted[name + "_bucket", frozenset({**labels, "le": str(float(bound))}.items())] = count
        else:
            wanted[name, frozenset(labels.items())] = float(value)
    return wanted


def await_series(prometheus, wanted, seconds=120.0):
    """Return every series once all that are wanted are there."""
    deadline = time.monotonic() + seconds
    while True:
        found = read_series(prometheus)
        missing = [key for key in wanted if key not in found]
        if not missing:
            return found
        assert time.monotonic() < deadline, f"{len(missing)} of {len(wanted)} series are missing, such as {missing[:3]}"
        time.sleep(0.3)


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.smoke if path == "scrape" else ()) for path in OVERLAYS]
)
def test_every_point_is_queried_back(start_pipeline, start_prometheus, run_sender, path):
    """SDK, agent, gateway, Prometheus: each value of each series that a process recorded is there, equal, under its golden name and labels."""
    prometheus = start_prometheus("pushed_to") if path != "scrape" else None
    pushed = (
        {"OTELCOL_PROMETHEUS_OTLP": prometheus.otlp_url, "OTELCOL_REMOTE_WRITE": prometheus.write_url}
        if prometheus
        else {}
    )
    tiers = start_pipeline(*OVERLAYS[path], **pushed)
    prometheus = prometheus or start_prometheus("scraper", tier=tiers.gateway)
    wanted = {}
    for role in ("trainer", "agent_loop"):
        wanted |= expect(run_sender("send_catalogue", tiers.agent.http_url, role).printed[-1], role)
    assert len(wanted) > 900

    found = await_series(prometheus, wanted)
    different = {
        key: (found[key], value) for key, value in wanted.items() if found[key] != pytest.approx(value, rel=1e-12)
    }
    assert not different
    names = {name for name, _, _ in golden_names.read().values()} | {
        "user_things_total",
        "user_level",
        "user_waits_seconds",
    }
    for name, labels in found:
        assert re.sub(r"_(bucket|sum|count)$", "", name) in names or name in names, f"not in the golden table: {name}"
        assert {key for key, _ in labels} >= BASE, (name, labels)
