# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The watchdog's view of a Ray cluster: why the process of an actor died, and the findings of other nodes.

Both are read from Ray's head process, without the dashboard, and only after a stall was detected.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from verl_otel._internal.safe_files import parse_json
from verl_otel.integrations import cluster_store
from verl_otel.watchdog.cluster_backend import DeathInfo
from verl_otel.watchdog.cluster_backend import Note as ClusterNote

PREFIX: Final = "stalls"
MAX_TEXT: Final = 200
_EXPECTED: Final = ("OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED")
"""Ends of an actor that were requested, or that follow from the end of its owner."""
_DETAIL: Final = re.compile(
    r"Worker exit detail: (.*?)(?: There are some potential root causes| Some common causes|$)", re.DOTALL
)


class RayBackend:
    """The Ray cluster of this process; without a cluster every method does nothing."""

    def explain(self, actor: str) -> DeathInfo | None:
        """Return why the process of an actor died; None if Ray does not know, or has not detected it yet."""
        if not cluster_store.is_connected():
            return None
        import ray

        row = ray._private.state.state.actor_table(actor)
        if not row or row.get("State") not in ("DEAD", "RESTARTING"):
            return None
        return read_cause(row.get("DeathCause"))

    def publish(self, run_id: str, node: str, note: ClusterNote | None) -> None:
        """Write or delete the note of this node."""
        if not cluster_store.is_connected():
            return
        key = _make_key(run_id, node)
        if note is None:
            cluster_store.delete(key)
        else:
            cluster_store.put(key, json.dumps(note).encode())

    def clear(self, run_id: str) -> None:
        """Delete all notes of a run."""
        if cluster_store.is_connected():
            cluster_store.delete(_make_key(run_id), by_prefix=True)

    def read(self, run_id: str) -> list[ClusterNote]:
        """Return the notes of all nodes."""
        if not cluster_store.is_connected():
            return []
        return [note for value in cluster_store.read_all(_make_key(run_id)) if (note := _parse(value)) is not None]


BACKEND: Final = RayBackend()


def read_cause(cause: Any) -> DeathInfo | None:
    """Return the cause in Ray's record of a dead actor (``ActorDeathCause``) as a short text."""
    kind = cause.WhichOneof("context") if cause is not None else None
    if kind == "oom_context":
        return DeathInfo(False, "killed by Ray's memory monitor, out of memory")
    if kind != "actor_died_error_context":
        return None
    context = cause.actor_died_error_context
    reason = context.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_number[context.reason].name
    detail = _DETAIL.search(context.error_message)
    text = " ".join((detail[1] if detail else context.error_message).split())[:MAX_TEXT]
    return DeathInfo(reason in _EXPECTED or "INTENDED" in context.error_message, f"Ray says: {text}")


def _make_key(run_id: str, node: str = "") -> bytes:
    return f"{PREFIX}/{run_id}/{node}".encode()


def _parse(value: bytes | None) -> ClusterNote | None:
    try:
        note = parse_json(value or b"")
        return {
            "place": str(note["place"]),
            "time": float(note["time"]),
            "findings": [_check(finding) for finding in note["findings"]],
        }
    except (ValueError, LookupError, TypeError, ArithmeticError):
        return None


def _check(finding: Any) -> dict[str, Any]:
    return {"text": str(finding["text"]), "culprit": dict(finding["culprit"]), "reason": str(finding["reason"])}
