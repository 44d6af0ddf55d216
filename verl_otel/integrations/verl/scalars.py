# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From the keys of ``Tracking.log`` to metric names.

``actor/pg_loss`` becomes ``verl.actor.pg_loss``. Validation keys hold names of data sources, without bound, and become labels. What a
phase histogram already says (``timing_s/gen``) is not said twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from verl_otel import _guard
from verl_otel.model import Instrument, Labels, Point
from verl_otel.recording import phases
from verl_otel.recording.registry import MAX_SCALARS, MAX_SERIES
from verl_otel.recording.values import to_number
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metrics import METRICS, SCALAR_PREFIX
from verl_otel.semconv.spans import OTHER

_VALIDATION: Final = ("val-core/", "val-aux/")
_names: dict[str, Instrument] = {}
_taken: set[str] = set()


class Validation(NamedTuple):
    """The three parts of a validation key."""

    source: str
    variable: str
    aggregate: str


def split_validation(key: str) -> Validation | None:
    """Return the parts of ``val-core/<data source>/<variable>/<aggregate>``; None for a key of another form.

    The data source may hold slashes, and so may the aggregate (``best@4/mean``).

    Example:
        split_validation("val-core/openai/gsm8k/acc/best@4/mean") == ("openai/gsm8k", "acc", "best@4/mean")
    """
    if not key.startswith(_VALIDATION):
        return None
    parts = key.split("/")[1:]
    width = 2 if len(parts) > 3 and "@" in parts[-2] else 1  # noqa: PLR2004 - source, variable and two of the aggregate
    if len(parts) < width + 2 or "@" not in parts[-width]:
        return None
    return Validation("/".join(parts[: -width - 1]), parts[-width - 1], "/".join(parts[-width:]))


def metric_of(key: str) -> Instrument | None:
    """Return the gauge of a scalar's key; None when there are too many keys.

    Characters outside ``[A-Za-z0-9_./-]`` become ``_``. A name that the catalogue has, or that another key would have in Prometheus,
    becomes ``verl.scalar.<key>``, with a number if need be.
    """
    found = _names.get(key)
    if found is not None:
        return found
    if len(_names) >= MAX_SCALARS:
        _guard.say(
            "scalars", "verl-otel: more than %d different keys in Tracking.log; the rest is left out", MAX_SCALARS
        )
        return None
    clean = re.sub(r"[^A-Za-z0-9_./-]", "_", key).replace("/", ".")
    candidates = [f"{SCALAR_PREFIX}{clean}", f"{SCALAR_PREFIX}scalar.{clean}"]
    candidates += [f"{SCALAR_PREFIX}scalar.{clean}.{number}" for number in range(2, MAX_SCALARS + 2)]
    name = next(each for each in candidates if each not in METRICS and _shape(each) not in _taken)
    _taken.add(_shape(name))
    made = _names[key] = Instrument(name, "gauge", "", f"Scalar {key!r} of verl's Tracking.log, unchanged.")
    return made


def _shape(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name)


def make_points(data: Mapping[str, Any], now: int) -> list[Point]:
    """Return a point for every value of one ``Tracking.log`` that is a number, NaN included, all with one time stamp."""
    points = []
    for key, raw in data.items():
        value = to_number(raw)
        if value is None or _is_phase(str(key)):
            continue
        parts = split_validation(str(key))
        instrument = _SCORE if parts is not None else metric_of(str(key))
        if instrument is None:
            continue
        labels = _labels(parts) if parts is not None else ()
        value = int(value) if isinstance(value, bool) else value
        points.append(Point(instrument, labels, now, now, value))
    return points


def _is_phase(key: str) -> bool:
    prefix, _, phase = key.partition("/")
    return prefix == "timing_s" and (phase == "step" or phases.was_used(phase))


_row = METRICS["verl.validation.score"]
_SCORE: Final = Instrument(_row.name, _row.kind, _row.unit, _row.description)
_seen: set[Labels] = set()


def _labels(parts: Validation) -> Labels:
    labels: Labels = tuple(zip((attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE), parts, strict=True))
    if labels in _seen:
        return labels
    if len(_seen) >= MAX_SERIES:
        return tuple((name, OTHER) for name, _ in labels)
    _seen.add(labels)
    return labels
