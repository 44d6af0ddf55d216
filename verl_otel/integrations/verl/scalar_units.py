# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Scalars whose key names a wrong unit: they are also recorded as a metric of the catalogue, in its unit.

verl logs counts under ``timing_s``, GiB as ``gb`` and MiB as ``mbytes``. The scalar itself stays unchanged.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from verl_otel.model import Instrument, Labels, Point
from verl_otel.recording.series_registry import INSTRUMENTS
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

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
