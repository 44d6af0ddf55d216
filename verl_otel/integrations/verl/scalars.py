# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From the keys of ``Tracking.log`` to metric names.

``actor/pg_loss`` becomes ``verl.actor.pg_loss``. Validation keys hold names of data sources, whose number is not
bounded, and become labels. Timings that a phase histogram records (``timing_s/gen``) are skipped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from verl_otel._internal import error_boundary
from verl_otel.model import Instrument, Labels, Point
from verl_otel.prometheus_names import SUFFIXES, metric_name
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.callsite import is_used_phase
from verl_otel.recording.series import INSTRUMENTS, MAX_SCALARS, MAX_SERIES
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.metric_names import METRICS, SCALAR_DESCRIPTION, SCALAR_PREFIX
from verl_otel.semconv.spans import OTHER

# -- Scalars whose key names a wrong unit: they are also recorded as a metric of the catalogue, in its unit --
# verl logs counts under ``timing_s``, GiB as ``gb`` and MiB as ``mbytes``. The scalar itself stays unchanged.

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_LOOP: Final = "timing_s/agent_loop/"


class ScalarUnit(NamedTuple):
    """The metric of a scalar, and the factor to its unit."""

    instrument: Instrument
    labels: Labels = ()
    factor: int = 1
    signed: bool = True
    """Whether it can be negative; otherwise verl's -1 means unknown."""


def _unit_of(metric: str, labels: Labels = (), factor: int = 1, *, signed: bool = True) -> ScalarUnit:
    return ScalarUnit(INSTRUMENTS[metric], labels, factor, signed)


_SLOWEST: Final = {
    f"{_LOOP}slowest/{key}": _unit_of(metric_names.ROLLOUT_SLOWEST_DURATION, ((attr.PART, part),))
    for key, part in (("generate_sequences", "llm"), ("tool_calls", "tool"), ("compute_score", "reward"))
}
_TOKENS: Final = {
    f"{_LOOP}slowest/{kind}_length": _unit_of(metric_names.ROLLOUT_SLOWEST_TOKENS, ((attr.TOKEN_TYPE, kind),))
    for kind in ("prompt", "response")
}
_PREEMPTIONS: Final = {
    f"{_LOOP}num_preempted/{aggregate}": _unit_of(
        metric_names.ROLLOUT_TRAJECTORY_PREEMPTIONS, ((attr.AGGREGATE, aggregate),), signed=False
    )
    for aggregate in ("min", "mean", "max")
}
_MEMORY: Final = {
    f"{role}/perf/max_memory_{kind}_gb": _unit_of(
        metric_names.GPU_MEMORY_PEAK, ((attr.UPDATE_ROLE, role), (attr.MEMORY_TYPE, kind)), _GIB
    )
    for role in ("actor", "critic")
    for kind in ("allocated", "reserved")
}
_HOST: Final = {
    f"{role}/perf/cpu_memory_used_gb": _unit_of(metric_names.HOST_MEMORY_USED, ((attr.UPDATE_ROLE, role),), _GIB)
    for role in ("actor", "critic")
}
SCALAR_UNITS: Final = {
    **_SLOWEST,
    **_TOKENS,
    **_PREEMPTIONS,
    **_MEMORY,
    **_HOST,
    f"{_LOOP}slowest/num_preempted": _unit_of(metric_names.ROLLOUT_SLOWEST_PREEMPTIONS, signed=False),
    "checkpoint_engine/payload_mbytes": _unit_of(metric_names.WEIGHT_SYNC_PAYLOAD, factor=_MIB),
}
"""By verl's key, as of 0.9.1. ``timing_s/timing_s/param_sync`` is not here: its phase has the right name."""


def make_point(key: str, value: float, now: int) -> Point | None:
    """Return the point of a scalar in the catalogue's unit; None if its key names the right unit or the value is unknown."""
    unit = SCALAR_UNITS.get(key)
    if unit is None or (value < 0 and not unit.signed):
        return None
    return Point(unit.instrument, unit.labels, now, now, value * unit.factor)


# -- metric names --

_VALIDATION: Final = ("val-core/", "val-aux/")
_RESERVED: Final = frozenset(
    metric_name(row).removesuffix("_total") + suffix for row in INSTRUMENTS.values() for suffix in SUFFIXES[row.kind]
)
"""Names of the catalogue in Prometheus."""
STEP: Final = INSTRUMENTS[metric_names.TRAINING_STEP]
REWARD: Final = INSTRUMENTS[metric_names.AVERAGE_REWARD]
_SCORE: Final = INSTRUMENTS[metric_names.VALIDATION_SCORE]
MAX_NAME: Final = 230
"""Maximum number of characters of a key in a name; OpenTelemetry allows 255, with prefix and number."""
_names: dict[str, Instrument] = {}
_taken: set[str] = set()
_seen: set[Labels] = set()


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

    Characters outside ``[A-Za-z0-9_./-]`` become ``_``. If the name exists in the catalogue or for another key, here or in Prometheus, it
    becomes ``verl.scalar.<key>``, with a number if necessary.
    """
    existing = _names.get(key)
    if existing is not None:
        return existing
    if len(_names) >= MAX_SCALARS:
        error_boundary.warn_once(
            "scalars", "verl-otel: more than %d different keys in Tracking.log; the rest is left out", MAX_SCALARS
        )
        return None
    instrument = _names[key] = next(filter(_is_free, _candidates(key)))
    _taken.add(metric_name(instrument))
    return instrument


def _candidates(key: str) -> Iterator[Instrument]:
    clean = re.sub(r"[^A-Za-z0-9_./-]", "_", key).replace("/", ".")[:MAX_NAME]
    description = SCALAR_DESCRIPTION.format(key=key)
    numbered = (f"scalar.{clean}.{number}" for number in itertools.count(2))
    for name in itertools.chain((clean, f"scalar.{clean}"), numbered):
        yield Instrument(f"{SCALAR_PREFIX}{name}", "gauge", "", description)


def _is_free(instrument: Instrument) -> bool:
    name = metric_name(instrument)
    return instrument.name not in METRICS and name not in _RESERVED and name not in _taken


def make_points(data: Mapping[str, Any], now: int) -> list[Point]:
    """Return a point for every value of one ``Tracking.log`` that is a number, NaN included, all with one time stamp."""
    points = []
    for key, raw in data.items():
        value = to_number(raw)
        if value is None or is_phase(str(key)):
            continue
        value = int(value) if isinstance(value, bool) else value
        converted = make_point(str(key), value, now)
        if converted is not None:
            points.append(converted)
        parts = split_validation(str(key))
        instrument = _SCORE if parts is not None else metric_of(str(key))
        if instrument is None:
            continue
        labels = _labels(parts) if parts is not None else ()
        points.append(Point(instrument, labels, now, now, value))
    return points


def is_phase(key: str) -> bool:
    """Return whether a key of verl is the timer of a phase that was recorded as a span, or of the step."""
    prefix, _, phase = key.partition("/")
    return prefix == "timing_s" and (phase == "step" or is_used_phase(phase.removeprefix("timing_s/")))


def _labels(parts: Validation) -> Labels:
    labels: Labels = tuple(zip((attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE), parts, strict=True))
    if labels in _seen:
        return labels
    if len(_seen) >= MAX_SERIES:
        return tuple((name, OTHER) for name, _ in labels)
    _seen.add(labels)
    return labels
