# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ray's key-value store, for what the processes of a cluster tell each other.

The store is in the memory of Ray's head process. A call takes less than a millisecond while the head responds, and may
block for minutes while it does not. A value outlives the process that wrote it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

from verl_otel._internal import process_state

NAMESPACE: Final = b"verl_otel"


class _Inherited:
    """Whether the connection is that of the process that has forked this one: its threads, which wait for answers, do not exist here."""

    connection = False


def is_connected() -> bool:
    """Return whether Ray can answer this process. Never imports Ray, and asks nothing.

    It cannot in a forked child of a process of the cluster, where a question waits indefinitely. In a worker that ends,
    whose connection Ray has closed before the exit handlers run, a question ends the process at once, and the user's
    own exit handlers are skipped.
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return False
    return not _Inherited.connection and not (is_exiting() and is_worker())


def is_exiting() -> bool:
    """Return whether the interpreter ends: it marks the main thread as ended before it calls the exit handlers."""
    return not threading.main_thread().is_alive()


def is_worker() -> bool:
    """Return whether Ray has started this process: no driver, and no program without Ray. Asks nothing."""
    worker: Any = getattr(getattr(sys.modules.get("ray"), "_private", None), "worker", None)
    return worker is not None and bool(worker.global_worker.mode == worker.WORKER_MODE)


def _note_fork() -> None:
    _Inherited.connection = bool(getattr(sys.modules.get("ray"), "is_initialized", bool)())


process_state.register(after_fork=_note_fork)


def runtime_context() -> Any:
    """Return Ray's context of this process. It is in its own memory.

    Raises:
        RuntimeError: The process is not part of a cluster (any more), or Ray cannot answer it. Ray's own function would
            start a cluster, or join one of another program.
    """
    if not is_connected():
        raise RuntimeError("this process is not part of a Ray cluster")
    return sys.modules["ray"].get_runtime_context()


def put(key: bytes, value: bytes, *, overwrite: bool = True) -> None:
    """Set a value; replaces an earlier one, unless ``overwrite`` is False."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, value, overwrite=overwrite, namespace=NAMESPACE)


def read(key: bytes) -> bytes | None:
    """Return a value; None if there is none."""
    from ray.experimental import internal_kv

    value: bytes | None = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return value


def delete(key: bytes, *, by_prefix: bool = False) -> None:
    """Delete a key, or all keys that begin with it."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(key, del_by_prefix=by_prefix, namespace=NAMESPACE)


def read_all(prefix: bytes) -> list[bytes | None]:
    """Return the values of all keys that begin with a prefix; None for a key that was deleted meanwhile."""
    from ray.experimental import internal_kv

    keys = internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)
    return [internal_kv._internal_kv_get(key, namespace=NAMESPACE) for key in keys]


def take_all(prefix: bytes) -> list[bytes]:
    """Delete all keys that begin with a prefix, and return their values."""
    from ray.experimental import internal_kv

    taken = []
    for key in internal_kv._internal_kv_list(prefix, namespace=NAMESPACE):
        value = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        internal_kv._internal_kv_del(key, namespace=NAMESPACE)
        if value is not None:
            taken.append(value)
    return taken
