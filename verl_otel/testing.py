# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Test your own instrumented code: record into memory, without threads, files or services.

The pytest fixture ``verl_otel_capture`` is there as soon as verl-otel is installed.

Example:
    def test_my_reward(verl_otel_capture):
        compute_score("math", "4", "4")
        assert verl_otel_capture.span("verl.reward").attributes["verl.reward.score"] == 1.0
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from verl_otel.model import HistogramValue, Point, SpanRecord


class Capture:
    """What was recorded since the capture began."""

    def __init__(self) -> None:
        self._spans: list[SpanRecord] = []
        self._points: dict[tuple[str, tuple[tuple[str, str], ...]], Point] = {}

    def refresh(self) -> None:
        """Take what was recorded meanwhile. The other methods do so themselves."""
        from verl_otel.recording import recorder

        batch = recorder.drain(observe=True)
        assert batch is not None  # noqa: S101 - nobody else drains
        self._spans += batch.spans
        self._points.update({(point.instrument.name, point.labels): point for point in batch.points})

    @property
    def spans(self) -> list[SpanRecord]:
        """Every ended span, in the order in which they ended."""
        self.refresh()
        return list(self._spans)

    @property
    def points(self) -> list[Point]:
        """The latest point of every series."""
        self.refresh()
        return list(self._points.values())

    def span(self, name: str) -> SpanRecord:
        """Return the one span of this name.

        Raises:
            LookupError: There is none, or more than one.
        """
        spans = self.spans
        found = [span for span in spans if span.name == name]
        if len(found) != 1:
            raise LookupError(f"{len(found)} spans named {name!r}; recorded: {sorted({span.name for span in spans})}")
        return found[0]

    def value(self, metric: str, **labels: str) -> float:
        """Return the value of one series; the number of measurements for a histogram.

        Args:
            metric: Name of the metric.
            **labels: Its labels, with ``_`` for ``.``; those not given may be anything.

        Raises:
            LookupError: No series fits, or more than one.
        """
        points = self.points
        wanted = set(labels.items())
        found = [
            point
            for point in points
            if point.instrument.name == metric
            and wanted <= {(key.replace(".", "_"), value) for key, value in point.labels}
        ]
        if len(found) != 1:
            names = sorted({point.instrument.name for point in points})
            raise LookupError(f"{len(found)} series {metric!r} with {labels}; recorded: {names}")
        value = found[0].value
        return value.samples if isinstance(value, HistogramValue) else value


@contextmanager
def capture() -> Iterator[Capture]:
    """Record into memory until the block ends.

    Raises:
        RuntimeError: Telemetry is already on in this process.
    """
    from verl_otel.recording import context, recorder, registry, store, wrap
    from verl_otel.recording.sampling import Policy
    from verl_otel.recording.store import Store

    if Store.on:
        raise RuntimeError("telemetry is already on in this process: call verl_otel.shutdown() first")
    for part in (registry, store, recorder):
        part.clear()
    context.kernel()
    before = (Policy.ratio, Policy.whole_per_step, Store.capture_content)
    Policy.ratio, Policy.whole_per_step, Store.capture_content = 1.0, 0, False
    Store.on = True
    wrap.switch(on=True)
    captured = Capture()
    try:
        yield captured
        captured.refresh()
    finally:
        Store.on = False
        wrap.switch(on=False)
        Policy.ratio, Policy.whole_per_step, Store.capture_content = before
        for part in (registry, store, recorder):
            part.clear()


@pytest.fixture
def verl_otel_capture() -> Iterator[Capture]:
    """Record into memory for one test."""
    with capture() as captured:
        yield captured
