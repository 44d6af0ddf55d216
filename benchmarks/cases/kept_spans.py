# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Spans that are kept: from the call to the server's answer, as CPU time of the whole process. The server is a process of its own."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.backend import Backend, Function
from benchmarks.case import OURS, Case, Target
from benchmarks.cases.decorators import calls_and_delivery
from benchmarks.contenders import NOTHING, Contender, load, variants
from benchmarks.sink import Sink

SPANS: Final = 4000
LEAST_BYTES: Final = 100
"""Of a span with four attributes, encoded: less has come in if spans were dropped."""


class BackendWithSink(Backend):
    """A backend and the server that it sends to, as `contenders.load` takes it."""

    def __init__(self, module: str, name: str, **options: Any) -> None:
        self._sink = Sink()
        self._made = 0
        self._backend = load(module, name, endpoint=self._sink.url, **options)()

    def traced(self, function: Function) -> Function:
        """Decorate."""
        return self._backend.traced(function)

    def deliver(self) -> None:
        """Wait for the server's answers to the spans of one round."""
        self._backend.deliver()
        self._made += SPANS

    def close(self) -> None:
        """Stop both."""
        received = self._sink.read()["bytes"]
        self._backend.close()
        self._sink.close()
        if received < LEAST_BYTES * self._made:
            raise RuntimeError(f"{received} bytes of {self._made} spans: the measurement is invalid")


def ours() -> Backend:
    """Return ours, sending spans."""
    return BackendWithSink("ours", "OursSpansOnly", exporters="otlp")


def theirs() -> Backend:
    """Return the SDK, sending the same."""
    return BackendWithSink("opentelemetry_sdk", "OpenTelemetry", histogram=False)


CASES: Final = (
    Case(
        "kept-spans",
        "total CPU of a kept span: made, encoded, sent by OTLP over HTTP to another process",
        variants(
            calls_and_delivery(lambda backend: backend.traced, SPANS),
            NOTHING,
            Contender(OURS, "span with 4 attributes, exporters: otlp", ours),
            Contender(
                "opentelemetry", "SDK, span with 4 attributes, batch processor, OTLP over HTTP, none dropped", theirs
            ),
        ),
        (Target("total CPU of a kept, encoded span", 2.5, {"opentelemetry": 25}),),
        unit="us",
        clock="cpu",
        steady=False,
        rounds=5,
    ),
)
