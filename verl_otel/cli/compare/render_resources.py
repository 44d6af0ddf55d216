# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the resources of two runs: GPUs, tokens per second, utilisation, memory, and how throughput scales with the number of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from verl_otel.analysis.comparison import Comparison
from verl_otel.cli.compare.layout import lay_out
from verl_otel.cli.explain.wording import figure

_GIB: Final = 1 << 30
_ROWS: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "gpus": ("GPUs", lambda value: f"{value:.0f}"),
    "trained_tokens_per_second": ("trained tokens", lambda value: f"{figure(value)}/s"),
    "rollout_tokens_per_second": ("rollout tokens", lambda value: f"{figure(value)}/s"),
    "gpu_utilization": ("GPU utilisation", lambda value: f"{value:.0%}"),
    "gpu_memory": ("GPU memory, mean", lambda value: f"{figure(value / _GIB)} GiB"),
    "gpu_memory_highest": ("GPU memory, highest", lambda value: f"{figure(value / _GIB)} GiB"),
}
"""Name and form of each value of `Resources`."""


def render(comparison: Comparison, *, markdown: bool) -> str:
    """Return the resources of both runs as a table; empty if nothing but their number of GPUs is known."""
    before, after = comparison.resources
    cells = [["Resources", "A", "B", "change", ""]]
    for field, (name, form) in _ROWS.items():
        a, b = getattr(before, field), getattr(after, field)
        if a is not None or b is not None:
            shown = [form(value) if value is not None else "unknown" for value in (a, b)]
            cells.append([name if comparison.has_gpu else name.replace("GPUs", "devices"), *shown, _change(a, b), ""])
    if len(cells) <= 2:  # noqa: PLR2004 - the head, and the number of GPUs
        return ""
    lines = [lay_out(cells, markdown=markdown), *_scaling(comparison)]
    return "\n".join(lines)


def _change(a: float | None, b: float | None) -> str:
    return f"{b / a - 1:+.1%}" if a and b is not None else ""


def _scaling(comparison: Comparison) -> list[str]:
    scaling, (a, b) = comparison.scaling, comparison.resources
    if scaling is None:
        return []
    shares = {"trained tokens": scaling.trained_tokens, "rollout tokens": scaling.rollout_tokens}
    known = [f"{share:.0%} for {name}" for name, share in shares.items() if share is not None]
    if not known:
        return []
    unit = "GPUs" if comparison.has_gpu else "devices"
    return ["", f"Scaling efficiency from {a.gpus} to {b.gpus} {unit}: {', '.join(known)} (100% is linear)."]
