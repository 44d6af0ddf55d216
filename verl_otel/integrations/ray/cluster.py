# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a run writes to Ray's store and reads there: its settings, ``/metrics`` targets, stalls of nodes, trajectories.

The settings are for processes that were started without our environment. The setup hook of ``ray.init`` reaches workers
only if telemetry was started first. The driver therefore publishes the run, whenever it starts telemetry, and a worker
that uses verl-otel joins it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from verl_otel._internal import error_boundary, process_state
from verl_otel._internal.call_timeout import call_for
from verl_otel._internal.safe_files import parse_json
from verl_otel.config import Config, is_enabled
from verl_otel.integrations import cluster_store
from verl_otel.resource import make_run_id
from verl_otel.session.prometheus_targets import TargetEntry
from verl_otel.watchdog.cluster_backend import ActorProcess, ClusterNote, DeathInfo

RUNS: Final = "run"
TARGETS: Final = "targets"
STALLS: Final = "stalls"
TRAJECTORIES: Final = "trajectories"
"""First parts of keys in the store."""
PUT_TIMEOUT: Final = 1.0
"""Seconds that a process waits for the store, which may block for minutes."""
RETRY_SECONDS: Final = 5.0
"""Seconds after which a worker that found no run looks again."""
SILENT_SECONDS: Final = 60.0
"""Seconds after which it looks again if the store did not answer."""
VARIABLE: Final = "VERL_OTEL_RUN_ID"
ATTEMPT: Final = "VERL_OTEL_RUN_ATTEMPT"


class _NextLook:
    """When this process, which has found no run, looks for one again, by `time.monotonic`."""

    time = float("-inf")


def publish(settings: dict[str, str]) -> None:
    """Store the settings of the run of this job, waiting for at most `PUT_TIMEOUT` seconds. Does nothing without a cluster."""
    _call_bounded(lambda: cluster_store.put(_key(), json.dumps(settings).encode()), PUT_TIMEOUT)


def remove() -> None:
    """Remove the run of this job from the store: the job ends. Waits for at most `PUT_TIMEOUT` seconds."""
    _call_bounded(lambda: cluster_store.delete(_key()), PUT_TIMEOUT)


@error_boundary.never_raises("ray job")
def _call_bounded(call: Callable[[], None], seconds: float) -> None:
    if cluster_store.is_connected():
        with contextlib.suppress(TimeoutError):
            call_for(seconds, "verl-otel-job", call)


def join() -> bool:
    """Take the settings of the run of this job into the environment, where it has none. Returns whether they switch verl-otel on.

    Without a run, a worker that is switched on itself stores one, so that all of them have the same. Nothing happens in a process whose
    environment names a run, or that Ray cannot answer. The caller waits for the store for at most `PUT_TIMEOUT` seconds.
    """
    if os.environ.get(VARIABLE) or time.monotonic() < _NextLook.time or not cluster_store.is_connected():
        return False
    key = _key()
    try:
        stored = call_for(PUT_TIMEOUT, "verl-otel-job", lambda: _read_or_begin(key))
    except TimeoutError:
        _NextLook.time = time.monotonic() + SILENT_SECONDS
        return False
    if stored is None:
        _NextLook.time = time.monotonic() + RETRY_SECONDS
        return False
    settings = parse_json(stored)
    if not isinstance(settings, dict):
        return False
    for name, value in settings.items():
        if str(name).startswith(("VERL_OTEL_", "OTEL_")) and isinstance(value, str):
            os.environ.setdefault(name, value)
    return is_enabled()


def _read_or_begin(key: bytes) -> bytes | None:
    """Return the settings of the run of this job; a worker that is switched on stores one if there is none."""
    stored = cluster_store.read(key)
    if stored is None and is_enabled() and cluster_store.is_worker():
        cluster_store.put(key, json.dumps({VARIABLE: make_run_id(), ATTEMPT: "1"}).encode(), overwrite=False)
        stored = cluster_store.read(key)
    return stored


def _key() -> bytes:
    return f"{RUNS}/{cluster_store.runtime_context().get_job_id()}".encode()


def _reset() -> None:
    _NextLook.time = float("-inf")


process_state.register(reset=_reset)


# -- The ``/metrics`` targets of this process: one note per process --
# A note is written when a port is opened. It needs no actor and no port of its own, and any client of the head can read
# all notes. The notes of a run are deleted at its end; those of a crashed run by the next reader (`discovery`).

END_TIMEOUT: Final = 2.0
"""Seconds that the end of a run waits for the store."""


def make_key(kind: str, run_id: str, writer: str = "") -> bytes:
    """Return the key of the note of a process or node, or the common prefix of the keys of a run."""
    return f"{kind}/{run_id}/{writer}".encode()


class TargetRegistry:
    """The targets of this process. Calls to the store run on a thread, because they may block for minutes."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._run: Config | None = None
        self._entries: dict[str, TargetEntry] = {}
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._stale = False

    def address(self) -> str:
        """Return the address of this node, as Ray knows it."""
        return str(sys.modules["ray"].util.get_node_ip_address()).strip("[]") if cluster_store.is_connected() else ""

    def add(self, config: Config, entries: Sequence[TargetEntry]) -> None:
        """Add entries of this process; an entry replaces that of the same instance."""
        if os.getpid() == self._pid:  # a forked child lacks the threads of Ray's client
            with self._lock:
                self._run = config
                self._entries.update({str(entry["labels"]["instance"]): entry for entry in entries})
            self.publish()

    def remove(self, config: Config) -> None:  # noqa: ARG002 - a process has one run
        """Delete the note of this process."""
        if os.getpid() == self._pid and self._entries:
            with self._lock:
                self._entries.clear()
            self.publish()

    def end(self, config: Config) -> None:
        """Delete all notes of a run. Waits for at most `END_TIMEOUT`, because Ray is about to shut down."""
        if os.getpid() == self._pid:
            with self._lock:
                self._entries.clear()
            _call_bounded(lambda: cluster_store.delete(make_key(TARGETS, config.run_id), by_prefix=True), END_TIMEOUT)

    def publish(self) -> None:
        """Write the note again if there is a cluster. Changes during a write are written together."""
        if os.getpid() != self._pid or self._run is None or not cluster_store.is_connected():
            return
        with self._lock:
            self._stale = True
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="verl-otel-notices", daemon=True)
                self._writer.start()

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._stale or self._run is None:
                    self._writer = None
                    return
                self._stale = False
                config, entries = self._run, list(self._entries.values())
            with error_boundary.suppress_errors("ray notices"):
                try:
                    _write_note(config, entries)
                except RuntimeError:
                    if cluster_store.is_connected():  # otherwise Ray has shut down meanwhile, and its notes are gone
                        raise


REGISTRY: Final = TargetRegistry()


def _write_note(config: Config, entries: list[TargetEntry]) -> None:
    note = _describe(config, entries)
    key = make_key(TARGETS, config.run_id, note["worker"])
    if entries:
        cluster_store.put(key, json.dumps(note).encode())
    else:
        cluster_store.delete(key)


def _describe(config: Config, entries: list[TargetEntry]) -> dict[str, Any]:
    """Return the note: the entries, the folder of the run, and the ids by which readers check that this process is alive."""
    context = cluster_store.runtime_context()
    return {
        "entries": entries,
        "folder": str(config.run_path),
        "node": str(context.get_node_id()),
        "job": str(context.get_job_id()),
        "worker": str(context.get_worker_id()),
        "driver": not cluster_store.is_worker(),
    }


# -- The watchdog's view of a Ray cluster: why the process of an actor died, and the findings of other nodes --
# Both are read from Ray's head process, without the dashboard, and only after a stall was detected.

MAX_TEXT: Final = 200
MAX_MESSAGES: Final = 64
"""Messages of one process that wait in the store."""
_EXPECTED: Final = ("OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED")
"""Ends of an actor that were requested, or that follow from the end of its owner."""
_DETAIL: Final = re.compile(
    r"Worker exit detail: (.*?)(?: There are some potential root causes| Some common causes|$)", re.DOTALL
)


class RayBackend:
    """The Ray cluster of this process; without a cluster every method does nothing."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def explain(self, actor: str) -> DeathInfo | None:
        """Return why the process of an actor died; None if Ray does not know, or has not detected it yet."""
        if not cluster_store.is_connected():
            return None
        import ray

        row = ray._private.state.state.actor_table(actor)
        if not row or row.get("State") not in ("DEAD", "RESTARTING"):
            return None
        return read_cause(row.get("DeathCause"))

    def list_actors(self) -> list[ActorProcess]:
        """Return the processes of this node in which actors of this job run."""
        if not cluster_store.is_connected():
            return []
        import ray

        from verl_otel.integrations.ray.identity import find_role

        context = cluster_store.runtime_context()
        node, job = str(context.get_node_id()), ray.JobID(bytes.fromhex(context.get_job_id()))
        rows = ray._private.state.state.actor_table(None, job_id=job, actor_state_name="ALIVE")
        return [
            ActorProcess(row["Pid"], find_role(row["ActorClassName"]), actor)
            for actor, row in rows.items()
            if row["Address"]["NodeID"] == node
        ]

    def publish(self, run_id: str, node: str, note: ClusterNote | None) -> None:
        """Write or delete the note of this node."""
        if not cluster_store.is_connected():
            return
        key = make_key(STALLS, run_id, node)
        if note is None:
            cluster_store.delete(key)
        else:
            cluster_store.put(key, json.dumps(note).encode())

    def clear(self, run_id: str) -> None:
        """Delete all notes and messages of a run."""
        if cluster_store.is_connected():
            for kind in (STALLS, TRAJECTORIES):
                cluster_store.delete(make_key(kind, run_id), by_prefix=True)

    def read(self, run_id: str) -> list[ClusterNote]:
        """Return the notes of all nodes."""
        if not cluster_store.is_connected():
            return []
        return [
            note for value in cluster_store.read_all(make_key(STALLS, run_id)) if (note := _parse(value)) is not None
        ]

    def is_connected(self) -> bool:
        """Return whether Ray can answer this process."""
        return cluster_store.is_connected()

    def send(self, run_id: str, message: bytes) -> None:
        """Write a message. If no process takes them, it replaces the oldest: the store is in the memory of Ray's head."""
        if cluster_store.is_connected():
            writer = f"{cluster_store.runtime_context().get_worker_id()}-{next(self._numbers) % MAX_MESSAGES}"
            cluster_store.put(make_key(TRAJECTORIES, run_id, writer), message)

    def take(self, run_id: str) -> list[bytes]:
        """Read and delete the messages of all processes."""
        if not cluster_store.is_connected():
            return []
        return cluster_store.take_all(make_key(TRAJECTORIES, run_id))


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
    # A traceback that Ray quotes has the message of the exception, which may quote a prompt.
    message = (detail[1] if detail else context.error_message).partition("Traceback (most recent call last)")[0]
    text = " ".join(message.split())[:MAX_TEXT].rstrip(".")
    return DeathInfo(reason in _EXPECTED or "INTENDED" in context.error_message, f"Ray says: {text}")


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
