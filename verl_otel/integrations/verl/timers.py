# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's timers: ``step`` is the root of a step trace, or one round of it, every other key a phase."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, assign, replace
from verl_otel.integrations.verl import gpu_time
from verl_otel.integrations.verl.trainer import close_step, open_step
from verl_otel.recording.phase_names import phase_site
from verl_otel.recording.span import Span
from verl_otel.semconv.spans import SPANS

_PHASE: Final = SPANS["phase"].name
_STOP: Final = "TrainingStopException"
"""The exception by which verl's fully asynchronous trainer leaves its last, empty step."""
SCALARS: Final = "timing_s/"
"""Prefix of a timer's key when verl logs it; one timer of 0.9 has it in its key."""


def open_timer(key: str) -> Span | None:
    """Begin the span of one of verl's timers; None if our own code fails."""
    try:
        return open_step() if key == "step" else Span(phase_site(key.removeprefix(SCALARS), hook=True)).__enter__()
    except Exception as error:
        error_boundary.record_internal_error("timer", error)
        return None


def close_timer(span: Span, error: BaseException | None) -> None:
    """End the span of a timer. A step that only detected the end of the training is discarded."""
    if type(error).__name__ == _STOP:
        span.discard()
        span.close(error)
        return
    if span.site.spec.verb != "phase":
        close_step(span, error)
        return
    span.close(error)
    if span.start:
        gpu_time.note_phase(span.site.name.removeprefix(_PHASE), span.start, span.stop)


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


def _install(module: ModuleType) -> None:
    """Replace the timer of a module, also where it was imported from there before: in `verl.utils.debug`, in a trainer of the user's."""
    original = module.marked_timer
    replace(module, _TIMER, _wrap_timer)
    if module.marked_timer is original:
        return
    for other in list(sys.modules.values()):
        # A lazy module would be imported by any other way to read its names.
        if isinstance(other, ModuleType) and object.__getattribute__(other, "__dict__").get(_TIMER) is original:
            assign(other, _TIMER, module.marked_timer)


_TIMER: Final = "marked_timer"
HOOKS: Final = (
    # Before `verl.utils.profiler`, which imports it from here unless it finds a profiler.
    Hook("verl.utils.profiler.performance", _TIMER, _install, "no steps and phases of trainers of other projects"),
    Hook("verl.utils.profiler", _TIMER, _install, "no steps and phases"),
)
