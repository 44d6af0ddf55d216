# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what verl logged at each step from the files of a run, and what is appended to them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel._internal import untrusted_files
from verl_otel.analysis.io import run_log
from verl_otel.exporting.tensorboard import tags
from verl_otel.exporting.tensorboard.event_file import Distribution
from verl_otel.semconv import logs
from verl_otel.semconv.metric_names import HW_GPU_UTILIZATION, TRAINING_STEP, VALIDATION_SCORE
from verl_otel.semconv.metrics import SCALAR_SOURCE

_WANTED: Final = tuple(name.encode() for name in (TRAINING_STEP, VALIDATION_SCORE, HW_GPU_UTILIZATION, SCALAR_SOURCE))
MAX_READINGS: Final = 10_000
"""GPU readings of all nodes that wait for the end of their step."""


class LoggedStep(NamedTuple):
    """What is known of a step."""

    step: tags.Step
    rewards: Distribution | None


class StepReader:
    """Reads the steps of a run.

    Args:
        places: Folders of the run.
    """

    def __init__(self, places: list[Path]) -> None:
        self._places = places
        self._tails: dict[Path, run_log.Tail[Any]] = {}
        self._begun = False
        self._grouper = tags.StepGrouper()
        self._fields = tags.StepFields()
        self._gpus: deque[tuple[int, float]] = deque(maxlen=MAX_READINGS)
        """Time and utilization (0 to 1)."""
        self._share: float | None = None

    def read(self) -> Iterator[LoggedStep]:
        """Yield the steps that were written since the last call, in the order of time."""
        for record in self._read_new(run_log.find_files(self._places), run_log.parse):
            self._add_record(record)
        for values in self._read_new(run_log.find_metrics(self._places), parse_line):
            self._grouper.add(values)
            self._gpus.extend(
                (value.time_ns, value.value)
                for value in values
                if value.metric == HW_GPU_UTILIZATION and 0 <= value.value <= 1
            )
        self._gpus = deque(sorted(self._gpus), maxlen=MAX_READINGS)
        self._begun = True
        for step in self._grouper.take():
            values, rewards = self._fields.take(step)
            yield LoggedStep(self._with_gpus(step._replace(values=values)), rewards)
        self._fields.bound()

    def _add_record(self, record: run_log.Record) -> None:
        number, scope = record.get(logs.STEP), record[logs.SCOPE]
        if isinstance(number, int):
            self._fields.add(number, scope, record)

    def _read_new(self, paths: list[Path], parse: Any) -> Iterator[Any]:
        for path in paths:
            if path in self._tails or (self._begun and run_log.is_rotated(path)):
                continue  # a file that was rotated meanwhile was read under its former name
            self._tails[path] = run_log.Tail(path, parse)
        for path in paths:
            if path in self._tails:
                yield from self._tails[path].read()

    def _with_gpus(self, step: tags.Step) -> tags.Step:
        """Add the mean utilization of the GPUs since the last step, in percent; it is read once a minute."""
        readings = []
        while self._gpus and self._gpus[0][0] <= step.time_ns:
            readings.append(self._gpus.popleft()[1])
        if readings:
            self._share = sum(readings) / len(readings)
        if self._share is None:
            return step
        return step._replace(values={**step.values, "gpu_utilization": 100 * self._share})


def parse_line(line: bytes) -> list[tags.Value] | None:
    """Return the gauges of a line of a metrics file; None if it has none that is wanted, or is damaged."""
    if not any(name in line for name in _WANTED):
        return None
    try:
        document = untrusted_files.parse_json(line)
        return [
            value
            for resource in document["resourceMetrics"]
            for scope in resource["scopeMetrics"]
            for metric in scope["metrics"]
            for value in _read_metric(metric)
        ]
    except untrusted_files.READ_ERRORS:
        return None


def _read_metric(metric: dict[str, Any]) -> Iterator[tags.Value]:
    for point in metric.get("gauge", {}).get("dataPoints", ()):
        labels = {
            pair["key"]: str(pair["value"].get("stringValue", json.dumps(pair["value"])))
            for pair in point.get("attributes", ())
        }
        raw = point["asInt"] if "asInt" in point else point["asDouble"]
        yield tags.Value(
            str(metric["name"]), str(metric.get("description", "")), labels, int(point["timeUnixNano"]), float(raw)
        )
