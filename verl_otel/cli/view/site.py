# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Answers the requests of the live page: pages, and JSON below ``/api``."""

from __future__ import annotations

import functools
import html
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import msgspec

from verl_otel._version import __version__
from verl_otel.analysis import comparison
from verl_otel.analysis.io import run_files
from verl_otel.analysis.model import Explanation
from verl_otel.cli import page, rollouts
from verl_otel.cli.compare import render_json as compare_json
from verl_otel.cli.explain import render_json as explain_json
from verl_otel.cli.page import assembly, downsampling
from verl_otel.cli.runs import file_ends, overview, render
from verl_otel.cli.view import api, log_lines
from verl_otel.cli.view.access import Access
from verl_otel.cli.view.catalogue import Catalogue
from verl_otel.cli.view.watching import Watcher
from verl_otel.exporting.http_server import Reply, Request, make_plain_reply
from verl_otel.semconv import metric_names

# -- The list of all runs with what the ends of their files contain. A run is read again only when one of its files has changed --

FRESH_SECONDS: Final = 4.0
"""Age below which the list is not made again: several viewers share it."""
MAX_RUNS: Final = 500
MAX_RUNNING: Final = 2
"""Running runs whose verdicts are in the list although no client has opened their pages."""
REWARDS: Final = ("verl.critic.rewards.mean", "verl.critic.score.mean", metric_names.AVERAGE_REWARD)
_Signature = tuple[tuple[str, int, int], ...]


class Listing:
    """The list of runs.

    Args:
        catalogue: The runs.
        watcher: Has the verdicts of the runs that are being read.
    """

    def __init__(self, catalogue: Catalogue, watcher: Watcher) -> None:
        self._catalogue = catalogue
        self._watcher = watcher
        self._rows: dict[str, tuple[_Signature, dict[str, Any]]] = {}
        self._made_at = float("-inf")

    def read(self) -> list[dict[str, Any]]:
        """Return a row for each run, the one that was written last first."""
        self._refresh()
        running = [name for name, (_, row) in self._rows.items() if row["state"] == overview.RUNNING][:MAX_RUNNING]
        for name in running:
            self._watcher.ask(name)
        return [{**row, "last": self._last_step(name)} for name, (_, row) in self._rows.items()]

    def _refresh(self) -> None:
        if time.monotonic() - self._made_at > FRESH_SECONDS:
            runs = dict(list(self._catalogue.find().items())[:MAX_RUNS])
            self._rows = {name: self._read(name, folders) for name, folders in runs.items()}
            self._made_at = time.monotonic()

    def find_state(self, name: str) -> str:
        """Return the state of a run; empty if it is not in the list."""
        self._refresh()
        return str(self._rows[name][1]["state"]) if name in self._rows else ""

    def _read(self, name: str, folders: tuple[Path, ...]) -> tuple[_Signature, dict[str, Any]]:
        signature = tuple(entry for folder in folders for entry in _sign(folder))
        known = self._rows.get(name)
        if known is not None and known[0] == signature and known[1]["state"] != overview.RUNNING:
            return known
        rows = [render.to_json(overview.read(folder)) for folder in folders]
        row = max(rows, key=lambda row: row["last_step"] or -1)
        found = run_files.read_events(folders, [])
        rewards = [file_ends.read_last(folder, REWARDS) for folder in folders]
        reward = next((value for value in rewards if value is not None), None)
        return signature, {
            **row,
            "run": name,
            "folder": None,
            "nodes": len(folders),
            "reward": None if reward is None else downsampling.finite(reward),
            "alarms": len(found),
            "open_alarms": sum("resolved" not in event.detail for event in found),
        }

    def _last_step(self, name: str) -> dict[str, Any] | None:
        run = self._watcher.peek(name)
        return api.describe_step(run.steps[-1]) if run is not None and run.steps else None


def _sign(folder: Path) -> list[tuple[str, int, int]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, (status := entry.stat()).st_size, status.st_mtime_ns) for entry in entries)
    except OSError:
        return []


# -- Answers the requests of the live page: pages, and JSON below ``/api`` --

# -- Renders the HTML documents of the live page. They hold no data: their scripts fetch it below ``/api`` --

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


# -- Answers the requests of the live page: pages, and JSON below ``/api`` --

HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Headers of every page and document."""
MAX_DESCRIBED: Final = 4
_ENCODER: Final = msgspec.json.Encoder(enc_hook=list)
"""Columns are arrays. It writes the answer at once, without an object for each number."""
_Query = Mapping[str, Sequence[str]]


class NotFoundError(Exception):
    """There is nothing of that name."""


class Site:
    """The pages of the runs of a catalogue.

    Args:
        catalogue: The runs.
        watcher: Reads the requested runs.
        access: Checks the requests.
    """

    def __init__(self, catalogue: Catalogue, watcher: Watcher, access: Access) -> None:
        self._listing = Listing(catalogue, watcher)
        self._watcher = watcher
        self._access = access
        self._described: dict[str, tuple[Explanation, dict[str, Any]]] = {}
        """The last description of each run: viewers share it, and it is not made again for a run that has ended."""

    def answer(self, request: Request) -> Reply:
        """Return the answer to a request."""
        refused = self._access.check(request)
        if refused is not None:
            return refused
        parts = [unquote(part) for part in request.path.split("/") if part]
        try:
            query = parse_qs(request.query, max_num_fields=100)
            if parts[:1] == ["api"]:
                return _json(self._find_document(parts[1:], query))
            return _html(self._render(parts))
        except NotFoundError as error:
            return make_plain_reply(404, str(error), *HEADERS)
        except ValueError:
            return make_plain_reply(400, "a parameter is not valid", *HEADERS)

    def _render(self, parts: Sequence[str]) -> str:
        """Return a page."""
        match parts:
            case []:
                return render_home()
            case ["run", name]:
                text = render_run()
            case ["run", name, "report"]:
                text = page.render(self._find(name)[0])
            case ["run", name, "samples", "training" | "validation", _] | ["run", name, "samples", _, _, _]:
                text = render_samples()
            case ["compare", name, second]:
                text = render_comparison()
                self._find(second)
            case _:
                raise NotFoundError("no such page")
        self._find(name)
        return text

    def _find_document(self, parts: Sequence[str], query: _Query) -> Any:
        """Return the JSON document below ``/api``."""
        match parts:
            case ["runs"]:
                return self._listing.read()
            case ["runs", name]:
                return {"name": name, "state": self._listing.find_state(name), **self._describe(name)}
            case ["runs", name, kind] if kind in _DOCUMENTS:
                return _DOCUMENTS[kind](self._find(name)[0], query)
            case ["compare", first, second]:
                compared = comparison.compare(self._find(first)[0], self._find(second)[0])
                return compare_json.to_json(compared, ())
        raise NotFoundError("no such document")

    def _describe(self, name: str) -> dict[str, Any]:
        run, read = self._find(name)
        known = self._described.get(name)
        if known is None or known[0] is not run:
            self._described = dict(list(self._described.items())[-MAX_DESCRIBED:])
            known = self._described[name] = run, api.describe_run(run)
        return {**known[1], "read": round(read, 4), "log": log_lines.read(run.folders)}

    def _find(self, name: str) -> tuple[Explanation, float]:
        """Return what is known of a run, and the share of its files that was read."""
        found = self._watcher.ask(name)
        if found is None:
            raise NotFoundError("no such run")
        return found


def _explain(run: Explanation, query: _Query) -> dict[str, Any]:
    """Return the document of ``verl-otel explain --json``: for some steps, or for all that have a verdict."""
    numbers = {int(text) for text in query.get("step", [])}
    steps = [step for step in run.steps if (step.number in numbers if numbers else step.verdicts)]
    return explain_json.to_json(run, steps[-api.MAX_EXPLAINED :])


def _samples(run: Explanation, query: _Query) -> list[dict[str, Any]]:
    """Return the samples of a group of a step; without a group the groups of the step."""
    step, group = int(query["step"][0]) if "step" in query else -1, query.get("group")
    validation = query.get("kind") == ["validation"]
    if group is None:
        return rollouts.list_groups(run.manifest, step, validation=validation)
    return rollouts.read_group(run.manifest, step, group[0], validation=validation)


def _steps(run: Explanation, query: _Query) -> dict[str, Any]:
    return api.list_steps(run, max(0, int(query.get("first", ["0"])[0])))


def _scalars(run: Explanation, query: _Query) -> list[dict[str, Any]]:
    return api.list_scalars(run, query.get("name", []))


_DOCUMENTS: Final = {"steps": _steps, "scalars": _scalars, "explain": _explain, "samples": _samples}
"""The documents of a run, by the last part of their address."""


def _html(text: str) -> Reply:
    return Reply(200, (("Content-Type", "text/html; charset=utf-8"), *HEADERS), text.encode())


def _json(document: Any) -> Reply:
    return Reply(200, (("Content-Type", "application/json"), *HEADERS), _ENCODER.encode(document))
