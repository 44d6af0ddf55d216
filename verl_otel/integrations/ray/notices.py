# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Tell the whole cluster where this process serves ``/metrics``: one note per process in Ray's own key-value store.

The store lives in Ray's head process. A note costs one call of under a millisecond, when a port is opened and never again; it
outlives the process that wrote it, needs no actor and no port of ours, and whoever can reach the head can read all of them.
A run's notes are deleted at its end; those of a run that crashed by whoever reads them next (`discovery`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from verl_otel import _guard
from verl_otel.config import Config
from verl_otel.session.targets import Entry

NAMESPACE: Final = b"verl_otel"
PREFIX: Final = "targets"
END_TIMEOUT: Final = 2.0
"""Seconds that the end of a run waits for the store."""


def make_key(run_id: str, worker: str = "") -> bytes:
    """Return the key of a process, or what the keys of all processes of a run begin with."""
    return f"{PREFIX}/{run_id}/{worker}".encode()


class Board:
    """What this process has to tell. Calls to the store are made on a thread: its host may be away for minutes."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._run: Config | None = None
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._stale = False

    def address(self) -> str:
        """Return the address of this node, as Ray knows it."""
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return ""
        return str(ray.util.get_node_ip_address()).strip("[]")

    def add(self, config: Config, entries: Sequence[Entry]) -> None:
        """Tell of entries of this process, in addition to the others or in place of those of the same instance."""
        if os.getpid() != self._pid:  # a forked child has none of the threads that Ray's client needs
            return
        with self._lock:
            self._run = config
            self._entries.update({str(entry["labels"]["instance"]): entry for entry in entries})
        self.publish()

    def remove(self, config: Config) -> None:  # noqa: ARG002 - a process has one run
        """Take the note of this process away."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            known = bool(self._entries)
            self._entries.clear()
        if known:
            self.publish()

    def end(self, config: Config) -> None:
        """Take all notes of a run away and wait for that, but not for long: Ray is about to end."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._entries.clear()
        if _is_connected():
            thread = _start(lambda: _delete(make_key(config.run_id), every=True))
            thread.join(END_TIMEOUT)

    def publish(self) -> None:
        """Have the note written anew, if there is a cluster; changes that come meanwhile are written together."""
        if os.getpid() != self._pid or self._run is None or not _is_connected():
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
            with _guard.swallowed("ray notices"):
                note = _describe(config, entries)
                key = make_key(config.run_id, note["worker"])
                if entries:
                    _put(key, json.dumps(note).encode())
                else:
                    _delete(key)


BOARD: Final = Board()


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _start(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, name="verl-otel-notices", daemon=True)
    thread.start()
    return thread


def _describe(config: Config, entries: list[Entry]) -> dict[str, Any]:
    """Return the note: the entries, where the run's files are here, and what tells whether this process lives."""
    import ray

    context, worker = ray.get_runtime_context(), ray._private.worker
    return {
        "entries": entries,
        "folder": str(config.run_path),
        "node": str(context.get_node_id()),
        "job": str(context.get_job_id()),
        "worker": str(context.get_worker_id()),
        "driver": worker.global_worker.mode != worker.WORKER_MODE,
    }


def _put(key: bytes, value: bytes) -> None:
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, value, overwrite=True, namespace=NAMESPACE)


def _delete(key: bytes, *, every: bool = False) -> None:
    from ray.experimental import internal_kv

    with _guard.swallowed("ray notices"):
        internal_kv._internal_kv_del(key, del_by_prefix=every, namespace=NAMESPACE)
