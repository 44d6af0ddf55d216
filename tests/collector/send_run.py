# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run by tests as a process: every process of a simulated run, one after the other, each with a real session of the SDK of its own.

Usage: python -m tests.collector.send_run GPUS [FILE_OF_SCALARS ...]    prints one line of JSON: how many series each process has to make
"""

import gzip
import importlib
import json
import os
import sys
import time

import verl_otel
from tests.collector import shape
from verl_otel import session
from verl_otel.integrations.verl.scalars import metric_of
from verl_otel.model import Point
from verl_otel.recording import collection
from verl_otel.recording.series import counter, gauge, histogram
from verl_otel.semconv.metric_names import METRICS, SCALAR_PREFIX

SECONDS = 30
"""In which what a process has recorded has to be sent."""
LOADED = (
    "requests",
    "verl_otel.exporting.files",
    "verl_otel.exporting.otlp.exporter",
    "verl_otel.exporting.own_opentelemetry",
    "verl_otel.watchdog.heartbeat",
)
"""What a session loads when it begins: loaded once for all processes, each of them takes a tenth of the time."""


def main():
    gpus, files = int(sys.argv[1]), sys.argv[2:]
    scalars = read_scalars(files)
    for name in LOADED:
        importlib.import_module(name)
    for member in shape.members_of(gpus):
        child = os.fork()
        if not child:
            play(member, scalars)
        _, status = os.waitpid(child, 0)
        assert status == 0, member
    print(json.dumps({"scalars": len(scalars)}))


def read_scalars(files):
    """Return the keys that the trainings of these files logged, as far as the catalogue has no row for them."""
    names = set()
    for path in files:
        with gzip.open(path, "rt") as lines:
            for line in lines:
                names.update(
                    metric["name"]
                    for resource in json.loads(line).get("resourceMetrics", ())
                    for scope in resource["scopeMetrics"]
                    for metric in scope["metrics"]
                )
    return sorted(name.removeprefix(SCALAR_PREFIX).replace(".", "/", 1) for name in names - METRICS.keys())


def play(member, scalars):
    """Be one process of the run, to its end."""
    session.describe_resource({"verl.role": member.role, "verl.rank": member.rank, "host.name": "node"})
    observe = collection.observe
    collection.observe = lambda *_, **__: None  # so that nothing of this machine is among what is counted
    verl_otel.init(hardware=False)
    collection.observe = observe
    for name, count in member.rows.items():
        record(METRICS[name], count)
    if member.role == "trainer":
        now = time.time_ns()
        collection.add_points(Point(metric_of(key), (), now, now, 0.5) for key in scalars)
    session.flush(SECONDS)
    verl_otel.shutdown()
    sys.stdout.flush()
    os._exit(0)


def record(row, count):
    """Record to so many series of a row, which differ in all of its labels."""
    all_labels = [tuple((label, f"{label} {number}") for label in row.labels) for number in range(count)]
    assert row.labels or count == 1, row.name
    for labels in all_labels:
        if row.kind == "histogram":
            histogram(row.name, labels).record(0.5)
        elif row.kind == "counter":
            counter(row.name, labels).record(1)
        elif row.kind == "gauge":
            gauge(row.name, labels).set(1)
    if row.kind == "updown":
        collection.observe(row.name, lambda: [(labels, 1) for labels in all_labels])


if __name__ == "__main__":
    main()
