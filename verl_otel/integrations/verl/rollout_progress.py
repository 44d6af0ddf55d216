# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How far the rollouts of a step are, while the trainer waits for them: metrics at every poll, and a line of the log once a minute.

A trainer of verl 0.9 waits in ``ReplayBuffer.sample``, which reads the state of every prompt group each
``poll_interval`` seconds. The groups are counted there. The trajectory that is open longest is found in the files of
open spans of this node's processes, on a thread that ends after that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, Final

from verl_otel._internal import error_boundary, log_lines
from verl_otel._internal.printable import seconds
from verl_otel.model import name_trajectory
from verl_otel.recording.decorate import Steps
from verl_otel.recording.series import gauge
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.session import current_session, python_logging
from verl_otel.watchdog.overdue import TRAJECTORY, OpenSpanRow, read_rows

LINE_SECONDS: Final = 60.0
"""Seconds until the first line of a step, and between two lines."""
STATES: Final = ("pending", "running", "finished", "failure")
"""States of a prompt group in verl's replay buffer."""
REMEMBERED: Final = 10
"""Steps before whose waits are compared."""
MAX_FILES: Final = 1024
_logger = logging.getLogger("verl_otel")


class RolloutProgress:
    """The progress of the rollouts that one trainer waits for.

    Args:
        batches: Number of batches that a step takes, one after the other.
        now: Returns the time in seconds.
        run_later: Runs a function on a thread of its own.
    """

    def __init__(
        self,
        batches: int = 1,
        now: Callable[[], float] = clock,
        run_later: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._batches = batches
        self._now = now
        self._run_later = run_later or _start_thread
        self._waits: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds that earlier steps waited for their samples."""
        self._began = self._last_line = 0.0
        self._step: int | None = None
        self._wanted = 0
        self._at_once = 0
        """Groups that had finished when the wait began: earlier steps have generated them."""

    def begin(self, step: int | None, wanted: int) -> None:
        """Note that the trainer begins to wait for this number of groups, those of one batch."""
        self._step, self._wanted, self._at_once = step, wanted, -1
        self._began = self._last_line = self._now()
        gauge(metric_names.ROLLOUT_GROUPS_WANTED).set(wanted * self._batches)

    def end(self) -> None:
        """Note that it has them."""
        if self._began:
            self._waits.append(self._now() - self._began)
            self._began = 0.0

    def count(self, buffer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
        """Count the groups after the buffer has read their states."""
        yield
        counts = {state: len(getattr(buffer, f"{state}_keys")["train"]) for state in STATES}
        for state, number in counts.items():
            gauge(metric_names.ROLLOUT_GROUPS, ((attr.GROUP_STATE, state),)).set(number)
        now = self._now()
        if not self._began:
            return
        if self._at_once < 0:
            self._at_once = counts["finished"]
        if now - self._last_line >= LINE_SECONDS and RECORDER.verdict_lines:
            self._last_line = now
            text = self._describe(counts, now - self._began)
            self._run_later(lambda: _log(text, running=counts["running"]))

    def _describe(self, counts: dict[str, int], waited: float) -> str:
        left = self._estimate(counts["finished"], waited)
        more = "".join(f", {counts[state]} {state}" for state in ("running", "pending", "failure") if counts[state])
        return (
            f"step {self._step} has waited {seconds(waited)} for rollouts: {counts['finished']} of {self._wanted} "
            f"prompts finished{more}{left}"
        )

    def _estimate(self, finished: int, waited: float) -> str:
        """Return how long it may still take: as the steps before took, or at the rate of this one; empty: unknown."""
        usual = median(self._waits) if self._waits else 0.0
        if usual > waited:
            return f"; about {seconds(usual - waited)} left, if it takes as long as the steps before"
        since = finished - max(0, self._at_once)
        if since <= 0 or finished >= self._wanted:
            return ""
        return f"; about {seconds((self._wanted - finished) * waited / since)} left at the rate so far"


def find_oldest(rows: Iterable[OpenSpanRow]) -> tuple[OpenSpanRow, OpenSpanRow] | None:
    """Return the trajectory that has been open longest, and the innermost span that is open in it; None: none is open."""
    listed = list(rows)
    oldest = min((row for row in listed if row.name == TRAJECTORY), key=lambda row: row.start_ns, default=None)
    if oldest is None:
        return None
    inside = [row for row in listed if row.trace_id == oldest.trace_id]
    return oldest, max(inside, key=lambda row: (row.start_ns, row is not oldest))


def _log(text: str, *, running: int) -> None:
    with error_boundary.suppress_errors("progress"):
        session = current_session()
        oldest = find_oldest(_read_open_spans(session.config.run_path)) if session is not None else None
        if session is not None and oldest is None and running:
            text += "; no trajectory of this node is open: if there is no other node, no process works on the running prompts any more"
        elif oldest is not None:
            trajectory, inner = oldest
            age = time.time_ns() - trajectory.start_ns
            uid = str(trajectory.attributes.get(attr.SAMPLE_UID, ""))
            name = name_trajectory(uid, trajectory.attributes.get(attr.ROLLOUT_INDEX, "?"), trajectory.trace_id)
            where = f" in {inner.name}" if inner is not trajectory else ""
            text += f"; the oldest trajectory, {name}, has run {seconds(age / 1e9)}{where} on {trajectory.process_name}"
        with python_logging.not_copied():
            log_lines.warn(_logger, "verl-otel: %s", text)


def _read_open_spans(folder: Path) -> list[OpenSpanRow]:
    paths = sorted(folder.glob("open-*.jsonl"))[:MAX_FILES]
    return [row for path in paths for row in read_rows(path, path.name.removeprefix("open-").removesuffix(".jsonl"))]


def _start_thread(function: Callable[[], None]) -> None:
    threading.Thread(target=function, name="verl-otel-progress", daemon=True).start()
