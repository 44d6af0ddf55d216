# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Identity, state and progress of a run whose steps are recorded by `verl_otel.step`; verl's trainers report theirs by ``Tracking``."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from verl_otel._internal import process_state
from verl_otel.model import Labels
from verl_otel.recording import own_trajectories, series, state
from verl_otel.recording.attribute_values import to_name, to_number
from verl_otel.recording.own_trajectories import StepSummary
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

RUNNING, FINISHED, FAILED = 1, 2, 3
"""Values of ``verl.run.state``."""
MAX_PHASES: Final = 1000
"""Phases that are kept until their step ends."""
MAX_STEPS: Final = 1000
"""Steps that are kept until a session takes them."""


class EndedStep(NamedTuple):
    """A step that has ended. Times are those of the clock of spans, in seconds."""

    number: int | None
    before: float
    """End of the step before; 0: it is the first one."""
    start: float
    stop: float
    phases: tuple[tuple[str, float, float], ...]
    """Key, start and end of each phase since the end of the step before."""
    trajectories: StepSummary


class _Loop:
    """The own loop of this process."""

    labels: Labels = ()
    began = False
    failed = False
    last_stop = 0.0
    phases: deque[tuple[str, float, float]] = deque(maxlen=MAX_PHASES)
    ended: deque[EndedStep] = deque(maxlen=MAX_STEPS)


def configure(project: str, experiment: str) -> None:
    """Set the labels of ``verl.run.info``."""
    names = ((attr.PROJECT, project), (attr.EXPERIMENT, experiment))
    _Loop.labels = tuple((name, value) for name, value in names if value)


def note_phase(span: Span) -> None:
    """Record that a phase has ended. Called by the drain."""
    if not span.site.hook:
        _Loop.phases.append((to_name(span.attributes.get(attr.PHASE, "")), span.start, span.stop))


def note_step(span: Span) -> None:
    """Record that a step of an own loop has ended. Called by the drain."""
    if not _Loop.began:
        _Loop.began = True
        series.gauge(metric_names.RUN_INFO, _Loop.labels).set(1)
        series.gauge(metric_names.RUN_STATE).set(RUNNING)
    _Loop.failed = bool(span.error)
    number = to_number(span.attributes.get(attr.STEP_NUMBER))
    if number is not None:
        series.gauge(metric_names.TRAINING_STEP).set(number)
    before = _Loop.last_stop
    if before:
        series.counter(metric_names.STEP_BETWEEN_TIME).record(max(0.0, span.start - before))
    shown = int(number) if number is not None and math.isfinite(number) else None
    trajectories = own_trajectories.end_step(span)
    _Loop.ended.append(EndedStep(shown, before, span.start, span.stop, tuple(_Loop.phases), trajectories))
    _Loop.last_stop = span.stop
    _Loop.phases.clear()


def has_step() -> bool:
    """Return whether this process has begun a step of an own loop."""
    return _Loop.began or any(span.site.spec.verb == "step" and not span.site.hook for span in state.RECORDER.opened)


def take_ended() -> list[EndedStep]:
    """Remove and return the steps that have ended."""
    return [_Loop.ended.popleft() for _ in range(len(_Loop.ended))]


def end() -> None:
    """Record the end of the run, if this process had an own loop: failed if its last step ended with an exception."""
    own_trajectories.report(last=True)
    if _Loop.began:
        series.gauge(metric_names.RUN_STATE).set(FAILED if _Loop.failed else FINISHED)


def _clear() -> None:
    _Loop.last_stop = 0.0
    _Loop.phases.clear()
    _Loop.ended.clear()


def _reset() -> None:
    _Loop.labels, _Loop.began, _Loop.failed = (), False, False
    _clear()


process_state.register(clear=_clear, reset=_reset, after_fork=_reset)
