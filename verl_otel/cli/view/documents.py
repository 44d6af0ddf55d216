# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the HTML documents of the live page. They hold no data: their scripts fetch it below ``/api``."""

from __future__ import annotations

import functools
import html
from typing import Final

from verl_otel._version import __version__
from verl_otel.cli.page import assembly

PACKAGE: Final = "verl_otel.cli.view"
_SHARED: Final = ("format.js", "colours.js", "elements.js", "tables.js", "chart.js")
"""Scripts of the page of a run that these pages use, too."""


@functools.cache
def render_home() -> str:
    """Return the page with all runs."""
    return _render("Runs", "home.html", ("home.js",))


@functools.cache
def render_run() -> str:
    """Return the page of a run; its address names the run."""
    return _render("Run", "run.html", ("live_chart.js", "run_tables.js", "run.js"))


@functools.cache
def render_comparison() -> str:
    """Return the page that compares two runs; its address names both."""
    return _render("Comparison", "compare.html", ("live_chart.js", "compare.js"))


@functools.cache
def render_samples() -> str:
    """Return the page with the samples of a step; its address names run and step."""
    return _render("Samples", "samples.html", ("samples.js",))


def _render(title: str, template: str, scripts: tuple[str, ...]) -> str:
    style = assembly.read("page.css") + assembly.read("view.css", PACKAGE)
    script = assembly.join_scripts(
        [*map(assembly.read, _SHARED), *(assembly.read(name, PACKAGE) for name in ("polling.js", *scripts))]
    )
    body = assembly.fill(assembly.read(template, PACKAGE), {"version": html.escape(__version__)})
    return assembly.render(title, body, style, script, connect=True)
