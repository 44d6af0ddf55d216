# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ray's key-value store, for what the processes of a cluster tell each other.

The store is in the memory of Ray's head process. A call takes less than a millisecond while the head responds, and may block for minutes while
it does not. A value outlives the process that wrote it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

NAMESPACE: Final = b"verl_otel"


def is_connected() -> bool:
    """Return whether this process is part of a Ray cluster. Never imports Ray."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def runtime_context() -> Any:
    """Return Ray's context of this process.

    Raises:
        RuntimeError: The process is not part of a cluster (any more). Ray's own function would start one, or join one of another program.
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
