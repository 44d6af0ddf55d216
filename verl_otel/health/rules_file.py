# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the thresholds of a profile as recording rules for Prometheus: the file ``thresholds.rules.yml``."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import Final

from verl_otel.health.profiles import Profile
from verl_otel.health.thresholds import AREAS, Threshold

FILE: Final = "thresholds.rules.yml"
_WIDTH: Final = 134
_HEAD: Final = """\
# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
#
# Generated: thresholds of the profile {profile}. `verl-otel boards export DIR --profile NAME|FILE` writes those of another one.
#
# Every threshold of every alert, in one place. An alert reads scalar(verl:threshold{{name="..."}}), a board draws the same series as a
# line, and a change here needs nothing else: edit, reload Prometheus. Guards and the live page do not read this file: to change a threshold
# for them as well, write a profile (VERL_OTEL_HEALTH_PROFILE).
#
# vector(NaN) is off: nothing compares with NaN. Off by default is what depends on the scale of your reward, on your model or on your
# algorithm; the comment says the value to begin with. "steps" are training steps, so that one value fits steps of seconds and of hours.

groups:
  - name: verl:thresholds
    interval: 30s
    rules:
"""


def render(profile: Profile) -> str:
    """Return the file of a profile."""
    lines: list[str] = []
    for area, rows in AREAS.items():
        lines += [*([""] if lines else []), f"      # -- {area} {'-' * (112 - len(area))}"]
        for row in rows:
            lines += _render_row(row, profile.values[row.name])
    return _HEAD.format(profile=profile.name) + "\n".join(lines) + "\n"


def _render_row(row: Threshold, value: float) -> Iterator[str]:
    yield from (f"      # {line}" for line in textwrap.wrap(row.text, _WIDTH))
    number = "NaN" if math.isnan(value) else f"{value:.12g}"
    yield f'      - {{record: "verl:threshold", labels: {{name: {row.name}}}, expr: vector({number})}}'
