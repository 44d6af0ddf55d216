# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a recorded run to what Prometheus would have scraped: from the files of its run directory and samples of other exporters.

Each series is written at a regular interval with the value that it had then, from its first point to the end of its process.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel.model import Instrument
from verl_otel.prometheus_names import label_name, metric_name
from verl_otel.semconv import attributes as attr

Labels = tuple[tuple[str, str], ...]
_RUN_LABEL: Final = label_name(attr.RUN_ID)
_IDENTITY: Final = {
    "job": attr.SERVICE_NAME,
    "instance": attr.SERVICE_INSTANCE,
    label_name(attr.ROLE): attr.ROLE,
    _RUN_LABEL: attr.RUN_ID,
}
_SAMPLE: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
RUN: Final = "RUN"
"""Placeholder for the id of a run in a sample."""


class Key(NamedTuple):
    """A series of Prometheus."""

    name: str
    labels: Labels


class Point(NamedTuple):
    """A value that holds from a time on."""

    time: float
    value: float


Recording = dict[Key, list[Point]]


def read_run(folder: Path) -> Recording:
    """Return every series of a run directory, with the times at which they changed, in Unix seconds."""
    recording: Recording = {}
    for path in sorted(folder.glob("metrics-*.jsonl*")):
        for key, point in _read_file(path):
            recording.setdefault(key, []).append(point)
    for points in recording.values():
        points.sort()
    return recording


def _read_file(path: Path) -> Iterator[tuple[Key, Point]]:
    raw = path.read_bytes()
    lines = (gzip.decompress(raw) if path.suffix == ".gz" else raw).split(b"\n")
    for line in lines[:-1]:  # what follows the last line break was cut off when its process was killed
        for resource in json.loads(line)["resourceMetrics"]:
            attributes = _attributes(resource["resource"]["attributes"])
            identity = tuple((label, attributes.get(name, "")) for label, name in _IDENTITY.items())
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    yield from _read_metric(metric, identity)


def _attributes(listed: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {pair["key"]: _text(next(iter(pair["value"].values()))) for pair in listed}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_metric(metric: Mapping[str, Any], identity: Labels) -> Iterator[tuple[Key, Point]]:
    kind = next(kind for kind in ("histogram", "sum", "gauge") if kind in metric)
    monotonic = kind == "sum" and metric["sum"].get("isMonotonic", False)
    name = metric_name(
        Instrument(metric["name"], _KINDS[kind] if not monotonic else "counter", metric.get("unit", ""), "")
    )
    for point in metric[kind]["dataPoints"]:
        own = tuple((label_name(key), value) for key, value in _attributes(point.get("attributes", ())).items())
        labels = tuple(sorted((*identity, *own)))
        when = int(point["timeUnixNano"]) / 1e9
        if kind == "histogram":
            yield from _read_histogram(name, labels, point, when)
        else:
            yield Key(name, labels), Point(when, float(point.get("asDouble", point.get("asInt", "nan"))))


_KINDS: Final = {"histogram": "histogram", "sum": "updown", "gauge": "gauge"}


def _read_histogram(name: str, labels: Labels, point: Mapping[str, Any], when: float) -> Iterator[tuple[Key, Point]]:
    total = 0
    for bound, count in zip((*point["explicitBounds"], float("inf")), point["bucketCounts"], strict=True):
        total += int(count)
        text = "+Inf" if bound == float("inf") else f"{float(bound)}"
        yield Key(f"{name}_bucket", tuple(sorted((*labels, ("le", text))))), Point(when, total)
    yield Key(f"{name}_count", labels), Point(when, float(point["count"]))
    yield Key(f"{name}_sum", labels), Point(when, float(point.get("sum", "nan")))


def read_sample(path: Path, run: str, start: float, end: float) -> Recording:
    """Return the series of one recorded scrape, as if it had been the last of a run: counters grow evenly up to it.

    Args:
        path: The scrape, in the text form of Prometheus; ``RUN`` stands for the id of the run.
        run: Id of the run.
        start: Unix time at which the counters are 0.
        end: Unix time at which they have the values of the scrape.
    """
    recording: Recording = {}
    kinds: dict[str, str] = {}
    steps = min(max(1, round(end - start)), 600)
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            kinds[name] = kind
        matched = _SAMPLE.match(line)
        if matched is None:
            continue
        name, value = matched[1], float(matched[3])
        pairs = re.finditer(r'(\w+)="([^"]*)"', matched[2] or "")
        labels = tuple(sorted((pair[1], pair[2].replace(RUN, run)) for pair in pairs))
        grows = kinds.get(name) == "counter" or kinds.get(re.sub("_(bucket|count|sum)$", "", name)) == "histogram"
        times = [start + (end - start) * index / steps for index in range(steps + 1)]
        recording[Key(name, labels)] = [
            Point(time, value * index / steps if grows else value) for index, time in enumerate(times)
        ]
    return recording


def read_all(runs: Sequence[Path], samples: Path | None) -> list[Recording]:
    """Return the recordings of run directories; of samples what a run lacks, for each run, and what is of no run once.

    Args:
        runs: Run directories, whose names are the ids of the runs.
        samples: A folder with samples (``*.prom``); None for none.
    """
    recordings = []
    spans = []
    paths = sorted(samples.glob("*.prom")) if samples else []
    for folder in runs:
        run = read_run(folder)
        if not run:
            raise FileNotFoundError(f"no metrics-*.jsonl in {folder}")
        times = [point.time for points in run.values() for point in points]
        spans.append((min(times), max(times)))
        names = {key.name for key in run}
        lacking: Recording = {}
        for path in paths:
            sample = read_sample(path, folder.name, *spans[-1])
            lacking |= {
                key: series
                for key, series in sample.items()
                if _is_of(key, folder.name) and _is_missing(key, run, names)
            }
        recordings += [run, lacking]
    shared: Recording = {}
    for path in paths:
        sample = read_sample(path, "", min(start for start, _ in spans), max(end for _, end in spans))
        shared |= {key: series for key, series in sample.items() if (_RUN_LABEL, "") not in key.labels}
    return [*recordings, shared]


def _is_of(key: Key, run: str) -> bool:
    return (_RUN_LABEL, run) in key.labels


def _is_missing(key: Key, run: Recording, names: Collection[str]) -> bool:
    """Return whether a run lacks a series of a sample: its metric, or its error series."""
    is_error = any(name == label_name(attr.ERROR_TYPE) for name, _ in key.labels)
    return key not in run if is_error else key.name not in names


def write(recordings: Iterable[Recording], path: Path, interval: float) -> tuple[float, float]:
    """Write recordings as OpenMetrics text with times, as if scraped at an interval.

    Args:
        recordings: One for each run or sample.
        path: The file.
        interval: Seconds between two scrapes.

    Returns:
        The first and the last time, in Unix seconds.
    """
    first, last = float("inf"), 0.0
    with path.open("w", encoding="utf-8") as out:
        for recording in filter(None, recordings):
            ends = _ends(recording)
            for key, points in sorted(recording.items()):
                end = ends[dict(key.labels).get("instance", "")]
                labels = ",".join(f'{name}="{_escape(value)}"' for name, value in key.labels)
                for time, value in _scrapes(points, end, interval):
                    out.write(f"{key.name}{{{labels}}} {value:.17g} {time:.3f}\n")
                    first, last = min(first, time), max(last, time)
        out.write("# EOF\n")
    return first, last


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _ends(recording: Recording) -> dict[str, float]:
    """Return the time of the last value of each process."""
    ends: dict[str, float] = {}
    for key, points in recording.items():
        instance = dict(key.labels).get("instance", "")
        ends[instance] = max(ends.get(instance, 0.0), points[-1].time)
    return ends


def _scrapes(points: list[Point], end: float, interval: float) -> Iterator[Point]:
    """Yield the value at every scrape between the first point and the end."""
    scrape = -(-points[0].time // interval) * interval
    index = 0
    while scrape <= end + interval:
        while index + 1 < len(points) and points[index + 1].time <= scrape:
            index += 1
        yield Point(scrape, points[index].value)
        scrape += interval
