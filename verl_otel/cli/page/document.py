# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the page: markup, style, scripts and data in one self-contained file.

The page is opened from disk and contains names from data sets and models. Therefore: a policy that allows only the hashes of
and styles' hashes and no request at all (W3C, Content Security Policy Level 3); data in a block that no browser executes; every
name goes through `html.escape` here and ``textContent`` there.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources
from pathlib import Path
from typing import Final

from verl_otel._internal import printable, private_files
from verl_otel._version import __version__
from verl_otel.analysis.model import Explanation
from verl_otel.analysis.verdicts.step_savings import sum_savings
from verl_otel.cli import formatting
from verl_otel.cli.page import data
from verl_otel.cli.report import headlines
from verl_otel.errors import VerlOtelError

SCRIPTS: Final = (
    "read.js",
    "colours.js",
    "elements.js",
    "tables.js",
    "chart.js",
    "lanes.js",
    "columns.js",
    "steps.js",
    "path.js",
    "step.js",
    "trajectories.js",
    "gpu_time.js",
    "scalars.js",
    "lists.js",
    "main.js",
)
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
_STATES: Final = {"finished": "✓", "failed": "✕", "running": "▶", "ended": "■"}


def render(run: Explanation) -> str:
    """Return the page as text."""
    style = _read("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_read(name) for name in SCRIPTS) + "})();\n"
    parts = {
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        "title": html.escape(f"{printable.show(run.run_id)} · verl-otel"),
        "style": style,
        "run": html.escape(printable.show(run.run_id)),
        "state": _state(run.state),
        "headline": "\n".join(f"<p>{html.escape(line)}</p>" for line in formatting.headline(run) if line),
        "findings": _findings(run),
        "device_time": html.escape(DEVICE_TIMES[run.has_gpu]),
        "links": _links(run),
        "events": _EVENTS if _has_events(run) else "",
        "missing": _missing(run),
        "folders": html.escape(printable.show(", ".join(run.folders))),
        "version": html.escape(__version__),
        "data": data.encode(data.build(run)),
        "script": script,
    }
    return _fill(_read("page.html"), parts)


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
        private_files.write_atomically(path, text, private=False)  # the umask of the user who has asked for it
    except OSError as error:
        raise VerlOtelError(f"{path} cannot be written: {error.strerror}") from None


def _fill(template: str, parts: dict[str, str]) -> str:
    """Replace the placeholders of a template. Inserted text is not expanded again: a name may look like a placeholder."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _findings(run: Explanation) -> str:
    """Return the first lines of the report, with links to their steps."""
    lines = []
    for line in headlines.find_headlines(run):
        own = None if line.step is None else line.step.number
        link = "" if own is None else f' <a href="#step={own}">Look at step {own}</a>'
        lines.append(f'<p class="finding">{html.escape(printable.show(line.text, formatting.SENTENCE))}{link}</p>')
    held = [sum_savings(step) for step in run.steps if step.verdicts]
    if held:
        lines.append(
            f"<p>Something unusual delayed {len(held):,} of {printable.counted(len(run.steps), 'step')}, "
            f"which would have been {formatting.seconds(sum(held))} shorter without it, in total.</p>"
        )
    return "\n".join(lines) or "<p>No step has ended yet.</p>"


def _missing(run: Explanation) -> str:
    lines = _missing_lines(run)
    items = "\n".join(f"<li>{html.escape(printable.show(line, formatting.SENTENCE))}</li>" for line in lines)
    return _MISSING.format(items=items) if lines else ""


def _missing_lines(run: Explanation) -> list[str]:
    lines = [*run.completeness.missing, *run.problems, *filter(None, [formatting.orphans(run)])]
    lines += [
        f"The clock of {host} was found to be {ahead:+.3f} s ahead of the trainer's, give or take {formatting.seconds(doubt)}; times are corrected by it"
        for host, ahead, doubt in run.offsets
    ]
    return lines


def _has_events(run: Explanation) -> bool:
    return bool(run.events or run.completeness.unfinished or run.validations)


def _links(run: Explanation) -> str:
    """Return the links to the sections that the page has."""
    links = {
        "findings": "Findings",
        "steps": "Steps",
        "step": "Chosen step",
        "trajectories": "Trajectories",
        "gpu": DEVICE_TIMES[run.has_gpu],
        "verdicts": "Verdicts",
        "events": "Events" if _has_events(run) else "",
        "scalars": "Scalars",
        "cost": "Cost",
        "missing": "What is missing" if _missing_lines(run) else "",
    }
    return "\n".join(f'<a href="#{key}">{html.escape(text)}</a>' for key, text in links.items() if text)


def _state(state: str) -> str:
    kind = "failed" if state == "failed" else "other"
    return f'<span class="state state-{kind}">{_STATES.get(state, "?")} {html.escape(printable.show(state or "no end seen"))}</span>'


def _hash(text: str) -> str:
    """Return the hash of an inline script or style for the policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
