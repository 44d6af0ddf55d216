# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Assembles an HTML page from a template: placeholders, and a policy that allows only the page's own script and style."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

from verl_otel.semconv.kinds import GPU_CAUSES, WORK

PACKAGE: Final = "verl_otel.cli.page"


def read(name: str, package: str = PACKAGE) -> str:
    """Return a file of a package."""
    return resources.files(package).joinpath(name).read_text("utf-8")


def join_scripts(texts: Iterable[str]) -> str:
    """Return scripts as one, whose names are not global, after the looks of what they draw."""
    looks = {
        "KINDS": {name: work.look for name, work in WORK.items()},
        "CAUSES": {name: cause.look for name, cause in GPU_CAUSES.items()},
    }
    constants = [f"const {name} = {json.dumps(rows)};" for name, rows in looks.items()]
    return '"use strict";\n(() => {\n' + "\n".join([*constants, *texts]) + "})();\n"


def render(title: str, body: str, style: str, script: str, *, data: str = "", connect: bool = False) -> str:
    """Return a page: a body in the markup that all pages have, with the policy that allows only its own script and style.

    Args:
        title: Its title, as HTML.
        body: Its header, content and footer, as HTML.
        style: The text of the style element.
        script: The text of the script element.
        data: Safe JSON for the script; empty: none.
        connect: Whether the script may send requests to the server of the page.
    """
    parts = {
        "policy": _make_policy(script, style, connect=connect),
        "title": title,
        "style": style,
        "body": body,
        "data": f'<script type="application/json" id="data">{data}</script>\n' if data else "",
        "script": script,
    }
    return fill(read("frame.html"), parts)


def _make_policy(script: str, style: str, *, connect: bool) -> str:
    """Return the content security policy of a page: no script, style or request but its own."""
    requests = "connect-src 'self'; " if connect else ""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; {requests}"
        "base-uri 'none'; form-action 'none'"
    )


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace the placeholders of a template. Inserted text is not expanded again: a name may look like a placeholder."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _hash(text: str) -> str:
    """Return the hash of an inline script or style for the policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
