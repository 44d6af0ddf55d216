# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Probes Prometheus targets: one request each, several in parallel, of which a number of bytes is read."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Final, Literal, NamedTuple

from verl_otel.session.prometheus_targets import Entry

AT_ONCE: Final = 16
MAX_BYTES: Final = 1 << 22
"""Maximum number of bytes of a body that are read."""
_SAMPLE: Final = re.compile(rb"^[A-Za-z_:][A-Za-z0-9_:]*(?:\{.*\})? \S+", re.MULTILINE)
_COMMENT: Final = re.compile(rb"^# (?:HELP|TYPE|EOF)\b", re.MULTILINE)
"""Content of the page of an engine that has not generated anything yet."""
_OWN: Final = {
    "vllm": re.compile(rb"^(?:# (?:HELP|TYPE) )?vllm:", re.MULTILINE),
    "sglang": re.compile(rb"^(?:# (?:HELP|TYPE) )?sglang:", re.MULTILINE),
}
"""A series, or the declaration of one, that the page of an engine has if its statistics are enabled."""
_ROLLOUTS: Final = {
    "llm_server": "actor_rollout_ref.rollout",
    "reward": "reward.reward_model.rollout",
    "teacher": "distillation.teacher_models.<name>.inference",
}
"""Prefix of verl's settings for the engines of a role."""
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
State = Literal["ok", "statistics off", "refused", "silent", "no metrics"]


class Answer(NamedTuple):
    """The response of a target."""

    entry: Entry
    state: State
    text: str

    @property
    def address(self) -> str:
        """The target's ``host:port``."""
        return str(self.entry["targets"][0])


def probe_all(entries: Sequence[Entry], timeout: float) -> list[Answer]:
    """Probe all targets; returns the answers in the same order."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verl-otel-probe") as pool:
        return list(pool.map(lambda entry: probe(entry, timeout), entries))


def probe(entry: Entry, timeout: float) -> Answer:
    """Request the metrics of one target. Proxies are not used: targets are inside of the cluster.

    Args:
        entry: The target.
        timeout: Seconds to wait for the connection, and for each part of the response.
    """
    try:
        with _OPENER.open(f"http://{entry['targets'][0]}/metrics", timeout=timeout) as answer:
            page = answer.read(MAX_BYTES)
    except urllib.error.HTTPError as error:
        advice = f"; {_advise(entry)}" if _engine(entry) == "sglang" else ""
        return Answer(entry, "no metrics", f"/metrics answers {error.code} {error.reason}{advice}")
    except (OSError, ValueError, HTTPException) as error:
        return Answer(entry, *_explain(error, timeout))
    samples = len(_SAMPLE.findall(page))
    if not samples and not _COMMENT.search(page):
        return Answer(entry, "no metrics", "what /metrics answers is not in Prometheus's format, or empty")
    own = _OWN.get(_engine(entry))
    if own is not None and not own.search(page) and len(page) < MAX_BYTES:
        return Answer(entry, "statistics off", f"{samples} samples, none of the engine: {_advise(entry)}")
    return Answer(entry, "ok", f"{samples} samples")


def _engine(entry: Entry) -> str:
    return str(entry.get("labels", {}).get("verl_engine", ""))


def _advise(entry: Entry) -> str:
    """Return the settings of verl that enable the statistics of an engine. SGLang needs both: verl checks that."""
    rollout = _ROLLOUTS.get(str(entry.get("labels", {}).get("verl_role", "")), _ROLLOUTS["llm_server"])
    settings = [f"{rollout}.disable_log_stats=False"]
    if _engine(entry) == "sglang":
        settings.append(f"{rollout}.prometheus.enable=True")
    return f"set {' and '.join(settings)}"


def _explain(error: Exception, timeout: float) -> tuple[State, str]:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "silent", f"no complete answer within {timeout:g} s: gone, busy, or behind a firewall"
    if isinstance(reason, ConnectionRefusedError):
        return "refused", "nothing listens there, or only on another address of that machine"
    return "silent", str(reason) or type(error).__name__
