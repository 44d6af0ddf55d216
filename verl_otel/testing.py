# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Test your own instrumented code: record into memory, without threads, files or services.

The pytest fixture ``verl_otel_capture`` is available when verl-otel is installed.

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
from verl_otel.recording.sampling import POLICY


class Capture:
    """The data that was recorded since the capture began."""

    def __init__(self) -> None:
        self._spans: list[SpanRecord] = []
        self._points: dict[tuple[str, tuple[tuple[str, str], ...]], Point] = {}

    def refresh(self) -> None:
        """Collect what was recorded since the last call. The other methods call it."""
        from verl_otel.recording import collection

        batch = collection.collect()
        assert batch is not None  # noqa: S101 - no other thread drains
        observed = collection.collect_observed(batch)
        self._spans += batch.spans
        points = (*batch.points, *observed.points)
        self._points.update({(point.instrument.name, point.labels): point for point in points})

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
        """Return the only span with a name.

        Raises:
            LookupError: There is none, or more than one.
        """
        spans = self.spans
        matches = [span for span in spans if span.name == name]
        if len(matches) != 1:
            raise LookupError(f"{len(matches)} spans named {name!r}; recorded: {sorted({span.name for span in spans})}")
        return matches[0]

    def value(self, metric: str, **labels: str) -> float:
        """Return the value of one series; the number of measurements for a histogram.

        Args:
            metric: Name of the metric.
            **labels: Its labels, with ``_`` for ``.``. Labels that are not given may have any value.

        Raises:
            LookupError: No series matches, or more than one.
        """
        points = self.points
        wanted = set(labels.items())
        matches = [
            point
            for point in points
            if point.instrument.name == metric
            and wanted <= {(key.replace(".", "_"), value) for key, value in point.labels}
        ]
        if len(matches) != 1:
            names = sorted({point.instrument.name for point in points})
            raise LookupError(f"{len(matches)} series {metric!r} with {labels}; recorded: {names}")
        value = matches[0].value
        return value.samples if isinstance(value, HistogramValue) else value


@contextmanager
def capture() -> Iterator[Capture]:
    """Record into memory until the block ends.

    Raises:
        RuntimeError: Telemetry is already on in this process.
    """
    from verl_otel._internal import process_state
    from verl_otel.recording import context
    from verl_otel.recording.state import RECORDER

    if RECORDER.on:
        raise RuntimeError("telemetry is already on in this process: call verl_otel.shutdown() first")
    process_state.clear_records()
    context.context_access()
    before = (POLICY.ratio, POLICY.whole_per_step, RECORDER.capture_content)
    POLICY.ratio, POLICY.whole_per_step, RECORDER.capture_content = 1.0, 0, False
    RECORDER.on = True
    captured = Capture()
    try:
        yield captured
        captured.refresh()
    finally:
        RECORDER.on = False
        POLICY.ratio, POLICY.whole_per_step, RECORDER.capture_content = before
        process_state.clear_records()


@pytest.fixture
def verl_otel_capture() -> Iterator[Capture]:
    """Record into memory for one test."""
    with capture() as captured:
        yield captured
