# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a watcher may ask of others: watchers of other nodes, and the cluster that knows why a process died. Filled by integrations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from verl_otel import _guard

T = TypeVar("T")

PATIENCE: Final = 2.0
"""Seconds that a watcher waits for an answer; its node is watched meanwhile by nobody."""
Note = dict[str, Any]
"""What the watcher of a node has found: ``place``, ``time`` (Unix seconds), ``findings`` as in ``events.jsonl``."""


class Death(NamedTuple):
    """What a cluster knows of the end of a process."""

    expected: bool
    """Whether somebody wanted it: its job has ended, or it was not needed any more."""
    text: str


class Neighbourhood(Protocol):
    """A cluster. Every method may take as long as a network does: `ask` calls it."""

    def explain(self, actor: str) -> Death | None:
        """Return why the process of an actor is gone; None if nothing is known, or if it lives."""

    def publish(self, run_id: str, place: str, note: Note | None) -> None:
        """Tell the watchers of other nodes what was found here; None: nothing any more."""

    def forget(self, run_id: str) -> None:
        """Take the notes of all nodes away: the run has ended."""

    def read(self, run_id: str) -> list[Note]:
        """Return what the watchers of all nodes have told."""


class _Known:
    neighbourhood: Neighbourhood | None = None


def join(neighbourhood: Neighbourhood | None) -> None:
    """Have a cluster asked from now on."""
    _Known.neighbourhood = neighbourhood


def ask(question: Callable[[Neighbourhood], T]) -> T | None:
    """Return the answer of the cluster; None if there is no cluster, or no answer in time.

    Example:
        ask(lambda cluster: cluster.explain(actor))
    """
    known = _Known.neighbourhood
    if known is None:
        return None
    answers: list[T] = []

    def run() -> None:
        with _guard.swallowed("cluster"):
            answers.append(question(known))

    thread = threading.Thread(target=run, name="verl-otel-cluster", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends
        return None
    thread.join(PATIENCE)
    return answers[0] if answers else None
