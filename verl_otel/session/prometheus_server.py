# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Asks a running Prometheus to read its configuration again, and checks that a job is in what it has read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from verl_otel._internal import safe_files

TIMEOUT: Final = 5.0
"""Seconds to wait for the connection, and for each part of the answer."""
MAX_BYTES: Final = 16 << 20
_MAX_REASON: Final = 300
_OK: Final = 200
_FORBIDDEN: Final = 403
_REFUSED: Final = 500


class Answer(NamedTuple):
    """What a Prometheus did."""

    state: str
    """``loaded``, ``other file``, ``no lifecycle``, ``refused`` (the new file is not valid for it), ``silent`` or ``error``."""
    text: str
    """One line for the user."""


def load(urls: Sequence[str], sources: Sequence[str], *, present: bool = True, always: bool = False) -> Answer:
    """Have a Prometheus read its configuration unless it has it already, and check the result.

    Args:
        urls: Its possible addresses, such as ``http://127.0.0.1:9090``: the first one that answers is used.
        sources: Sources of the job of verl-otel; see `prometheus_block.add_sources`.
        present: Whether they are expected in its configuration, or expected to be gone.
        always: Have it read its configuration also if it has it.
    """
    bases = (url.rstrip("/") for url in urls)
    url = next((base for base in bases if _ask(f"{base}/-/healthy")[0] is not None), None)
    if url is None:
        return Answer("silent", f"no Prometheus answers at {' or '.join(urls)}; it reads the file when it starts")
    loaded = Answer("loaded", f"the Prometheus at {url} has loaded it")
    if not always and _has(url, sources, present=present):
        return loaded
    problem = _reload(url)
    if problem is None and _has(url, sources, present=present) is False:
        problem = Answer("other file", f"the Prometheus at {url} was reloaded, but reads another file")
    return problem or loaded


def _reload(url: str) -> Answer | None:
    """Have a Prometheus read its configuration; return why it has not."""
    state, body = _ask(f"{url}/-/reload", "POST")
    reason = " ".join(body.decode("utf-8", "replace").split())[:_MAX_REASON]
    if state == _OK:
        return None
    if state == _FORBIDDEN and "lifecycle" in reason.lower():
        advice = "send it SIGHUP, or start it again"
        return Answer("no lifecycle", f"the Prometheus at {url} runs without --web.enable-lifecycle: {advice}")
    if state == _REFUSED:
        return Answer("refused", f"the Prometheus at {url} refuses the file: {reason}")
    return Answer("error", f"{url}/-/reload answers {state or 'nothing'} {reason}".rstrip())


def _has(url: str, sources: Sequence[str], *, present: bool) -> bool | None:
    """Return whether the sources are in the configuration of a Prometheus, or are not in it; None if it does not show its configuration."""
    state, body = _ask(f"{url}/api/v1/status/config")
    try:
        text = str(safe_files.parse_json(body)["data"]["yaml"]) if state == _OK else None
    except safe_files.READ_ERRORS:
        text = None
    if text is None:
        return None
    return all((source in text) is present for source in sources)


def _ask(url: str, method: str = "GET") -> tuple[int | None, bytes]:
    """Return status and body of an answer; no status without one. Proxies are not used, and redirects are not followed."""
    try:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with closing(kind(parts.netloc, timeout=TIMEOUT)) as connection:
            connection.request(method, parts.path)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_BYTES)
    except (OSError, HTTPException, ValueError):
        return None, b""
