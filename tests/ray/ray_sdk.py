# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An own loop with a tool in an actor, whose user has an SDK in each process: a setup hook sets the global providers of the workers.

Usage: ray_sdk.py FOLDER. Each process writes its spans as ``<pid>.spans`` and its metrics as ``<pid>.metrics``.
"""

import json
import os
import sys
import time
from pathlib import Path

import ray
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

import verl_otel

FOLDER = Path(sys.argv[1])


def make_hook(folder):
    def set_providers():
        spans, points = ((folder / f"{os.getpid()}.{kind}").open("a", buffering=1) for kind in ("spans", "metrics"))
        tracer = TracerProvider()
        exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: f"{span.name} {span.context.trace_id:032x}\n")
        tracer.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=200))
        trace.set_tracer_provider(tracer)
        reader = PeriodicExportingMetricReader(
            ConsoleMetricExporter(out=points, formatter=lambda data: data.to_json(None) + "\n"),
            export_interval_millis=500,
        )
        views = [View(instrument_name="verl.tool.call.duration", attribute_keys=set())]
        metrics.set_meter_provider(MeterProvider([reader], views=views))

    return set_providers


set_providers = make_hook(FOLDER)
set_providers()
ray.init(
    address="local", num_cpus=2, include_dashboard=False, runtime_env={"worker_process_setup_hook": make_hook(FOLDER)}
)


@ray.remote
class Worker:
    def rollout(self):
        with verl_otel.trajectory("prompt", 0), verl_otel.tool("python"):
            return os.getpid()


worker = Worker.remote()
for number in (1, 2):
    with verl_otel.step(number):
        pid = ray.get(worker.rollout.remote())
time.sleep(2.5)  # Ray kills its workers: what the reader has not exported by then is lost
print("RESULT " + json.dumps({"driver": os.getpid(), "worker": pid}))
ray.shutdown()
