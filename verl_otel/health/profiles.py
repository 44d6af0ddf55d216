# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles: values of thresholds for a kind of training, by name or in a file.

A file has one ``name = number`` a line, ``nan`` for off, comments after ``#``, and may begin with ``base = "math"``,
the profile of all other values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel._internal import safe_files
from verl_otel.health.thresholds import DEFAULTS

DEFAULT: Final = "default"
PROFILES: Final[dict[str, dict[str, float]]] = {
    DEFAULT: {},
    # Numbers of the older guides, for PPO with a reward model whose scale is about 0 to 5.
    "rlhf": {
        "reward_low": 1, "reward_noise": 0.5, "policy_kl_low": 0.005, "policy_loss_positive_steps": 20,
        "policy_loss_size": 0.5, "policy_loss_jump": 5, "response_short": 0.78, "response_cut": 0.5,
        "reward_band_low": 2, "reward_band_high": 4, "policy_kl_band_low": 0.01, "policy_loss_band_low": -0.5,
        "policy_loss_band_high": -0.1, "response_band_low": 0.94, "response_band_high": 1, "gpu_memory": 0.9,
    },
    # Rewards from 0 to 1 by a rule. Groups of equal rewards, all wrong or all right, have no advantages.
    "math": {
        "reward_low": 0.02, "policy_loss_jump": 10, "response_near": 0.9, "response_cut": 0.3,
        "reward_band_low": 0.1, "reward_band_high": 0.95, "response_band_low": 0.05, "response_band_high": 0.8,
    },
    # Rewards from 0 to 1, and trajectories that wait for tools: GPUs rest meanwhile, and the slowest trajectories are far slower than most.
    "agent": {
        "reward_low": 0.02, "policy_loss_jump": 10, "response_near": 0.9, "response_cut": 0.3,
        "reward_band_low": 0.05, "reward_band_high": 0.95, "response_band_low": 0.02, "response_band_high": 0.8,
        "slow_factor": 3, "tail_share": 0.7, "stuck_seconds": 1800, "gpu_utilization_low": 0.3,
        "gpu_utilization_fair": 0.5,
    },
}  # fmt: skip
"""Values that differ from the defaults, by profile. Those that are from no older guide are values to begin with; they were not measured."""
_NAME_KEY: Final = "health_profile"
_VALUES_KEY: Final = "health_thresholds"
"""Keys of the manifest of a run."""
MAX_BYTES: Final = 64 << 10
_LINE: Final = re.compile(r"""(\w+)\s*=\s*(?:"(\w+)"|'(\w+)'|([^\s"']+))""")


class Profile(NamedTuple):
    """Thresholds of one kind of training."""

    name: str
    """Name of the profile, or of the file without its folder."""
    values: Mapping[str, float]
    """Every threshold by name; NaN is off."""


def load(profile: str = DEFAULT) -> Profile:
    """Return a profile.

    Args:
        profile: One of `PROFILES`, or the path of a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no profile; the message names the line and what is allowed.
    """
    if profile in PROFILES:
        return Profile(profile, {**DEFAULTS, **PROFILES[profile]})
    path = Path(profile)
    with safe_files.open_regular(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"a profile has at most {MAX_BYTES} bytes")
    return Profile(path.name, parse(data.decode("utf-8")))


def parse(text: str) -> dict[str, float]:
    """Return every threshold of a profile's text.

    Raises:
        ValueError: A line is no threshold; the message names it.
    """
    base, own = DEFAULT, {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = _LINE.fullmatch(words)
        if match is None:
            raise ValueError(f"line {number}: write NAME = NUMBER, as policy_kl_high = 0.1")
        name, word = match[1], match[2] or match[3] or match[4]
        if name == "base":
            base = _find_base(number, word)
        else:
            own[name] = _parse_value(number, name, word)
    return {**DEFAULTS, **PROFILES[base], **own}


def _find_base(number: int, word: str) -> str:
    if word not in PROFILES:
        raise ValueError(f"line {number}: there is no profile {word!r}: use {', '.join(PROFILES)}")
    return word


def _parse_value(number: int, name: str, word: str) -> float:
    if name not in DEFAULTS:
        raise ValueError(f"line {number}: there is no threshold {name!r}")
    try:
        value = float(word)
    except ValueError:
        raise ValueError(f"line {number}: {word!r} is no number; nan is off") from None
    if math.isinf(value):
        raise ValueError(f"line {number}: {name} must be finite; nan is off")
    return value


def to_manifest(profile: Profile) -> dict[str, str]:
    """Return the name of a profile and its thresholds that differ from the defaults, as JSON; off is null."""
    changed = {
        name: None if math.isnan(value) else value
        for name, value in profile.values.items()
        if value != DEFAULTS[name] and not (math.isnan(value) and math.isnan(DEFAULTS[name]))
    }
    return {_NAME_KEY: profile.name, _VALUES_KEY: json.dumps(changed)}


def from_manifest(manifest: Mapping[str, Any]) -> Profile:
    """Return the profile of a run; the default where its manifest has none, or a damaged one."""
    name, text = manifest.get(_NAME_KEY), manifest.get(_VALUES_KEY)
    try:
        changed = safe_files.parse_json(str(text).encode())
        values = {key: _read_value(changed[key]) for key in DEFAULTS if key in changed}
    except safe_files.READ_ERRORS:
        return load()
    return Profile(name if isinstance(name, str) else DEFAULT, {**DEFAULTS, **values})


def _read_value(value: Any) -> float:
    number = math.nan if value is None else float(value)
    if math.isinf(number):
        raise ValueError("a threshold must be finite")
    return number
