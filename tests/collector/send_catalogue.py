# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run by tests as a process: records every row of the catalogue with every label, and instruments of a user, through the real SDK.

Usage: send_catalogue.py ROLE [wait]    with ``wait`` it stays, so that its /metrics can be scraped, until its standard input ends
Prints one line of JSON: for each series what Prometheus has to show of it, computed here from what was recorded.
"""

import json
import random
import sys

import verl_otel
from verl_otel import session
from verl_otel.recording import collection
from verl_otel.recording.series import counter, gauge, histogram
from verl_otel.semconv.metric_names import METRICS
from verl_otel.system import collectors

ODD = 'a "b"\\c é'
"""A label value that every format has to escape."""


def main():
    role, wait = sys.argv[1], "wait" in sys.argv[2:]
    draw = random.Random(role).uniform
    session.describe_resource({"verl.role": role, "verl.rank": 3})
    verl_otel.init()
    said = [
        record(row, tuple((name, f"{ODD} {number}") for name in row.labels), draw)
        for row in METRICS.values()
        if not is_asked(row.name)
        for number in range(2 if row.labels else 1)
    ]
    said += record_own()
    session.flush(30)
    print(json.dumps(said), flush=True)
    if wait:
        sys.stdin.read()
    verl_otel.shutdown()


def is_asked(name):
    """Whether the session asks for it at every collection, as it is then: nothing that a test could plan."""
    return name in collection.observed() | collectors.list_metrics() or name.startswith("verl.otel.")


def record(row, labels, draw):
    """Record to one series; return what it holds then."""
    if row.kind == "histogram":
        values = [bound * draw(0.5, 1) for bound in (*row.bounds, 2 * row.bounds[-1])]
        series = histogram(row.name, labels)
        for value in values:
            series.record(value)
        held = [sum(value <= bound for value in values) for bound in row.bounds]
        value = {
            "count": len(values),
            "sum": sum(values),
            "buckets": dict(zip(map(float, row.bounds), held, strict=True)),
        }
    elif row.kind == "gauge":
        value = draw(0, 5) if row.unit else draw(-5, 5)
        gauge(row.name, labels).set(value)
    elif row.kind == "counter":
        value = draw(0, 1e6)
        counter(row.name, labels).record(value)
    else:
        value = draw(0, 1e6)
        known = collection._callbacks.get(row.name)
        measured = [] if known is None else known.read()
        collection.observe(row.name, lambda: [*measured, (labels, value)])
    return {"name": row.name, "labels": dict(labels), "value": value}


def record_own():
    """Record to instruments of a user: of verl-otel, and of the OpenTelemetry API."""
    verl_otel.counter("user.things", unit="{thing}").add(3, color="red")
    verl_otel.gauge("user.level").set(float("-inf"))
    verl_otel.histogram("user.waits", unit="s", bounds=(0.5, 1.0, 30.0)).record(0.75)
    return [
        {"name": "user_things_total", "labels": {"color": "red"}, "value": 3},
        {"name": "user_level", "labels": {}, "value": "-Inf"},
        {
            "name": "user_waits_seconds",
            "labels": {},
            "value": {"count": 1, "sum": 0.75, "buckets": {"0.5": 0, "1.0": 1, "30.0": 1}},
        },
    ]


if __name__ == "__main__":
    main()
