# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Thresholds that panels draw as fixed lines: the defaults.

Panels of the core indicators draw the series ``verl:threshold{name="..."}`` instead, which is that of the profile in use.
"""

from __future__ import annotations

import math

from verl_otel.health.thresholds import DEFAULTS


def find_threshold(name: str) -> float:
    """Return the default of a threshold.

    Raises:
        KeyError: There is no such threshold, or it is off by default.
    """
    value = DEFAULTS[name]
    if math.isnan(value):
        raise KeyError(name)
    return float(value)
