# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The panels of phases that two boards show, each with its own words."""

from __future__ import annotations

from dashboards.parts import panels
from dashboards.parts.names import label, legend, metric
from dashboards.parts.panels import Panel
from dashboards.parts.queries import part, query


def per_step(text: str) -> Panel:
    """Return the seconds of a step in each phase, one above the other."""
    spent = f"sum by ({label.PHASE}) (increase({metric.PHASE_DURATION}_sum{{run}}[window]))"
    steps = f"sum (increase({metric.STEP_DURATION}_count{{run}}[window]))"
    return panels.stacked("Time of a step, by phase", text, "s", query(part(spent, steps, on=""), legend.PHASE))


def opened(title: str, text: str) -> Panel:
    """Return which phases were open when."""
    target = query(f"max by ({label.PHASE}) ({metric.PHASE_ACTIVE}{{run}}) > bool 0", legend.PHASE)
    return panels.state_timeline(title, text, target, names={"0": ("-", "transparent"), "1": ("open", "blue")})
