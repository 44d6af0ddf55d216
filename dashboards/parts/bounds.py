# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bounds that panels draw: what the alerts compare with, from their own file.

A board has the defaults; who changes a threshold sees his own as the series ``verl:threshold{name="..."}``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).resolve().parents[1] / "rules" / "thresholds.rules.yml"
_RULE: Final = re.compile(r"labels: \{name: (\w+)\}, expr: vector\(([\d.]+)\)")


def find(name: str) -> float:
    """Return a threshold's default. Raises `KeyError` for one that is not there, or off by default."""
    return _read()[name]


@cache
def _read() -> dict[str, float]:
    return {name: float(number) for name, number in _RULE.findall(_FILE.read_text("utf-8"))}
