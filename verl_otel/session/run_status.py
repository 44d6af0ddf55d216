# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the state of the training in this process into ``run.json``: when it changes, and when a step has ended.

`verl_otel.analysis.io.run_status` reads it and describes the fields. Only the process that records ``verl.run.state`` writes, and of a
distributed job the first rank: the others have the same steps. It runs where batches are dispatched, never in a step.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, Final

from verl_otel._internal import own_code, process_state, ranks
from verl_otel._internal.printable import show
from verl_otel._internal.safe_files import process_file_name
from verl_otel.config import Config
from verl_otel.model import Batch, HistogramValue, Labels, Resource, SpanRecord
from verl_otel.recording.attribute_values import error_name
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.run_state import WORDS, RunState
from verl_otel.semconv.spans import SPANS
from verl_otel.session import alerts, run_manifest

REWARDS: Final = ("verl.critic.rewards.mean", "verl.critic.score.mean", metric_names.AVERAGE_REWARD)
"""Rewards of a step, the best known one first."""
MAX_NUMBER: Final = 10**15
MAX_TEXT: Final = 500
_STEP, _CHECKPOINT = SPANS["step"].name, SPANS["checkpoint"].name


class _Noted:
    """What other modules know of the training in this process."""

    verdict = ""
    total_steps: int | None = None
    error = error_line = ""


def note_verdict(text: str) -> None:
    """Note what held a step, for the next write."""
    _Noted.verdict = show(text, MAX_TEXT)


def note_total_steps(number: float | None) -> None:
    """Note how many steps are planned, for the next write; None: unknown."""
    _Noted.total_steps = None if number is None else _whole(number)


def note_error(error: BaseException | None) -> None:
    """Note the exception with which the training ends, for the next write; None: it has begun, or ends without one."""
    _Noted.error, _Noted.error_line = "", ""
    if error is not None:
        _Noted.error, _Noted.error_line = error_name(error), show(own_code.find_raised(error), MAX_TEXT)


def _read_number(span: SpanRecord) -> int | None:
    number = span.attributes.get(attr.STEP_NUMBER)
    return number if isinstance(number, int) and abs(number) <= MAX_NUMBER else None


def _has_step(batch: Batch) -> bool:
    """Return whether the span of a step is open or has ended."""
    return any(opened.verb == "step" for opened in batch.open_spans) or any(span.name == _STEP for span in batch.spans)


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) and abs(value) <= MAX_NUMBER else None


def _reset() -> None:
    _Noted.verdict, _Noted.total_steps, _Noted.error, _Noted.error_line = "", None, "", ""


process_state.register(clear=_reset, reset=_reset, after_fork=_reset)


class RunStatus:
    """What is known of the training in this process.

    Args:
        began: When telemetry began in it, in seconds since 1970.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._state: RunState | None = None
        self._time = 0.0
        self._ended: dict[Labels, int] = {}
        """Steps that have ended, by how: a failed one is in a series of its own."""
        self._step: int | None = None
        self._first: int | None = None
        """Number of the first step, until it is compared with the attempts before."""
        self._saved: int | None = None
        """Step of the last checkpoint."""
        self._step_seconds: float | None = None
        self._rewards: dict[str, float] = {}
        self._verdict = ""
        self._due = False
        """Whether something has changed that is not written."""

    def consume(self, batch: Batch) -> None:
        """Take state, steps and rewards of the training from a batch."""
        self._find_checkpoint(batch.spans)
        for point in batch.points:
            name, value = point.instrument.name, point.value
            if isinstance(value, HistogramValue):
                if name == metric_names.STEP_DURATION:
                    self._ended[point.labels] = value.samples
                    self._find_step(batch.spans)
            elif name == metric_names.RUN_STATE:
                state = next((state for state in WORDS if state == value), None)
                if state is not None:
                    self._change(point.time_ns)
                    self._state = state
            elif name == metric_names.TRAINING_STEP:
                # Of a trainer whose steps have no spans. One that has spans logs a step before its span ends.
                if not self._ended and not _has_step(batch):
                    self._step = _whole(value)
                    self._change(point.time_ns)
            elif name in REWARDS:
                self._rewards[name] = value

    def _find_checkpoint(self, spans: tuple[SpanRecord, ...]) -> None:
        for span in spans:
            if span.name == _CHECKPOINT and attr.ERROR_TYPE not in span.attributes:
                self._saved = _read_number(span) or self._saved
                self._change(span.end_ns)

    def _find_step(self, spans: tuple[SpanRecord, ...]) -> None:
        """Take number and length of the last step that has ended. Its span may be missing: the memory for spans is bounded."""
        last = next((span for span in reversed(spans) if span.name == _STEP), None)
        if last is None:
            self._change(time.time_ns())
            return
        if self._step is None:
            self._first = _read_number(next(span for span in spans if span.name == _STEP))
        self._step = _read_number(last)
        self._step_seconds = max(0.0, (last.end_ns - last.start_ns) / 1e9)
        self._change(last.end_ns)

    def _change(self, time_ns: int) -> None:
        self._time, self._due = max(self._time, time_ns / 1e9), True

    def write(self, config: Config, described: Resource) -> None:
        """Write what has changed. What could not be written is due the next time.

        Args:
            config: The settings.
            described: The resource of this process.
        """
        if self._state is None or not (self._due or self._verdict != _Noted.verdict) or ranks.find_rank(os.environ):
            return
        self._verdict = _Noted.verdict
        if self._first is not None:
            self._compare(config, self._first)
            self._first = None
        self._due = not run_manifest.record_training(config.run_path, self._describe(config, described))

    def _compare(self, config: Config, first: int) -> None:
        """Report that this attempt began behind the last checkpoint of those before: verl trains again without a word."""
        saved = run_manifest.find_saved(config.run_path, config.run_attempt)
        if saved is not None and first <= saved:
            text = f"attempt {config.run_attempt} began at step {first}, although a checkpoint of step {saved} was saved before"
            alerts.report(config, first, f"{text}: was it found?")

    def _describe(self, config: Config, described: Resource) -> dict[str, Any]:
        state = RunState.RUNNING if self._state is None else self._state
        role, host = described.text(attr.ROLE, "process"), described.text(attr.HOST_NAME, "host")
        rewards = (self._rewards.get(name, math.nan) for name in REWARDS)
        return {
            "process": process_file_name(role, host),
            "began": self._began,
            "attempt": config.run_attempt,
            "state": state.word,
            "time": self._time,
            "steps": sum(self._ended.values()),
            "step": self._step,
            "step_seconds": self._step_seconds,
            "checkpoint": self._saved,
            "total_steps": _Noted.total_steps,
            "reward": next((reward for reward in rewards if math.isfinite(reward)), None),
            "verdict": self._verdict,
            "error": _Noted.error,
            "error_line": _Noted.error_line,
        }
