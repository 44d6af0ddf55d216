# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Publishes the ``/metrics`` targets of this process in the cluster: one note per process in Ray's key-value store.

A note is written when a port is opened. It needs no actor and no port of its own, and any client of the head can read all notes. The notes of
a run are deleted at its end; those of a crashed run by the next reader (`discovery`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.config import Config
from verl_otel.integrations import cluster_store
from verl_otel.session.prometheus_targets import Entry as TargetEntry

PREFIX: Final = "targets"
END_TIMEOUT: Final = 2.0
"""Seconds that the end of a run waits for the store."""


def make_key(run_id: str, worker: str = "") -> bytes:
    """Return the key of a process, or the common prefix of the keys of a run."""
    return f"{PREFIX}/{run_id}/{worker}".encode()


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
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return ""
        return str(ray.util.get_node_ip_address()).strip("[]")

    def add(self, config: Config, entries: Sequence[TargetEntry]) -> None:
        """Add entries of this process; an entry replaces that of the same instance."""
        if os.getpid() != self._pid:  # a forked child lacks the threads of Ray's client
            return
        with self._lock:
            self._run = config
            self._entries.update({str(entry["labels"]["instance"]): entry for entry in entries})
        self.publish()

    def remove(self, config: Config) -> None:  # noqa: ARG002 - a process has one run
        """Delete the note of this process."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            had_entries = bool(self._entries)
            self._entries.clear()
        if had_entries:
            self.publish()

    def end(self, config: Config) -> None:
        """Delete all notes of a run. Waits for at most `END_TIMEOUT`, because Ray is about to shut down."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._entries.clear()
        if cluster_store.is_connected():
            thread = _start(lambda: _delete_run(config.run_id))
            thread.join(END_TIMEOUT)

    def publish(self) -> None:
        """Write the note again if there is a cluster. Changes during a write are written together."""
        if os.getpid() != self._pid or self._run is None or not cluster_store.is_connected():
            return
        with self._lock:
            self._stale = True
            if self._writer is None:
                self._writer = _start(self._write)

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._stale or self._run is None:
                    self._writer = None
                    return
                self._stale = False
                config, entries = self._run, list(self._entries.values())
            with error_boundary.suppress_errors("ray notices"):
                note = _describe(config, entries)
                key = make_key(config.run_id, note["worker"])
                if entries:
                    cluster_store.put(key, json.dumps(note).encode())
                else:
                    cluster_store.delete(key)


REGISTRY: Final = TargetRegistry()


def _delete_run(run_id: str) -> None:
    with error_boundary.suppress_errors("ray notices"):
        cluster_store.delete(make_key(run_id), by_prefix=True)


def _start(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, name="verl-otel-notices", daemon=True)
    thread.start()
    return thread


def _describe(config: Config, entries: list[TargetEntry]) -> dict[str, Any]:
    """Return the note: the entries, the folder of the run, and the ids by which readers check that this process is alive."""
    import ray

    context, worker = cluster_store.runtime_context(), ray._private.worker
    return {
        "entries": entries,
        "folder": str(config.run_path),
        "node": str(context.get_node_id()),
        "job": str(context.get_job_id()),
        "worker": str(context.get_worker_id()),
        "driver": worker.global_worker.mode != worker.WORKER_MODE,
    }
