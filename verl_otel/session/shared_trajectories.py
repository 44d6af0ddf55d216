# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Passes trajectories of an own loop to the process of their step, where they ran in others of the cluster, such as Ray's actors.

Scores, percentiles and groups of a step are those of all its trajectories: no process that ran a part of them can know
them, and they cannot be merged from what each of these would report. A thread sends and looks, because a cluster whose
head does not answer may block for minutes.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import call_for
from verl_otel._internal.safe_files import parse_json
from verl_otel.recording import own_loop
from verl_otel.recording.own_loop import EndedTrajectory, Shared
from verl_otel.watchdog import cluster_backend
from verl_otel.watchdog.cluster_backend import ClusterBackend

LAST_SECONDS: Final = 2.0
"""Seconds for which the end of a run waits for the cluster."""
_THREAD: Final = "verl-otel-trajectories"


class SharedTrajectories:
    """The exchange of one process: it sends its trajectories of other processes' steps, and looks for those of its own steps."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    @error_boundary.never_raises("trajectories of other processes")
    def exchange(self, run_id: str) -> None:
        """Begin to send and to look, on a thread, and return at once. Call it after a drain."""
        cluster = cluster_backend.find_connected()
        own_loop.share(can=cluster is not None)
        if cluster is None or not (own_loop.has_step() or own_loop.has_outgoing()):
            return
        if self._thread is not None and self._thread.is_alive():
            return
        thread = threading.Thread(target=_exchange, args=(cluster, run_id), name=_THREAD, daemon=True)
        with contextlib.suppress(RuntimeError):  # as many as this system allows: the next call tries again
            thread.start()
            self._thread = thread

    def take_last(self, run_id: str) -> None:
        """Take what has arrived, in a process with steps, for at most `LAST_SECONDS`. No more is expected: the other processes end."""
        cluster = cluster_backend.find_connected()
        if cluster is None or not own_loop.has_step():
            return
        try:
            found = call_for(LAST_SECONDS, _THREAD, lambda: _look(cluster, run_id))
        except TimeoutError:
            return  # what is missing is not known: nothing is reported of the last step
        for each in (found, *([[]] * own_loop.QUIET_LOOKS)):
            own_loop.receive(each)


@error_boundary.never_raises("trajectories of other processes")
def _exchange(cluster: ClusterBackend, run_id: str) -> None:
    outgoing = own_loop.take_outgoing()
    if outgoing:
        cluster.send(run_id, encode(outgoing))
    if own_loop.has_step():
        own_loop.receive(_look(cluster, run_id))


def _look(cluster: ClusterBackend, run_id: str) -> list[Shared]:
    return [shared for message in cluster.take(run_id) for shared in decode(message)]


def encode(trajectories: list[Shared]) -> bytes:
    """Return a message with these trajectories."""
    return json.dumps(
        [(f"{step:x}", f"{trace_id:x}", *trajectory) for step, trace_id, trajectory in trajectories]
    ).encode()


def decode(message: bytes) -> list[Shared]:
    """Return the trajectories of a message; none if it is not one of this version."""
    try:
        return [_read(*row) for row in parse_json(message)]
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        return []


def _read(
    step: Any, trace_id: Any, seconds: Any, score: Any, source: Any, facts: Any, stop: Any, uid: Any, whole: Any, _: Any
) -> Shared:
    known = {str(name): float(value) for name, value in facts.items()}
    trajectory = EndedTrajectory(
        float(seconds), None if score is None else float(score), str(source), known, float(stop), str(uid), bool(whole)
    )
    return Shared(int(step, 16), int(trace_id, 16), trajectory)
