# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON of a comparison: its keys do not change. Knows nothing of files or arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_otel.analysis.compare import Comparison, Row
from verl_otel.cli.conditions import Condition, Result
from verl_otel.cli.explain_json import strict


def to_json(comparison: Comparison, results: Sequence[tuple[Condition, Result]]) -> dict[str, Any]:
    """Return a comparison as plain data. A change is relative to A (0.05 is 5 %); null where A has none of it."""
    found = {
        "a": comparison.a,
        "b": comparison.b,
        "steps": {"a": comparison.counts[0], "b": comparison.counts[1]},
        "skipped": comparison.skipped,
        "enough": comparison.enough,
        "noise": comparison.noise,
        "rows": [_row(row) for row in comparison.rows],
        "explanation": [
            {
                "kind": each.kind,
                "seconds": each.seconds,
                "share": each.share,
                "names": [{"name": name, "a": before, "b": after} for name, before, after in each.names],
            }
            for each in comparison.contributions
        ],
        "notes": list(comparison.notes),
        "conditions": [
            {"condition": condition.text, "holds": result.holds, "judged": result.judged, "reason": result.reason}
            for condition, result in results
        ],
    }
    return {key: strict(value) for key, value in found.items()}


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
