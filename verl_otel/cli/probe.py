# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Look whether Prometheus targets answer: one request each, several at once, a short time for every one."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Final, Literal, NamedTuple

from verl_otel.session.targets import Entry

AT_ONCE: Final = 16
MAX_BYTES: Final = 1 << 22
"""Of an answer: a page of metrics that is longer is no concern of a check."""
_SAMPLE: Final = re.compile(rb"^[A-Za-z_:][A-Za-z0-9_:]*(?:\{.*\})? \S+", re.MULTILINE)
_COMMENT: Final = re.compile(rb"^# (?:HELP|TYPE|EOF)\b", re.MULTILINE)
"""What a page holds whose engine has not generated anything yet."""
State = Literal["ok", "refused", "silent", "no metrics"]


class Answer(NamedTuple):
    """What a target said."""

    entry: Entry
    state: State
    text: str

    @property
    def address(self) -> str:
        """The target's ``host:port``."""
        return str(self.entry["targets"][0])


def probe_all(entries: Sequence[Entry], timeout: float) -> list[Answer]:
    """Return what every target says, in the same order."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verl-otel-probe") as pool:
        return list(pool.map(lambda entry: probe(entry, timeout), entries))


def probe(entry: Entry, timeout: float) -> Answer:
    """Ask one target for its metrics. Proxies are not used: targets are inside of the cluster."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{entry['targets'][0]}/metrics", timeout=timeout) as answer:
            page = answer.read(MAX_BYTES)
    except urllib.error.HTTPError as error:
        return Answer(entry, "no metrics", f"/metrics answers {error.code} {error.reason}")
    except (OSError, ValueError, HTTPException) as error:
        return Answer(entry, *_explain(error, timeout))
    samples = len(_SAMPLE.findall(page))
    if not samples and not _COMMENT.search(page):
        return Answer(entry, "no metrics", "what /metrics answers is not in Prometheus's format, or empty")
    return Answer(entry, "ok", f"{samples} samples")


def _explain(error: Exception, timeout: float) -> tuple[State, str]:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "silent", f"no answer within {timeout:g} s: gone, or behind a firewall"
    if isinstance(reason, ConnectionRefusedError):
        return "refused", "nobody listens there, or only on another address of that machine"
    return "silent", str(reason) or type(error).__name__
