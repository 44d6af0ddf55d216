# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the page: markup, style, scripts and data in one self-contained file.

The page is opened from disk and contains names from data sets and models. Therefore: a policy that allows only the hashes of its
script and style and no request at all (W3C, Content Security Policy Level 3); data in a block that no browser executes; every
name goes through `html.escape` here and ``textContent`` there.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Final

from verl_otel._internal import printable, safe_files
from verl_otel._internal.printable import counted, seconds
from verl_otel._version import __version__
from verl_otel.analysis.levers.ranking import Lever, find_levers
from verl_otel.analysis.model import Explanation
from verl_otel.cli import formatting, headlines, wording
from verl_otel.cli.levers import REPLAYED_ITEMS, TITLE, choose, describe_interval
from verl_otel.cli.page import assembly, data
from verl_otel.errors import VerlOtelError

SCRIPTS: Final = (
    "format.js", "read.js", "colours.js", "elements.js", "tables.js", "chart.js", "lanes.js", "columns.js",
    "steps.js", "path.js", "step.js", "trajectories.js", "gpu_time.js", "scalars.js", "lists.js", "main.js",
)  # fmt: skip
"""The scripts in this order; they share one scope."""
DEVICE_TIMES: Final = {True: "GPU time", False: "Device time (CPU)"}
"""Title of the account of device time, by whether the run has GPUs."""
_EVENTS: Final = """<section id="events" aria-labelledby="events-title"><h2 id="events-title">Events and unfinished work</h2></section>
"""
_MISSING: Final = """<section id="missing" aria-labelledby="missing-title">
<h2 id="missing-title">What is missing</h2>
<ul>
{items}
</ul>
</section>
"""
_STATES: Final = {"finished": "✓", "failed": "✕", "crashed": "✕", "running": "▶", "ended": "■", "interrupted": "■"}


def render(run: Explanation) -> str:
    """Return the page as text."""
    name = html.escape(printable.show(run.run_id))
    levers_section = _render_levers(run)
    parts = {
        "run": name,
        "state": _state(run.state),
        "headline": "\n".join(f"<p>{html.escape(line)}</p>" for line in formatting.headline(run) if line),
        "findings": _findings(run),
        "device_time": html.escape(DEVICE_TIMES[run.has_gpu]),
        "device_hidden": "" if _has_devices(run) else " hidden",
        "links": _links(run, has_levers=bool(levers_section)),
        "levers": levers_section,
        "events": _EVENTS if _has_events(run) else "",
        "missing": _missing(run),
        "folders": html.escape(printable.show(", ".join(run.folders))),
        "version": html.escape(__version__),
    }
    return assembly.render(
        name,
        assembly.fill(assembly.read("page.html"), parts),
        assembly.read("page.css"),
        assembly.join_scripts(map(assembly.read, SCRIPTS)),
        data=data.encode(data.build(run)),
    )


DEVICES: Final = Path("/dev")
"""Folder whose entries are never replaced: ``/dev/stdout`` may be a link to a regular file."""


def write(run: Explanation, path: Path) -> None:
    """Write the page atomically.

    Raises:
        VerlOtelError: It cannot be written there.
    """
    if path.is_dir():
        raise VerlOtelError(f"{path} cannot be written: it is a folder; give the name of a file")
    if (path.exists() and not path.is_file()) or path.absolute().parent == DEVICES:
        raise VerlOtelError(f"{path} cannot be written: it is not a regular file, and would be replaced")
    text = render(run)
    try:
        safe_files.write_atomically(path, text, private=False)  # the umask of the user who has asked for it
    except OSError as error:
        raise VerlOtelError(f"{path} cannot be written: {error.strerror}") from None


def _findings(run: Explanation) -> str:
    """Return the first lines of the report, with links to their steps."""
    lines = []
    for line in headlines.find_headlines(run):
        own = None if line.step is None else line.step.number
        link = "" if own is None else f' <a href="#step={own}">Look at step {own}</a>'
        lines.append(f'<p class="finding">{html.escape(printable.show(line.text, formatting.SENTENCE))}{link}</p>')
    if any(step.verdicts for step in run.steps):
        lines.append(f"<p>{wording.describe_held(run.steps)}.</p>")
    return "\n".join(lines) or "<p>No step has ended yet.</p>"


def _missing(run: Explanation) -> str:
    lines = _missing_lines(run)
    items = "\n".join(f"<li>{html.escape(printable.show(line, formatting.SENTENCE))}</li>" for line in lines)
    return _MISSING.format(items=items) if lines else ""


def _missing_lines(run: Explanation) -> list[str]:
    lines = [*run.missing, *filter(None, [formatting.orphans(run)])]
    lines += [
        f"The clock of {host} was found to be {ahead:+.3f} s ahead of the trainer's, give or take {seconds(doubt)}; times are corrected by it"
        for host, ahead, doubt in run.offsets
    ]
    return lines


def _has_devices(run: Explanation) -> bool:
    """Return whether the run has devices, or GPUs of which nothing is known, which the page says."""
    return bool(run.devices or run.has_gpu)


def _has_events(run: Explanation) -> bool:
    return bool(run.events or run.completeness.unfinished or run.validations)


def _links(run: Explanation, *, has_levers: bool) -> str:
    """Return the links to the sections that the page has."""
    links = {
        "findings": "Findings",
        "steps": "Steps",
        "step": "Chosen step",
        "trajectories": "Trajectories",
        "gpu": DEVICE_TIMES[run.has_gpu] if _has_devices(run) else "",
        "verdicts": "Verdicts",
        "levers": "Levers" if has_levers else "",
        "events": "Events" if _has_events(run) else "",
        "scalars": "Scalars",
        "cost": "Cost",
        "missing": "What is missing" if _missing_lines(run) else "",
    }
    return "\n".join(f'<a href="#{key}">{html.escape(text)}</a>' for key, text in links.items() if text)


def _state(state: str) -> str:
    kind = "failed" if state in ("failed", "crashed") else "other"
    return f'<span class="state state-{kind}">{_STATES.get(state, "?")} {html.escape(printable.show(state or "no end seen"))}</span>'


# -- The section about the levers of a run: a table that needs no script --

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


def _render_levers(run: Explanation) -> str:
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
    cells = (seconds(lever.seconds), f"{lever.share:.0%}")
    numbers = "".join(f'<td class="number">{html.escape(cell)}</td>' for cell in cells)
    return f"<tr>{numbers}<td>{html.escape(describe_interval(lever))}</td><td>{html.escape(wording.describe_lever(lever))}</td></tr>"
