# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Answers the requests of the live page: pages, and JSON below ``/api``."""

from __future__ import annotations

import functools
import hashlib
import hmac
import html
import ipaddress
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import msgspec

from verl_otel._internal import printable, safe_files
from verl_otel._version import __version__
from verl_otel.analysis import comparison, indicators, scalars
from verl_otel.analysis.io import run_files, run_log
from verl_otel.analysis.io.run_log import Record
from verl_otel.analysis.model import Explanation, OpenSpan, Series, Step, Trajectory
from verl_otel.analysis.traces.span_names import TRAJECTORY
from verl_otel.cli import formatting, headlines, page, rollouts, run_overview
from verl_otel.cli.documents.base import to_plain
from verl_otel.cli.documents.compare import make_compare
from verl_otel.cli.documents.explain import make_explain
from verl_otel.cli.documents.runs import make_run_row
from verl_otel.cli.logs import render_line
from verl_otel.cli.page import assembly, data
from verl_otel.cli.view.watching import Catalogue, Watcher
from verl_otel.errors import VerlOtelError
from verl_otel.exporting.http_server import Reply, Request, make_plain_reply, strip_brackets
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.metric_names import TRAINING_STEP
from verl_otel.semconv.run_state import RunState

# -- The list of all runs with what their manifests contain. A run is read again only when one of its files has changed --

FRESH_SECONDS: Final = 4.0
"""Age below which the list is not made again: several viewers share it."""
MAX_RUNS: Final = 500
MAX_RUNNING: Final = 2
"""Running runs whose verdicts are in the list although no client has opened their pages."""
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
        running = [name for name, (_, row) in self._rows.items() if row["state"] == RunState.RUNNING.word][:MAX_RUNNING]
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
        if known is not None and known[0] == signature and known[1]["state"] != RunState.RUNNING.word:
            return known
        overviews = [run_overview.read(folder) for folder in folders]
        overview = max(overviews, key=lambda overview: overview.last_step or -1)
        found = run_files.read_events(folders, [])
        reward = next((each.reward for each in overviews if each.reward is not None), None)
        return signature, {
            **to_plain(make_run_row(overview)),
            "run": name,
            "folder": None,
            "nodes": len(folders),
            "reward": None if reward is None else data.finite(reward),
            "verdict": printable.show(overview.verdict, formatting.SENTENCE),
            "alarms": len(found),
            "open_alarms": sum("resolved" not in event.detail for event in found),
        }

    def _last_step(self, name: str) -> dict[str, Any] | None:
        run = self._watcher.peek(name)
        return describe_step(run.steps[-1]) if run is not None and run.steps else None


def _sign(folder: Path) -> list[tuple[str, int, int]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, (status := entry.stat()).st_size, status.st_mtime_ns) for entry in entries)
    except OSError:
        return []


# -- Checks requests: any client with the token may read the page, and with ``--no-token`` every client on this machine --
#
# The loopback is no boundary: every user of the machine reaches it, and the page shows what only the user of the training may read. So every
# request needs the token, as a bearer token or as a cookie that a visit of ``/?token=...`` sets. Without a token only requests to a loopback name
# are answered: a page of another site whose name resolves to this machine sends its own name as ``Host`` (DNS rebinding).

COOKIE: Final = "verl_otel_view"
"""Beginning of the cookie's name. The port follows, because browsers send a host's cookies to all its ports: two servers have two cookies."""
MIN_LENGTH: Final = 16
"""Shortest token, in characters."""


class Access:
    """Checks requests.

    Args:
        token: The token; empty: none.
        secure: Whether the server speaks TLS; the cookie is then sent over TLS only.
    """

    def __init__(self, token: str = "", *, secure: bool = False) -> None:
        self._token = token.encode()
        self._mark = hmac.new(self._token, b"verl-otel view", hashlib.sha256).hexdigest()
        self._secure = secure

    def check(self, request: Request) -> Reply | None:
        """Return the refusal of a request, or the reply that sets the cookie; None if the request is allowed."""
        if not self._token:
            if is_loopback(_host_of(request)):
                return None
            return make_plain_reply(403, "without a token this page is shown to the machine itself only, as 127.0.0.1")
        given = parse_qs(request.query).get("token", [""])[0]
        cookie = f"{COOKIE}_{_port_of(request)}"
        if request.path == "/" and given:
            return self._log_in(given, cookie)
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(value.strip().encode(), self._token):
            return None
        cookies = dict(part.strip().partition("=")[::2] for part in request.headers.get("cookie", "").split(";"))
        if hmac.compare_digest(cookies.get(cookie, "").encode(), self._mark.encode()):
            return None
        return make_plain_reply(
            401,
            "open the address that verl-otel view prints, /?token=TOKEN, or send the token as bearer token",
            ("WWW-Authenticate", "Bearer"),
        )

    def _log_in(self, given: str, name: str) -> Reply:
        if not hmac.compare_digest(given.encode(), self._token):
            return make_plain_reply(401, "wrong token")
        cookie = f"{name}={self._mark}; HttpOnly; SameSite=Strict; Path=/{'; Secure' if self._secure else ''}"
        return Reply(303, (("Location", "./"), ("Set-Cookie", cookie), ("Referrer-Policy", "no-referrer")), b"")


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        VerlOtelError: It cannot be read, is readable by other users, or is too short.
    """
    try:
        mode, token = path.stat().st_mode, path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise VerlOtelError(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    if mode & 0o077:
        raise VerlOtelError(f"{path}: other users can read the token: chmod 600 {path}")
    if len(token) < MIN_LENGTH or not token.isprintable() or " " in token:
        raise VerlOtelError(f"{path}: a token has at least {MIN_LENGTH} characters and no spaces")
    return token


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(strip_brackets(host)).is_loopback
    except ValueError:
        return False


def _host_of(request: Request) -> str:
    host = request.headers.get("host", "")
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


def _port_of(request: Request) -> str:
    port = request.headers.get("host", "").rpartition(":")[2]
    return port if port.isdecimal() and port.isascii() else ""


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


# -- requests and answers --

HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Headers of every page and document."""
MAX_DESCRIBED: Final = 4
WHOLE: Final = 0.999
"""Share of the files of which a run counts as read: one that trains has always written something since."""
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
                body = _ENCODER.encode(self._find_document(parts[1:], query))
                return Reply(200, (("Content-Type", "application/json"), *HEADERS), body)
            headers = (("Content-Type", "text/html; charset=utf-8"), *HEADERS)
            return Reply(200, headers, self._render(parts).encode())
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
            case ["runs", name, "explain"]:
                return _explain(*self._find(name), query)
            case ["runs", name, kind] if kind in _DOCUMENTS:
                return _DOCUMENTS[kind](self._find(name)[0], query)
            case ["compare", first, second]:
                compared = comparison.compare(self._find(first)[0], self._find(second)[0])
                return to_plain(make_compare(compared, (), first, second))
        raise NotFoundError("no such document")

    def _describe(self, name: str) -> dict[str, Any]:
        run, read = self._find(name)
        known = self._described.get(name)
        if known is None or known[0] is not run:
            self._described = dict(list(self._described.items())[-MAX_DESCRIBED:])
            known = self._described[name] = run, describe_run(run)
        described = {**known[1], "read": round(read, 4), "log": read_log(run.folders)}
        if read < WHOLE:
            described["headline"] = [f"{read:.0%} of the files are read; this is what they say", *described["headline"]]
        return described

    def _find(self, name: str) -> tuple[Explanation, float]:
        """Return what is known of a run, and the share of its files that was read."""
        found = self._watcher.ask(name)
        if found is None:
            raise NotFoundError("no such run")
        return found


def _explain(run: Explanation, read: float, query: _Query) -> dict[str, Any]:
    """Return the document of ``verl-otel explain --json``: for some steps, or for all that have a verdict.

    Args:
        run: What is known of the run.
        read: The share of its files that was read. Of a part there is no sentence on how the run learned.
        query: The numbers of the steps.
    """
    numbers = {int(text) for text in query.get("step", [])}
    steps = [step for step in run.steps if (step.number in numbers if numbers else step.verdicts)]
    document = to_plain(make_explain(run, steps[-MAX_EXPLAINED:]))
    partial = {"progress": ""} if read < WHOLE else {}
    return {**document, **partial, "read": round(read, 4)}


def _samples(run: Explanation, query: _Query) -> list[dict[str, Any]]:
    """Return the samples of a group of a step; without a group the groups of the step."""
    step, group = int(query["step"][0]) if "step" in query else -1, query.get("group")
    validation = query.get("kind") == ["validation"]
    if group is None:
        return rollouts.list_groups(run.manifest, step, validation=validation)
    return rollouts.read_group(run.manifest, step, group[0], validation=validation)


def _steps(run: Explanation, query: _Query) -> dict[str, Any]:
    return list_steps(run, max(0, int(query.get("first", ["0"])[0])))


def _scalars(run: Explanation, query: _Query) -> list[dict[str, Any]]:
    return list_scalars(run, query.get("name", []))


_DOCUMENTS: Final = {"steps": _steps, "scalars": _scalars, "samples": _samples}
"""The documents of a run, by the last part of their address."""


# -- The JSON documents. Their keys are stable and described in docs/reference/live-page.md --

MAX_STEPS: Final = 20_000
"""Steps of one answer."""
MAX_EXPLAINED: Final = 100
"""Steps of one answer in the form of `explain`."""
MAX_OPEN: Final = 50
MAX_KEYS: Final = 40
"""Phases, and causes of GPU time."""
UNSETTLED: Final = 3
"""The last steps may change: their GPU time becomes known with the next ones."""


def describe_run(run: Explanation) -> dict[str, Any]:
    """Return what the page of a run shows besides its steps, scalars and log lines."""
    return {
        "id": printable.show(run.run_id),
        "headline": [line for line in formatting.headline(run) if line],
        "start": run.start_ns / 1e9,
        "end": run.end_ns / 1e9,
        "counts": run.counts._asdict(),
        "steps": len(run.steps),
        "has_gpu": run.has_gpu,
        "findings": [
            {"step": line.step.number if line.step else None, "text": line.text, "next": line.advice}
            for line in headlines.find_headlines(run)
        ],
        **_indicators(run),
        "last_step": describe_step(run.steps[-1]) if run.steps else None,
        "open": _open(run),
        "unfinished": [
            {"process": printable.show(entry.process.label), "dead": entry.dead, "silent": entry.silent}
            for entry in run.completeness.unfinished[: data.LISTED]
        ],
        "slowest": [_trajectory(trajectory) for trajectory in run.slowest],
        "events": [
            {
                "kind": printable.show(event.kind),
                "time": event.time_ns / 1e9,
                "text": printable.show(event.text, formatting.SENTENCE),
                "resolved": "resolved" in event.detail,
            }
            for event in run.events[-data.LISTED :]
        ],
        "missing": [printable.show(text, formatting.SENTENCE) for text in run.missing],
        "samples": rollouts.has_folder(run.manifest),
        "scalars": sorted({series.name for series in run.series if series.name != TRAINING_STEP})[:1000],
    }


def _indicators(run: Explanation) -> dict[str, Any]:
    profile, found = indicators.find(run)
    rows = [{**one._asdict(), "value": None if one.value is None else data.finite(one.value)} for one in found]
    return {"profile": printable.show(profile), "indicators": rows}


def describe_step(step: Step) -> dict[str, Any]:
    """Return the number and the verdicts of a step."""
    return {
        "number": step.number,
        "seconds": step.seconds,
        "failed": formatting.end_of(step),
        "verdicts": [
            printable.show(headlines.verdict_line(verdict), formatting.SENTENCE) for verdict in step.verdicts[:5]
        ],
    }


def list_steps(run: Explanation, first: int) -> dict[str, Any]:
    """Return the steps from one index on, in columns.

    Args:
        run: What is known of the run.
        first: Index of the first step that is wanted.
    """
    steps = run.steps[first : first + MAX_STEPS]
    phases, gpu = _Columns(len(steps)), _Columns(len(steps))
    for index, step in enumerate(steps):
        phases.add(index, data.phase_seconds(step))
        gpu.add(index, data.gpu_seconds(step))
    return {
        "first": first,
        "all": len(run.steps),
        "settled": max(0, min(first + len(steps), len(run.steps) - UNSETTLED)),
        "number": [step.number for step in steps],
        "start": [round(step.start_ns / 1e9, 3) for step in steps],
        "seconds": [round(step.seconds, 4) for step in steps],
        "failed": [formatting.end_of(step) for step in steps],
        "verdicts": [len(step.verdicts) for step in steps],
        "phases": phases.rounded(),
        "gpu": gpu.rounded(),
    }


def list_scalars(run: Explanation, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the points of scalars, over steps where their steps are known."""
    steps = scalars.find_steps(run.series)
    wanted = set(names)
    return [_scalar(series, steps, run.start_ns) for series in run.series if series.name in wanted][:50]


def _scalar(series: Series, steps: Mapping[int, float], begin_ns: int) -> dict[str, Any]:
    by_steps, xs = scalars.find_axis(series, steps, begin_ns)
    return {
        "name": printable.show(series.name),
        "labels": {printable.show(key): printable.show(value) for key, value in series.labels},
        "by_steps": by_steps,
        "x": [round(x, 3) for x in xs],
        "y": [data.finite(value) for value in series.values],
    }


class _Columns:
    """One column of sums for each of a bounded number of keys.

    Args:
        count: Number of rows.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: dict[str, array[float]] = {}

    def add(self, index: int, row: Mapping[str, float]) -> None:
        """Add the values of a row."""
        for key, value in row.items():
            column = self._columns.get(key)
            if column is None:
                if len(self._columns) >= MAX_KEYS:
                    continue
                column = self._columns[key] = array("d", bytes(8 * self._count))
            column[index] += value

    def rounded(self) -> dict[str, array[float]]:
        """Return the columns, by keys that are safe to show."""
        return {
            printable.show(key): array("d", (round(value, 4) for value in column))
            for key, column in self._columns.items()
        }


def _open(run: Explanation) -> list[dict[str, Any]]:
    """Return the open spans without a parent, the oldest first: the current step, and trajectories under way."""
    spans = [work for entry in run.completeness.unfinished for work in entry.work if not work.span.parent_id]
    spans.sort(key=lambda work: -work.age)
    steps = [work for work in spans if work.span.name != TRAJECTORY]
    return [
        _open_span(work) for work in [*steps[:MAX_OPEN], *(w for w in spans if w.span.name == TRAJECTORY)][:MAX_OPEN]
    ]


def _open_span(work: OpenSpan) -> dict[str, Any]:
    values = work.span.attributes
    return {
        "name": printable.show(work.span.name),
        "age": round(work.age, 1),
        "last_child": printable.show(work.last_child),
        "step": values.get(attr.STEP_NUMBER) if isinstance(values.get(attr.STEP_NUMBER), int) else None,
        "uid": printable.show(values.get(attr.SAMPLE_UID, "")),
    }


def _trajectory(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trace_id": f"{trajectory.trace_id:032x}",
        "label": printable.show(trajectory.label),
        "uid": printable.show(trajectory.uid),
        "rollout_index": trajectory.rollout_index,
        "step": trajectory.step,
        "seconds": trajectory.seconds,
        "turns": trajectory.turns,
        "tokens": [trajectory.prompt_tokens, trajectory.response_tokens],
        "score": None if trajectory.score is None else data.finite(trajectory.score),
        "failed": trajectory.failed,
        "parts": [
            {"kind": printable.show(part.kind), "name": printable.show(part.name), "seconds": part.seconds}
            for part in trajectory.parts
        ],
    }


# -- The last lines of the run log (``verl_logs*.jsonl``), if the run has one --

LOG_LINES: Final = 50
LOG_BYTES: Final = 64 << 10
LOG_FILES: Final = 16
LONGEST_LINE: Final = 500


def read_log(folders: Iterable[str]) -> list[str]:
    """Return the last records of all processes as ``verl-otel logs`` shows them, the oldest first."""
    paths = [path for path in run_log.find_files(map(Path, folders)) if not run_log.is_rotated(path)]
    records = sorted((record for path in paths[:LOG_FILES] for record in _read_records(path)), key=run_log.time_of)
    return [printable.show(render_line(record), LONGEST_LINE) for record in records[-LOG_LINES:]]


def _read_records(path: Path) -> Iterator[Record]:
    try:
        data = safe_files.read_tail(path, LOG_BYTES)
    except OSError:  # it was deleted meanwhile
        return
    for line in data.splitlines()[-LOG_LINES:]:
        record = run_log.parse(line)
        if record is not None:
            yield record
