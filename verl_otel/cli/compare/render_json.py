# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders a comparison as JSON. The keys are stable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_otel.analysis.comparison import Comparison, Row
from verl_otel.cli.compare.conditions import Condition, Result
from verl_otel.cli.explain.render_json import strict


def to_json(comparison: Comparison, results: Sequence[tuple[Condition, Result]]) -> dict[str, Any]:
    """Return a comparison as plain data. A change is relative to A (0.05 is 5 %); null where A's value is zero."""
    document = {
        "a": comparison.a,
        "b": comparison.b,
        "steps": {"a": comparison.counts[0], "b": comparison.counts[1]},
        "skipped": comparison.skipped,
        "enough": comparison.enough,
        "noise": comparison.noise,
        "rows": [_row(row) for row in comparison.rows],
        "explanation": [
            {
                "kind": contribution.kind,
                "seconds": contribution.seconds,
                "share": contribution.share,
                "names": [{"name": name, "a": before, "b": after} for name, before, after in contribution.names],
            }
            for contribution in comparison.contributions
        ],
        "resources": {name: used._asdict() for name, used in zip("ab", comparison.resources, strict=True)},
        "scaling": None if comparison.scaling is None else comparison.scaling._asdict(),
        "notes": list(comparison.notes),
        "conditions": [
            {"condition": condition.text, "holds": result.holds, "judged": result.judged, "reason": result.reason}
            for condition, result in results
        ],
    }
    return {key: strict(value) for key, value in document.items()}


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        "a": row.difference.a._asdict(),
        "b": row.difference.b._asdict(),
        "change": row.difference.change,
        "p": row.p,
        "significant": row.significant,
        "detectable": row.detectable,
    }
