# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the page together: markup, style, scripts and data in one file that needs nothing else.

The page is opened from disk, with names in it that came from data sets and models. So: a policy that allows these two scripts'
and styles' hashes and no request at all (W3C, Content Security Policy Level 3); data in a block that no browser executes; every
name goes through `html.escape` here and ``textContent`` there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
from importlib import resources
from pathlib import Path
from typing import Final

from verl_otel._version import __version__
from verl_otel.analysis.facts import Explanation
from verl_otel.cli import first_lines, words
from verl_otel.cli.page import data
from verl_otel.cli.saved import saved
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
    "ledger.js",
    "scalars.js",
    "lists.js",
    "main.js",
)
"""In this order; they share one scope."""
_STATES: Final = {"finished": "✓", "failed": "✕", "running": "▶", "ended": "■"}


def render(run: Explanation) -> str:
    """Return the page as text."""
    style = _read("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_read(name) for name in SCRIPTS) + "})();\n"
    parts = {
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        "title": html.escape(f"{words.show(run.run_id)} · verl-otel"),
        "style": style,
        "run": html.escape(words.show(run.run_id)),
        "state": _state(run.state),
        "headline": "\n".join(f"<p>{html.escape(line)}</p>" for line in words.headline(run) if line),
        "findings": _findings(run),
        "missing": _missing(run),
        "folders": html.escape(words.show(", ".join(run.folders))),
        "version": html.escape(__version__),
        "data": data.encode(data.build(run)),
        "script": script,
    }
    return _fill(_read("page.html"), parts)


def write(run: Explanation, path: Path) -> None:
    """Write the page. A reader never sees half of it: it appears under its name when it is whole.

    Raises:
        VerlOtelError: It cannot be written there.
    """
    if path.is_dir():
        raise VerlOtelError(f"{path} cannot be written: it is a folder; give the name of a file")
    text = render(run)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            partial.write_text(text, "utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise VerlOtelError(f"{path} cannot be written: {error.strerror}") from None


def _fill(template: str, parts: dict[str, str]) -> str:
    """Put each part where the template names it. What is put in is not looked at again: a name may look like a place."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _findings(run: Explanation) -> str:
    """Return the first lines of the report, with links to the steps that they are about."""
    lines = []
    for line in first_lines.tell(run):
        own = None if line.step is None else line.step.number
        link = "" if own is None else f' <a href="#step={own}">Look at step {own}</a>'
        lines.append(f'<p class="finding">{html.escape(words.show(line.text, words.SENTENCE))}{link}</p>')
    held = [saved(step) for step in run.steps if step.verdicts]
    if held:
        lines.append(
            f"<p>Something unusual held {len(held):,} of {len(run.steps):,} steps, "
            f"which would have been {words.seconds(sum(held))} shorter without it, all together.</p>"
        )
    return "\n".join(lines) or "<p>No step has ended yet.</p>"


def _missing(run: Explanation) -> str:
    lines = [*getattr(run.gaps, "missing", ()), *run.problems]
    orphans = getattr(run.gaps, "orphans", 0)
    if orphans:
        lines.append(
            f"{orphans:,} spans have a parent in no file: a process was killed in its last second, or its files are missing"
        )
    lines += [
        f"The clock of {host} was found to be {ahead:+.3f} s ahead of the trainer's, give or take {words.seconds(doubt)}; times are corrected by it"
        for host, ahead, doubt in run.offsets
    ]
    items = "\n".join(f"<li>{html.escape(words.show(line, words.SENTENCE))}</li>" for line in lines)
    return f"<ul>\n{items}\n</ul>" if items else "<p>Nothing that could be noticed.</p>"


def _state(state: str) -> str:
    kind = "failed" if state == "failed" else "other"
    return f'<span class="state state-{kind}">{_STATES.get(state, "?")} {html.escape(words.show(state or "no end seen"))}</span>'


def _hash(text: str) -> str:
    """Return what a policy calls an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
