# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lays out the tables of a comparison: name, A, B, change, remark."""

from __future__ import annotations

from collections.abc import Sequence


def lay_out(cells: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Return a table of five columns as text; the first row is its head."""
    if markdown:
        lines = [
            " | ".join(line).join(("| ", " |"))
            for line in [[part.replace("|", "\\|") for part in row] for row in cells]
        ]
        return "\n".join([lines[0], "|---|---:|---:|---:|---|", *lines[1:]])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join(
        f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}".rstrip()
        for row in cells
    )
