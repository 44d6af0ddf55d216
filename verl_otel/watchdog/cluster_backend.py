# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The interface to a cluster: why a process died, what the monitors of other nodes have found, and trajectories. Integrations implement it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import call_for

T = TypeVar("T")

QUERY_SECONDS: Final = 2.0
"""Seconds that the monitor waits for an answer. It does not check its node meanwhile."""
ClusterNote = dict[str, Any]
"""The active incidents of a node: ``place``, ``time`` (Unix seconds), ``findings`` as in ``events.jsonl``."""


class DeathInfo(NamedTuple):
    """What a cluster knows about the death of a process."""

    expected: bool
    """Whether the death was intended: the job has ended, or the process was not needed any more."""
    text: str


class ActorProcess(NamedTuple):
    """A process of this node in which an actor of this job runs."""

    pid: int
    role: str
    actor: str
    """The cluster's id of the actor."""


class ClusterBackend(Protocol):
    """A cluster. The methods may block on the network; call them through `query`."""

    def explain(self, actor: str) -> DeathInfo | None:
        """Return why the process of an actor died; None if it is unknown, or if the process lives."""

    def list_actors(self) -> list[ActorProcess]:
        """Return the processes of this node in which actors of this job run, also those without telemetry."""

    def publish(self, run_id: str, node: str, note: ClusterNote | None) -> None:
        """Publish the incidents of this node for the monitors of other nodes; None: there are none any more."""

    def clear(self, run_id: str) -> None:
        """Remove the notes of all nodes: the run has ended."""

    def read(self, run_id: str) -> list[ClusterNote]:
        """Return the notes of all nodes."""

    def is_connected(self) -> bool:
        """Return whether this process is part of a cluster that can answer it. Asks nothing, and never blocks."""

    def send(self, run_id: str, message: bytes) -> None:
        """Store a message for the process with the steps of the run."""

    def take(self, run_id: str) -> list[bytes]:
        """Remove and return the messages for the process with the steps of the run."""


class _Current:
    backend: ClusterBackend | None = None


def set_cluster_backend(backend: ClusterBackend | None) -> None:
    """Set the cluster that `query` asks; None: no cluster."""
    _Current.backend = backend


def find_connected() -> ClusterBackend | None:
    """Return the cluster that this process is part of; None if there is none, or if it cannot answer."""
    backend = _Current.backend
    return backend if backend is not None and backend.is_connected() else None


def query(call: Callable[[ClusterBackend], T]) -> T | None:
    """Return the answer of the cluster; None if there is no cluster, or no answer in time.

    Example:
        query(lambda cluster: cluster.explain(actor))
    """
    backend = _Current.backend
    if backend is None:
        return None
    try:
        return call_for(QUERY_SECONDS, "verl-otel-cluster", lambda: call(backend))
    except TimeoutError:
        return None
    except Exception as error:
        error_boundary.record_internal_error("cluster", error)
        return None
