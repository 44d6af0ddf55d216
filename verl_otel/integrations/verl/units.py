# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Scalars whose key says the wrong unit: what they are is said besides, as a metric of the catalogue.

verl has counts under ``timing_s``, GiB that it calls ``gb``, and MiB that it calls ``mbytes``. The scalar itself stays unchanged.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from verl_otel.model import Instrument, Labels, Point
from verl_otel.recording.registry import INSTRUMENTS
from verl_otel.semconv import attributes as attr

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_LOOP: Final = "timing_s/agent_loop/"


class Meaning(NamedTuple):
    """What a scalar is."""

    instrument: Instrument
    labels: Labels = ()
    factor: int = 1
    signed: bool = True
    """Whether it can be negative; where it cannot, verl's -1 is "unknown"."""


def _of(metric: str, labels: Labels = (), factor: int = 1, *, signed: bool = True) -> Meaning:
    return Meaning(INSTRUMENTS[metric], labels, factor, signed)


_SLOWEST: Final = {
    f"{_LOOP}slowest/{key}": _of("verl.rollout.slowest.duration", ((attr.PART, part),))
    for key, part in (("generate_sequences", "llm"), ("tool_calls", "tool"), ("compute_score", "reward"))
}
_TOKENS: Final = {
    f"{_LOOP}slowest/{kind}_length": _of("verl.rollout.slowest.tokens", ((attr.TOKEN_TYPE, kind),))
    for kind in ("prompt", "response")
}
_PREEMPTIONS: Final = {
    f"{_LOOP}num_preempted/{each}": _of("verl.rollout.trajectory.preemptions", ((attr.AGGREGATE, each),), signed=False)
    for each in ("min", "mean", "max")
}
_MEMORY: Final = {
    f"{role}/perf/max_memory_{kind}_gb": _of(
        "verl.gpu.memory.peak", ((attr.UPDATE_ROLE, role), (attr.MEMORY_TYPE, kind)), _GIB
    )
    for role in ("actor", "critic")
    for kind in ("allocated", "reserved")
}
_HOST: Final = {
    f"{role}/perf/cpu_memory_used_gb": _of("verl.host.memory.used", ((attr.UPDATE_ROLE, role),), _GIB)
    for role in ("actor", "critic")
}
MEANINGS: Final = {
    **_SLOWEST,
    **_TOKENS,
    **_PREEMPTIONS,
    **_MEMORY,
    **_HOST,
    f"{_LOOP}slowest/num_preempted": _of("verl.rollout.slowest.preemptions", signed=False),
    "checkpoint_engine/payload_mbytes": _of("verl.weight_sync.payload", factor=_MIB),
}
"""By verl's key, as of 0.9.1. ``timing_s/timing_s/param_sync`` is not here: its phase has the right name."""


def make_point(key: str, value: float, now: int) -> Point | None:
    """Return the point that says what a scalar is; None where its key says so itself, or verl does not know the value."""
    meaning = MEANINGS.get(key)
    if meaning is None or (value < 0 and not meaning.signed):
        return None
    return Point(meaning.instrument, meaning.labels, now, now, value * meaning.factor)
