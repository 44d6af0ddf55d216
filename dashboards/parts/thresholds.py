# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Thresholds that panels draw: the values that alerts compare with, read from the rules.

Boards show the defaults. A changed threshold is visible as the series ``verl:threshold{name="..."}``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).resolve().parents[1] / "rules" / "thresholds.rules.yml"
_RULE: Final = re.compile(r"labels: \{name: (\w+)\}, expr: vector\(([\d.]+)\)")


def find_threshold(name: str) -> float:
    """Return the default of a threshold.

    Raises:
        KeyError: There is no such threshold, or it is off by default.
    """
    return _read()[name]


@cache
def _read() -> dict[str, float]:
    return {name: float(number) for name, number in _RULE.findall(_FILE.read_text("utf-8"))}
