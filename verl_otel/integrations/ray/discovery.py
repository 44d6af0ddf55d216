# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read the notes of all processes of a Ray cluster, from any machine that reaches its head, without joining the cluster.

Joining (``ray.init``) would make a driver of whoever reads, and Ray ends a driver whose cluster is away for a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from verl_otel.errors import VerlOtelError
from verl_otel.integrations.ray.notices import NAMESPACE, PREFIX
from verl_otel.session.targets import Entries

TIMEOUT: Final = 5.0
"""Seconds for one question to Ray's head."""


class ClusterError(VerlOtelError):
    """A Ray cluster cannot be asked."""


class NoClusterError(ClusterError):
    """There is none here, and nobody said where one is."""


class Note(NamedTuple):
    """What one process of a run has told."""

    key: bytes
    run_id: str
    entries: Entries
    folder: str
    node: str
    job: str
    worker: str
    driver: bool


def find_cluster(address: str | None = None) -> str:
    """Return ``host:port`` of a cluster's head: the address given, RAY_ADDRESS, or the cluster of this machine.

    Raises:
        NoClusterError: There is none.
        ClusterError: The address cannot be one.
    """
    try:
        from ray._private import services

        _take_token(address)
        found = services.canonicalize_bootstrap_address(address or "auto")
    except ImportError:
        raise NoClusterError("Ray is not installed here") from None
    except ConnectionError:
        raise NoClusterError("no running Ray cluster here: say where it is (--address HOST:PORT)") from None
    except Exception as error:
        raise ClusterError(f"{address}: no address of a Ray cluster, use HOST:PORT ({error})") from None
    if not found or "://" in found:
        raise ClusterError(f"{address or found}: no address of a Ray cluster, use HOST:PORT of its head")
    return str(found)


def read_notes(cluster: str) -> list[Note]:
    """Return the notes of the processes that live, and delete those of jobs that ended without doing so.

    Args:
        cluster: What `find_cluster` has returned.

    Raises:
        ClusterError: The head does not answer.
    """
    _knock(cluster)
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

        client = GcsClient(address=cluster)
        keys = client.internal_kv_keys(f"{PREFIX}/".encode(), NAMESPACE, timeout=TIMEOUT)
        values = {key: client.internal_kv_get(key, NAMESPACE, timeout=TIMEOUT) for key in keys}
    except Exception as error:
        if "AuthToken" in str(error):
            advice = "set RAY_AUTH_MODE=token here, as its user (or with its RAY_AUTH_TOKEN_PATH)"
            raise ClusterError(f"the Ray cluster at {cluster} asks for a token: {advice}") from None
        raise ClusterError(f"the Ray cluster at {cluster} does not answer: {_first_line(error)}") from None
    notes = [note for key, value in values.items() if (note := _parse(key, value)) is not None]
    if not notes:
        return []
    jobs, workers = _find_living(cluster)
    if jobs is not None:
        for note in (each for each in notes if each.job not in jobs):
            with contextlib.suppress(Exception):
                client.internal_kv_del(note.key, False, NAMESPACE, timeout=TIMEOUT)
    return [note for note in notes if _is_alive(note, jobs, workers)]


def _take_token(address: str | None) -> None:
    """Have Ray's client show this user's token by the rules of ``ray.init``: unasked only to a cluster that Ray found itself."""
    with contextlib.suppress(ImportError):  # older versions know of no tokens
        from ray._private.authentication import authentication_token_setup as setup

        if address in (None, "auto") and not os.environ.get("RAY_ADDRESS"):
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        setup.ensure_token_if_auth_enabled(None, create_token_if_missing=False)


def _knock(cluster: str) -> None:
    """Find out whether anybody is there: Ray's own client waits for half a minute."""
    host, _, port = cluster.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Ray cluster at {cluster}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def _parse(key: bytes, value: bytes | None) -> Note | None:
    """Return a note; None if it was deleted meanwhile or is damaged."""
    try:
        _, run_id, worker = key.decode().split("/")
        said: dict[str, Any] = json.loads(value or b"")
        entries = [entry for entry in said["entries"] if entry["targets"] and entry["labels"]["instance"]]
        return Note(key, run_id, entries, said["folder"], said["node"], said["job"], worker, bool(said["driver"]))
    except (ValueError, LookupError, TypeError):
        return None


def _find_living(cluster: str) -> tuple[set[str] | None, set[str]]:
    """Return the jobs and the workers that live; no jobs at all if this Ray does not tell."""
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
