# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's timers: ``step`` is the root of a step trace, every other key a phase."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.api import CallSite, Span, clock, counter, phase_site
from verl_otel.integrations.patch import Hook
from verl_otel.integrations.verl import gpu_time
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.spans import SPANS

_PHASE: Final = SPANS["phase"].name
_STEP: Final = CallSite("step", hook=True)
_STOP: Final = "TrainingStopException"
"""The exception by which verl's fully asynchronous trainer leaves its last, empty step."""
SCALARS: Final = "timing_s/"
"""Prefix of a timer's key when verl logs it; one timer of 0.9 has it in its key."""


def open_timer(key: str) -> Span | None:
    """Begin the span of one of verl's timers; None if our own code fails."""
    try:
        if key != "step":
            span = Span(phase_site(key.removeprefix(SCALARS), hook=True))
        else:
            span = Span(_STEP, Trainer.describe_step())
            before, Trainer.step = Trainer.step, span
            if before is not None and before.stop:
                counter(metric_names.STEP_BETWEEN_TIME).record(clock() - before.stop)
        return span.__enter__()
    except Exception as error:
        error_boundary.record_internal_error("timer", error)
        return None


def close_timer(span: Span, error: BaseException | None) -> None:
    """End the span of a timer. A step that only detected the end of the training is discarded."""
    if type(error).__name__ == _STOP:
        span.discard()
    span.close(error)
    if not span.start or type(error).__name__ == _STOP:
        return
    if span.site.spec.verb == "phase":
        gpu_time.note_phase(span.site.name.removeprefix(_PHASE), span.start, span.stop)
    else:
        gpu_time.end_step(span.start, span.stop, Trainer.instance, str(span.attributes.get(attr.TRAINER_MODE, "")))


class MarkedTimer:
    """Replaces verl's plain ``marked_timer`` and opens a span, at a fraction of its cost.

    As in verl, a block that raises adds nothing to ``timing_raw``; its span records the exception.
    """

    __slots__ = ("_name", "_span", "_start", "_timing")

    def __init__(
        self,
        name: str,
        timing_raw: dict[str, float],
        color: str | None = None,  # noqa: ARG002 - for profilers
        domain: str | None = None,  # noqa: ARG002 - for profilers
        category: str | None = None,  # noqa: ARG002 - for profilers
    ) -> None:
        self._name = name
        self._timing = timing_raw

    def __enter__(self) -> None:
        self._span = open_timer(self._name)
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        seconds = time.perf_counter() - self._start
        if error is None:
            self._timing[self._name] = self._timing.get(self._name, 0) + seconds
        if self._span is not None:
            close_timer(self._span, error)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function, as verl's timer can: each call is timed."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with MarkedTimer(self._name, self._timing):
                return function(*args, **kwargs)

        return timed


def _wrap_profiler_timer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the timer of a profiler (NVTX, MSTX), which keeps its ranges."""

    @contextlib.contextmanager
    def marked_timer(name: str, timing_raw: dict[str, float], *args: Any, **kwargs: Any) -> Iterator[None]:
        span = open_timer(name)
        try:
            with original(name, timing_raw, *args, **kwargs):
                yield
        except BaseException as error:
            if span is not None:
                close_timer(span, error)
            raise
        if span is not None:
            close_timer(span, None)

    return marked_timer


def _wrap_timer(original: Any) -> Any:
    if getattr(original, "__module__", "") != "verl.utils.profiler.performance":
        return _wrap_profiler_timer(original)

    def plain_timer(*args: Any, **kwargs: Any) -> MarkedTimer:
        return MarkedTimer(*args, **kwargs)

    return plain_timer


HOOKS: Final = (
    # Trainers of other projects import it from here. Before `verl.utils.profiler`, which may import it from here, too.
    Hook.wrapping(
        "verl.utils.profiler.performance",
        "marked_timer",
        _wrap_timer,
        "no steps and phases of trainers of other projects",
    ),
    Hook.wrapping("verl.utils.profiler", "marked_timer", _wrap_timer, "no steps and phases"),
)
