# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The panels of phases that two boards show, each with its own words."""

from __future__ import annotations

from dashboards.parts import panels
from dashboards.parts.panels import Panel
from dashboards.parts.queries import part, query


def per_step(text: str) -> Panel:
    """Return the seconds of a step in each phase, one above the other."""
    spent = "sum by (verl_phase) (increase(verl_phase_duration_seconds_sum{run}[window]))"
    steps = "sum (increase(verl_step_duration_seconds_count{run}[window]))"
    return panels.stacked("Time of a step, by phase", text, "s", query(part(spent, steps, on=""), "{{verl_phase}}"))


def opened(title: str, text: str) -> Panel:
    """Return which phases were open when."""
    asked = query("max by (verl_phase) (verl_phase_active{run}) > bool 0", "{{verl_phase}}")
    return panels.lanes(title, text, asked, names={"0": ("-", "transparent"), "1": ("open", "blue")})
