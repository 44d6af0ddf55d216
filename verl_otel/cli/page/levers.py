# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The section of the page about the levers of a run: a table that needs no script."""

from __future__ import annotations

import html
from typing import Final

from verl_otel._internal.printable import counted
from verl_otel.analysis.levers.ranking import Lever, find_levers
from verl_otel.analysis.model import Explanation
from verl_otel.cli import formatting
from verl_otel.cli.levers.rendering import REPLAYED_ITEMS, TITLE, choose, describe, describe_interval

_SECTION: Final = """<section id="levers" aria-labelledby="levers-title">
<h2 id="levers-title">{title}</h2>
<table>
<thead><tr><th scope="col" class="number">gain a step</th><th scope="col" class="number">share</th><th scope="col">interval of 90 %</th><th scope="col">what is changed</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
<p class="soft">Found by replaying {steps} with one thing changed. {unknown}.</p>
</section>
"""


def render(run: Explanation) -> str:
    """Return the section; empty if nothing would make a step shorter, or nothing is known of it."""
    found = find_levers(run.recent_steps, most_items=REPLAYED_ITEMS)
    shown = choose(found.levers)
    if not shown:
        return ""
    return _SECTION.format(
        title=html.escape(TITLE),
        rows="\n".join(map(_row, shown)),
        steps=counted(len(found.steps), "step"),
        unknown=html.escape("; ".join(found.unknown).capitalize()),
    )


def _row(lever: Lever) -> str:
    cells = (formatting.seconds(lever.seconds), f"{lever.share:.0%}")
    numbers = "".join(f'<td class="number">{html.escape(cell)}</td>' for cell in cells)
    return f"<tr>{numbers}<td>{html.escape(describe_interval(lever))}</td><td>{html.escape(describe(lever))}</td></tr>"
