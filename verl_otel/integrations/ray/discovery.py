# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the notes of all processes of a Ray cluster, from any machine that reaches its head, without joining the cluster.

Joining (``ray.init``) would make the reader a driver, and Ray terminates a driver whose cluster is unreachable for a minute.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from verl_otel._internal.safe_files import parse_json
from verl_otel.errors import VerlOtelError
from verl_otel.integrations.cluster_store import NAMESPACE
from verl_otel.integrations.ray.cluster import RUNS, TARGETS
from verl_otel.session.prometheus_targets import TargetEntries, sanitize_target

TIMEOUT: Final = 5.0
"""Timeout of one request to Ray's head, in seconds."""
MAX_PORT: Final = 65535


class ClusterError(VerlOtelError):
    """A Ray cluster cannot be queried."""


class NoClusterError(ClusterError):
    """There is no cluster on this machine, and no address was given."""


class Note(NamedTuple):
    """The note of one process of a run."""

    key: bytes
    run_id: str
    entries: TargetEntries
    folder: str
    node: str
    job: str
    worker: str
    driver: bool


def find_cluster(address: str | None = None) -> str:
    """Return ``host:port`` of a cluster's head: the address given, RAY_ADDRESS, or the cluster of this machine.

    Raises:
        NoClusterError: There is no cluster.
        ClusterError: The address is not valid.
    """
    try:
        from ray._private import services

        _take_token(address)
        cluster = services.canonicalize_bootstrap_address(address or "auto")
    except ImportError:
        raise NoClusterError("Ray is not installed here") from None
    except ConnectionError:
        raise NoClusterError("no running Ray cluster here: say where it is (--address HOST:PORT)") from None
    except Exception as error:
        raise ClusterError(f"{address}: no address of a Ray cluster, use HOST:PORT ({error})") from None
    if not cluster or "://" in cluster:
        raise ClusterError(f"{address or cluster}: no address of a Ray cluster, use HOST:PORT of its head")
    return str(cluster)


@contextlib.contextmanager
def open_store(cluster: str) -> Iterator[Any]:
    """Connect to the key-value store of a cluster; a context manager that returns Ray's ``GcsClient``.

    Args:
        cluster: Result of `find_cluster`.

    Raises:
        ClusterError: The head does not respond, now or to a call in the block.
    """
    _probe(cluster)
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

        yield GcsClient(address=cluster)
    except VerlOtelError:
        raise
    except Exception as error:
        if "AuthToken" in str(error):
            advice = "set RAY_AUTH_MODE=token here, as its user (or with its RAY_AUTH_TOKEN_PATH)"
            raise ClusterError(f"the Ray cluster at {cluster} asks for a token: {advice}") from None
        raise ClusterError(f"the Ray cluster at {cluster} does not answer: {_first_line(error)}") from None


def read_notes(cluster: str) -> list[Note]:
    """Return the notes of processes that are alive, and delete those of jobs that ended without deleting them.

    Args:
        cluster: Result of `find_cluster`.

    Raises:
        ClusterError: The head does not respond.
    """
    with open_store(cluster) as client:
        keys = client.internal_kv_keys(f"{TARGETS}/".encode(), NAMESPACE, timeout=TIMEOUT)
        values = {key: client.internal_kv_get(key, NAMESPACE, timeout=TIMEOUT) for key in keys}
        runs = list(client.internal_kv_keys(f"{RUNS}/".encode(), NAMESPACE, timeout=TIMEOUT))
    notes = [note for key, value in values.items() if (note := _parse(key, value)) is not None]
    if not notes and not runs:
        return []
    jobs, workers = _find_alive(cluster)
    if jobs is not None:
        ended = [note.key for note in notes if note.job not in jobs]
        ended += [key for key in runs if key.decode(errors="replace").rpartition("/")[2] not in jobs]
        for key in ended:
            with contextlib.suppress(Exception):
                client.internal_kv_del(key, False, NAMESPACE, timeout=TIMEOUT)
    return [note for note in notes if _is_alive(note, jobs, workers)]


def _take_token(address: str | None) -> None:
    """Let Ray's client send this user's token by the rules of ``ray.init``: by default only to a cluster that Ray found itself."""
    with contextlib.suppress(ImportError):  # older versions have no tokens
        from ray._private.authentication import authentication_token_setup as setup

        if address in (None, "auto") and not os.environ.get("RAY_ADDRESS"):
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        setup.ensure_token_if_auth_enabled(None, create_token_if_missing=False)


def _probe(cluster: str) -> None:
    """Check that the head accepts connections: Ray's own client waits for half a minute."""
    host, _, port = cluster.rpartition(":")
    if port.isdecimal() and int(port) > MAX_PORT:  # the C library would connect to the remainder
        raise ClusterError(f"no Ray cluster at {cluster}: a port is at most {MAX_PORT}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Ray cluster at {cluster}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def _parse(key: bytes, value: bytes | None) -> Note | None:
    """Return a note; None if it was deleted meanwhile or is not valid."""
    try:
        _, run_id, worker = key.decode().split("/")
        content: dict[str, Any] = parse_json(value or b"")
        cleaned = map(sanitize_target, content["entries"])
        entries = [
            entry for entry in cleaned if entry is not None and entry["targets"] and entry["labels"].get("instance")
        ]
        folder, node, job = (str(content[name]) for name in ("folder", "node", "job"))
        return Note(key, run_id, entries, folder, node, job, worker, bool(content["driver"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _find_alive(cluster: str) -> tuple[set[str] | None, set[str]]:
    """Return the jobs and the workers that are alive; None for the jobs if this version of Ray does not provide them."""
    try:
        from ray._private.state import GlobalState
        from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]  # compiled

        state = GlobalState()
        options = GcsClientOptions.create(cluster, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        state._initialize_global_state(options)
        try:
            jobs = {job["JobID"] for job in state.job_table() if not job["IsDead"]}
            return jobs, set(state.workers())
        finally:
            state.disconnect()
    except Exception:
        return None, set()


def _is_alive(note: Note, jobs: Iterable[str] | None, workers: Iterable[str]) -> bool:
    if jobs is None:
        return True
    return note.job in jobs and (note.driver or note.worker in workers)
