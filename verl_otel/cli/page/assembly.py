# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The files of the page, served one by one or joined in one HTML file. A policy allows only the page's own ones."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final

from verl_otel._version import __version__
from verl_otel.semconv.kinds import GPU_CAUSES, PHASES, WORK

PACKAGE: Final = "verl_otel.cli.page"
ENTRY: Final = "app.js"
LIBRARY: Final = "vendor/uplot.js"
STYLES: Final = ("vendor/uplot.css", "app.css")
NOTHING: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:"
SERVED_POLICY: Final = f"{NOTHING}; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
"""Of the served page: its own files, and requests to its server."""
_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


@functools.cache
def read(name: str) -> str:
    """Return a file of the page."""
    return resources.files(PACKAGE).joinpath(name).read_text("utf-8")


@functools.cache
def list_modules(entry: str = ENTRY) -> tuple[str, ...]:
    """Return the module and all that it imports, each after those that it imports itself."""
    found: dict[str, None] = {}
    for name in _IMPORT.findall(read(entry)):
        found.update(dict.fromkeys(list_modules(name)))
    return (*found, entry)


@functools.cache
def list_files() -> frozenset[str]:
    """Return the names of the files that the served page consists of."""
    return frozenset((*list_modules(), LIBRARY, *STYLES))


def render_served() -> str:
    """Return the page that loads its files from its server."""
    links = "".join(f'<link rel="stylesheet" href="app/{name}">\n' for name in STYLES)
    scripts = f'<script src="app/{LIBRARY}" defer></script>\n<script type="module" src="app/{ENTRY}"></script>'
    return _fill(
        title="verl-otel", policy="", head=links, content="", data=_element("looks", _looks()), scripts=scripts
    )


def render_file(title: str, lines: Iterable[str], documents: Mapping[str, str]) -> str:
    """Return the page with everything in it.

    Args:
        title: Name of the run.
        lines: What stands in it without any script.
        documents: What it shows, by its address, compressed (gzip, base64).
    """
    modules = "\n".join(_IMPORT.sub("", read(name)).replace("\nexport ", "\n") for name in list_modules())
    library, script = read(LIBRARY), f'"use strict";\n(() => {{\n{modules}}})();\n'
    style = "".join(map(read, STYLES))
    policy = f"{NOTHING}; script-src {_hash(library)} {_hash(script)}; style-src {_hash(style)}"
    return _fill(
        title=html.escape(title),
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        head=f"<style>{style}</style>\n",
        content="\n".join(f"<p>{html.escape(line)}</p>" for line in lines),
        data=_element("looks", _looks()) + _element("documents", documents),
        scripts=f"<script>{library}</script>\n<script>{script}</script>",
    )


def _looks() -> dict[str, Any]:
    return {
        "version": __version__,
        "phases": PHASES,
        "kinds": {name: work.look for name, work in WORK.items()},
        "causes": {name: (*cause.look, cause.state) for name, cause in GPU_CAUSES.items()},
    }


def _element(name: str, value: Any) -> str:
    return f'<script type="application/json" id="{name}">{encode(value)}</script>\n'


def encode(value: Any) -> str:
    """Return JSON that is safe in a script element: ASCII, nothing that ends the element or starts a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _fill(**parts: str) -> str:
    """Return the markup with its places filled. Inserted text is not expanded again: a name may look like a place."""
    pieces = read("app.html").split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def _hash(text: str) -> str:
    """Return the hash of an inline script or style for the policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
