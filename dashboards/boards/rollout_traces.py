# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of traces on the board of rollouts: the only panels that need a trace store."""

from __future__ import annotations

from typing import Final

from dashboards.parts import panels, traces
from dashboards.parts.panels import Panel


def slow_traces() -> Panel:
    """Which trajectories were slow?"""
    text = (
        "Trajectories that took longer than the chosen duration; a span's id leads to its trace. Tempo returns some of them, not surely the "
        "slowest ones, and only what sampling kept: slow, failed and marked ones are kept whole."
    )
    return panels.spans("Slow trajectories", text, traces.find("slow"), sort="Duration")


def failed_traces() -> Panel:
    """Which trajectories failed?"""
    text = "Trajectories that ended with an error; a span's id leads to its trace. Texts of exceptions are off unless they were asked for."
    return panels.spans("Failed trajectories", text, traces.find("failed"), sort="Start time")


def tool_traces() -> Panel:
    """Which tool calls were slow?"""
    text = "Calls of tools that took longer than the chosen duration. Tempo returns some of them, not surely the slowest ones."
    return panels.spans("Slow tool calls", text, traces.find("tools"), sort="Duration", width=12)


def step_traces() -> Panel:
    """Which traces have the steps?"""
    text = "Traces of steps. Each is kept, whatever sampling does; the slowest trajectory of a step is named in it."
    return panels.spans("Steps", text, traces.find("steps"), sort="Start time", width=12)


PANELS: Final = (slow_traces, failed_traces, tool_traces, step_traces)
