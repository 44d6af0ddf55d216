# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Answers the requests of the live page: its files, and JSON below ``/api``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import msgspec

from verl_otel._internal import printable, safe_files
from verl_otel.analysis.io import run_log
from verl_otel.analysis.model import Explanation
from verl_otel.cli import rollouts
from verl_otel.cli.logs import render_line
from verl_otel.cli.page import assembly, data, document
from verl_otel.cli.view.access import Access
from verl_otel.cli.view.listing import Listing
from verl_otel.cli.view.watching import Watcher
from verl_otel.exporting.http_server import Reply, Request, make_plain_reply

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
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "html": "text/html"}
_ENCODER: Final = msgspec.json.Encoder(enc_hook=list)
"""Columns are arrays. It writes the answer at once, without an object for each number."""
_Query = Mapping[str, Sequence[str]]


class NotFoundError(Exception):
    """There is nothing of that name."""


class Site:
    """The page and the documents of some runs.

    Args:
        listing: The runs.
        watcher: Reads the requested runs.
        access: Checks the requests.
    """

    def __init__(self, listing: Listing, watcher: Watcher, access: Access) -> None:
        self._listing = listing
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
            if parts[:1] == ["api"]:
                query = parse_qs(request.query, max_num_fields=100)
                body = _ENCODER.encode(self._find_document(parts[1:], query))
                return Reply(200, (("Content-Type", "application/json"), *HEADERS), body)
            return self._find_file(parts)
        except NotFoundError as error:
            return make_plain_reply(404, str(error), *HEADERS)
        except (ValueError, IndexError):
            return make_plain_reply(400, "a parameter is not valid", *HEADERS)

    def _find_file(self, parts: Sequence[str]) -> Reply:
        """Return the page, a file of it, or the page of a run as one file, which has a policy of its own."""
        policy = ("Content-Security-Policy", assembly.SERVED_POLICY)
        match parts:
            case []:
                return _make_reply(assembly.render_served(), "html", policy)
            case ["app", *names] if "/".join(names) in assembly.list_files():
                name = "/".join(names)
                return _make_reply(assembly.read(name), name.rpartition(".")[2], policy)
            case ["run", name, "report"]:
                return _make_reply(document.render(self._find(name)[0]), "html")
        raise NotFoundError("no such page")

    def _find_document(self, parts: Sequence[str], query: _Query) -> Any:  # noqa: PLR0911 - one for each document
        """Return the JSON document below ``/api``."""
        match parts:
            case ["runs"]:
                return self._listing.read()
            case ["runs", name]:
                return {"name": name, **self._describe(name)}
            case ["runs", name, "steps", index]:
                return data.describe_step(self._find(name)[0], int(index))
            case ["runs", name, "steps"]:
                return data.list_steps(self._find(name)[0], max(0, int(query.get("first", ["0"])[0])))
            case ["runs", name, "scalars"]:
                return data.list_scalars(self._find(name)[0], query.get("name", []))
            case ["runs", name, "samples"]:
                return _list_samples(self._find(name)[0], query)
            case ["compare", first, second]:
                return data.compare_runs(self._find(first)[0], self._find(second)[0], first, second)
        raise NotFoundError("no such document")

    def _describe(self, name: str) -> dict[str, Any]:
        run, read = self._find(name)
        known = self._described.get(name)
        if known is None or known[0] is not run:
            self._described = dict(list(self._described.items())[-MAX_DESCRIBED:])
            known = self._described[name] = run, data.describe_run(run)
        age = self._watcher.find_age(name)
        explained = known[1]["explain"]
        if read < WHOLE:  # the sentence on the reward is one of the whole run
            explained = {**explained, "progress": ""}
        return {
            **known[1],
            "state": self._listing.find_state(name) or known[1]["state"],
            "explain": explained,
            "read": round(read, 4),
            "age": None if age is None else round(age, 1),
            "log": read_log(run.folders),
        }

    def _find(self, name: str) -> tuple[Explanation, float]:
        """Return what is known of a run, and the share of its files that was read."""
        found = self._watcher.ask(name)
        if found is None:
            raise NotFoundError("no such run")
        return found


def _make_reply(text: str, kind: str, *headers: tuple[str, str]) -> Reply:
    return Reply(200, (("Content-Type", f"{_TYPES[kind]}; charset=utf-8"), *headers, *HEADERS), text.encode())


def _list_samples(run: Explanation, query: _Query) -> list[dict[str, Any]]:
    """Return the samples of a group of a step; without a group the groups of the step."""
    step, group = int(query["step"][0]) if "step" in query else -1, query.get("group")
    validation = query.get("kind") == ["validation"]
    if group is None:
        return rollouts.list_groups(run.manifest, step, validation=validation)
    return rollouts.read_group(run.manifest, step, group[0], validation=validation)


# -- The last lines of the run log (``verl_logs*.jsonl``), if the run has one --

LOG_LINES: Final = 50
LOG_BYTES: Final = 64 << 10
LOG_FILES: Final = 16
LONGEST_LINE: Final = 500


def read_log(folders: Iterable[str]) -> list[str]:
    """Return the last records of all processes as ``verl-otel logs`` shows them, the newest first."""
    paths = [path for path in run_log.find_files(map(Path, folders)) if not run_log.is_rotated(path)]
    lines: list[bytes] = []
    for path in paths[:LOG_FILES]:
        with contextlib.suppress(OSError):  # it was deleted meanwhile
            lines += safe_files.read_tail(path, LOG_BYTES).splitlines()[-LOG_LINES:]
    records = sorted(filter(None, map(run_log.parse, lines)), key=run_log.time_of)
    return [printable.show(render_line(record), LONGEST_LINE) for record in records[: -LOG_LINES - 1 : -1]]
