# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Total CPU of a span that goes through the user's own SDK, beside the SDK alone: ``python -m benchmarks.sdk_exporter``.

Each figure is the CPU time of a whole process until everything is delivered, less that of the same process with hardly any spans; median of some
rounds, in which the contenders take turns. The exporters of the SDK drop what they get, so that its batch processor is all that is measured of it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.backend import ATTRIBUTES

SPANS: Final = 20_000
FEW: Final = 100
ROUNDS: Final = 3
PART: Final = 1_000
"""Spans between two pauses: the batch processor must not drop any, and the drains have as many as in a busy second."""
CONTENDERS: Final = ("SDK alone", "verl-otel, sdk", "verl-otel, file")


def measure(contender: str, spans: int) -> float:
    """Return the CPU seconds of this process for some spans with a histogram each."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    import verl_otel
    from verl_otel import session

    received = 0

    class Nowhere(SpanExporter):
        def export(self, batch: Sequence[ReadableSpan]) -> SpanExportResult:
            nonlocal received
            received += len(batch)
            return SpanExportResult.SUCCESS

    tracers, reader = TracerProvider(shutdown_on_exit=False), InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    attributes: dict[str, Any] = dict(ATTRIBUTES)
    flush: Callable[[], object] = tracers.force_flush
    if contender == "SDK alone":
        tracer, histogram = tracers.get_tracer("bench"), meters.get_meter("bench").create_histogram("bench.work")

        def work() -> None:
            with tracer.start_as_current_span("bench.work", attributes=attributes):
                begin = time.perf_counter()
                histogram.record(time.perf_counter() - begin, attributes)
    else:
        given = {"tracer_provider": tracers, "meter_provider": meters} if contender.endswith("sdk") else {}
        exporters = "none" if given else "file"
        verl_otel.init(exporters=exporters, run_dir=tempfile.mkdtemp(), run_id="bench", hardware=False, **given)
        recorded = verl_otel.histogram("bench.work", unit="s")

        def work() -> None:
            with verl_otel.span("bench.work", attributes=attributes):
                begin = time.perf_counter()
                recorded.record(time.perf_counter() - begin, **attributes)

        flush = lambda: session.flush(60.0)  # noqa: E731 - one of two
    begin = time.process_time()
    for number in range(spans):
        work()
        if not number % PART:
            flush()
    flush()
    reader.get_metrics_data()
    verl_otel.shutdown()
    seconds = time.process_time() - begin
    if not contender.endswith("file") and received < spans:  # it may have more: a busy machine pauses processes
        raise RuntimeError(f"{received} of {spans} spans arrived: the measurement is invalid")
    return seconds


def main() -> None:
    """Measure in processes of their own and print microseconds for a span."""
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, times in found.items():
            few, many = (
                float(subprocess.check_output([sys.executable, "-m", __spec__.name, name, str(spans)]))
                for spans in (FEW, SPANS)
            )
            times.append((many - few) / (SPANS - FEW) * 1e6)
    for name, times in found.items():
        print(f"{name:18} {statistics.median(times):6.1f} µs  [{min(times):.1f}..{max(times):.1f}]")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(measure(sys.argv[1], int(sys.argv[2])))
    else:
        main()
