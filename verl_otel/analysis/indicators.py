# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The core indicators of older guides, and the groups without a signal: last values in a run, and whether these are in the bands of its profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from verl_otel.analysis.gpu.accounting import find_flat_groups
from verl_otel.analysis.model import Explanation, Series
from verl_otel.analysis.scalars import find_limit
from verl_otel.health import profiles
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import (
    AVERAGE_REWARD,
    HW_GPU_MEMORY_LIMIT,
    HW_GPU_MEMORY_USAGE,
    HW_GPU_UTILIZATION,
    REWARD_GROUPS,
    SCALAR_PREFIX,
)

HEALTHY, BELOW, ABOVE, NO_BAND, UNKNOWN = "healthy", "below", "above", "no band", "unknown"
_OF_SCALARS: Final = (
    ("mean reward", ("critic.rewards.mean", "critic.score.mean", AVERAGE_REWARD), "reward_band"),
    ("policy KL", ("actor.ppo_kl",), "policy_kl_band"),
    ("policy loss", ("actor.pg_loss",), "policy_loss_band"),
)
"""Indicators that are the last value of a scalar: name, scalars of which the first one counts, band in a profile."""
_RECENT_NS: Final = 300_000_000_000
"""GPUs are shown by their mean over the last five minutes: one sample says nothing of them."""


class Indicator(NamedTuple):
    """One indicator of a run."""

    name: str
    value: float | None
    """None: the run does not have it."""
    low: float | None
    high: float | None
    """Ends of the band; None where the profile has none."""
    state: str
    """``healthy``, ``below`` or ``above`` its band, ``no band``, or ``unknown`` without a value."""
    is_share: bool = False
    """Whether it is shown in percent."""
    scalar: str | None = None
    """Name of the series that it is about; None: it is made of several, or there is none."""


def find(run: Explanation) -> tuple[str, tuple[Indicator, ...]]:
    """Return the name of the run's profile, and its indicators."""
    profile = profiles.from_manifest(run.manifest)
    limits = profile.values
    lengths, bound = _find_first(run.series, "response_length.mean"), find_limit(run.series, "response_tokens")
    share = _judge(
        "response length, share of its limit",
        lengths.values[-1] / bound if lengths is not None and bound else None,
        (limits["response_band_low"], limits["response_band_high"]),
        is_share=True,
    )
    return profile.name, (
        *(
            _judge_last(name, _find_first(run.series, *keys), (limits[f"{band}_low"], limits[f"{band}_high"]))
            for name, keys, band in _OF_SCALARS
        ),
        share._replace(scalar=None if lengths is None else lengths.name),
        _judge("groups without a signal", _find_silent(run), (math.nan, limits["groups_silent"]), is_share=True),
        _judge("GPU utilisation", _find_use(run), (limits["gpu_utilization_fair"], math.nan), is_share=True),
        _judge("GPU memory", _find_memory(run), (math.nan, limits["gpu_memory"]), is_share=True),
    )


def _judge_last(name: str, series: Series | None, band: tuple[float, float]) -> Indicator:
    """Return the indicator of the last value of a series; None: the run does not have it."""
    if series is None:
        return _judge(name, None, band)
    return _judge(name, series.values[-1], band)._replace(scalar=series.name)


def _judge(name: str, value: float | None, band: tuple[float, float], *, is_share: bool = False) -> Indicator:
    low, high = (None if math.isnan(end) else end for end in band)
    if value is None or not math.isfinite(value):
        state = UNKNOWN
    elif low is None and high is None:
        state = NO_BAND
    elif low is not None and value < low:
        state = BELOW
    else:
        state = ABOVE if high is not None and value > high else HEALTHY
    return Indicator(name, value, low, high, state, is_share)


def _find_first(series: Iterable[Series], *names: str) -> Series | None:
    """Return the first of several scalars that a run has: names, or keys of verl."""
    found = {one.name: one for one in series if not one.labels and one.values}
    return next((found[key] for name in names for key in (SCALAR_PREFIX + name, name) if key in found), None)


def _find_silent(run: Explanation) -> float | None:
    """Return the share of the groups of the last step whose scores are all equal; of a run without the metric, from its trajectories."""
    counts: dict[str, float] = {}
    for one in run.series:
        if one.name == REWARD_GROUPS and one.values:
            outcome = dict(one.labels).get(attr.OUTCOME, "")
            counts[outcome] = counts.get(outcome, 0) + one.values[-1]
    total = sum(counts.values())
    if total:
        return 1 - counts.get("signal", 0) / total
    flat = find_flat_groups(run.recent_steps[-1].members) if run.recent_steps else {}
    return sum(flat.values()) / len(flat) if flat else None


def _find_use(run: Explanation) -> float | None:
    values = _find_recent(run, HW_GPU_UTILIZATION)
    return fmean(map(fmean, values.values())) if values else None


def _find_memory(run: Explanation) -> float | None:
    """Return the largest share in use among the GPUs of which the size is known."""
    used, sizes = _find_recent(run, HW_GPU_MEMORY_USAGE), _find_recent(run, HW_GPU_MEMORY_LIMIT)
    return max((values[-1] / sizes[gpu][-1] for gpu, values in used.items() if sizes.get(gpu, [0])[-1]), default=None)


def _find_recent(run: Explanation, name: str) -> Mapping[str, Sequence[float]]:
    """Return the values of the last minutes of each GPU; the limit of its memory is written once, and kept."""
    found: dict[str, list[float]] = {}
    for one in run.series:
        if one.name == name and one.times_ns:
            since = one.times_ns[-1] - _RECENT_NS
            values = [value for time_ns, value in zip(one.times_ns, one.values, strict=True) if time_ns >= since]
            found.setdefault(dict(one.labels).get(attr.HW_ID, ""), []).extend(values)
    return found
