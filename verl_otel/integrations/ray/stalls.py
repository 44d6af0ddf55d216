# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What Ray tells a watcher: why the process of an actor died, and what the watchers of other nodes have found.

Both are asked of Ray's head process, without its dashboard, and only when something hangs.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

from verl_otel.integrations.ray.notices import NAMESPACE
from verl_otel.session.black_box.neighbours import Death, Note

PREFIX: Final = "stalls"
MAX_TEXT: Final = 200
_EXPECTED: Final = ("OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED")
"""Ends of an actor that somebody wanted, or that follow from the end of somebody else."""
_DETAIL: Final = re.compile(
    r"Worker exit detail: (.*?)(?: There are some potential root causes| Some common causes|$)", re.DOTALL
)


class Cluster:
    """The Ray cluster that this process is a part of. Nothing is asked while it is a part of none."""

    def explain(self, actor: str) -> Death | None:
        """Return why the process of an actor is gone; None if Ray does not know, or has not noticed yet."""
        if not _is_connected():
            return None
        import ray

        found = ray._private.state.state.actor_table(actor)
        if not found or found.get("State") not in ("DEAD", "RESTARTING"):
            return None
        return read_cause(found.get("DeathCause"))

    def publish(self, run_id: str, place: str, note: Note | None) -> None:
        """Put or take away the note of this node."""
        if not _is_connected():
            return
        from ray.experimental import internal_kv

        key = _make_key(run_id, place)
        if note is None:
            internal_kv._internal_kv_del(key, namespace=NAMESPACE)
        else:
            internal_kv._internal_kv_put(key, json.dumps(note).encode(), overwrite=True, namespace=NAMESPACE)

    def forget(self, run_id: str) -> None:
        """Take all notes of a run away."""
        if _is_connected():
            from ray.experimental import internal_kv

            internal_kv._internal_kv_del(_make_key(run_id), del_by_prefix=True, namespace=NAMESPACE)

    def read(self, run_id: str) -> list[Note]:
        """Return the notes of all nodes."""
        if not _is_connected():
            return []
        from ray.experimental import internal_kv

        keys = internal_kv._internal_kv_list(_make_key(run_id), namespace=NAMESPACE)
        values = [internal_kv._internal_kv_get(key, namespace=NAMESPACE) for key in keys]
        return [note for value in values if (note := _parse(value)) is not None]


CLUSTER: Final = Cluster()


def read_cause(cause: Any) -> Death | None:
    """Return what Ray's record of a dead actor says (``ActorDeathCause``), in a few words."""
    kind = cause.WhichOneof("context") if cause is not None else None
    if kind == "oom_context":
        return Death(False, "killed by Ray's memory monitor, out of memory")
    if kind != "actor_died_error_context":
        return None
    context = cause.actor_died_error_context
    reason = context.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_number[context.reason].name
    detail = _DETAIL.search(context.error_message)
    text = " ".join((detail[1] if detail else context.error_message).split())[:MAX_TEXT]
    return Death(reason in _EXPECTED or "INTENDED" in context.error_message, f"Ray says: {text}")


def _make_key(run_id: str, place: str = "") -> bytes:
    return f"{PREFIX}/{run_id}/{place}".encode()


def _parse(value: bytes | None) -> Note | None:
    try:
        note = json.loads(value or b"")
        return {
            "place": str(note["place"]),
            "time": float(note["time"]),
            "findings": [_check(each) for each in note["findings"]],
        }
    except (ValueError, LookupError, TypeError):
        return None


def _check(finding: Any) -> dict[str, Any]:
    return {"text": str(finding["text"]), "culprit": dict(finding["culprit"]), "reason": str(finding["reason"])}


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
