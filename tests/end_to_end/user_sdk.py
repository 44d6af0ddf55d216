# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a user writes who owns an OpenTelemetry SDK: providers in every process, a batch processor, a view, console exporters.

Named in ``VERL_USE_EXTERNAL_MODULES``, so that verl imports it in the driver and in its workers. What the exporters print goes to a file for each
process.
"""

import os
from pathlib import Path

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

folder = Path(os.environ["CPU_BED_LOG"]).parent / "sdk"
folder.mkdir(exist_ok=True)
resource = Resource.create({"service.name": "mine", "service.instance.id": str(os.getpid())})


def open_file(name):
    return (folder / f"{name}-{os.getpid()}.json").open("w", encoding="utf-8")


tracer_provider = TracerProvider(resource=resource)
tracer_provider.add_span_processor(
    BatchSpanProcessor(
        ConsoleSpanExporter(out=open_file("spans"), formatter=lambda span: span.to_json(indent=None) + "\n")
    )
)
trace.set_tracer_provider(tracer_provider)
metrics.set_meter_provider(
    MeterProvider(
        [
            PeriodicExportingMetricReader(
                ConsoleMetricExporter(
                    out=open_file("metrics"), formatter=lambda data: data.to_json(indent=None) + "\n"
                ),
                2000,
            )
        ],
        resource,
        views=[View(instrument_name="verl.tool.call.duration", attribute_keys={"verl.outcome"})],
    )
)
