# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's timers: ``step`` is the root of a step trace, or one round of it, each other key a phase. And data loading."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, assign, replace
from verl_otel.integrations.verl import gpu_time, repeated_prompts
from verl_otel.integrations.verl.trainer import close_step, open_step, stop_step
from verl_otel.recording.callsite import CallSite, phase_site
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv.spans import SPANS

_PHASE: Final = SPANS["phase"].name
_STOP: Final = "TrainingStopException"
"""The exception by which verl's fully asynchronous trainer leaves its last, empty step."""
SCALARS: Final = "timing_s/"
"""Prefix of a timer's key when verl logs it; one timer of 0.9 has it in its key."""
DATA_LOADING: Final = "data_loading"
"""Name of the time in the account of GPU time."""
_DATA_LOADING: Final = CallSite("data_loading", hook=True)


def open_timer(key: str) -> Span | None:
    """Begin the span of one of verl's timers; None if our own code fails."""
    try:
        return open_step() if key == "step" else Span(phase_site(key.removeprefix(SCALARS), hook=True)).__enter__()
    except Exception as error:
        error_boundary.record_internal_error("timer", error)
        return None


def close_timer(span: Span, error: BaseException | None) -> None:
    """End the span of a timer. What only detected the end of the training is discarded."""
    is_step = span.site.spec.verb != "phase"
    if type(error).__name__ == _STOP:
        if is_step:
            stop_step(span, error)
        else:
            span.discard()
            span.close(error)
    elif is_step:
        close_step(span, error)
    else:
        span.close(error)
        if span.start:
            gpu_time.note_phase(span.site.name.removeprefix(_PHASE), span.start, span.stop)


def wrap_timer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``marked_timer``: verl's plain one, or that of a profiler (NVTX, MSTX)."""

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


def _install(module: ModuleType) -> None:
    """Replace the timer of a module, also where it was imported from there before: in `verl.utils.debug`, in a trainer of the user's."""
    original = module.marked_timer
    replace(module, _TIMER, wrap_timer)
    if module.marked_timer is original:
        return
    for other in list(sys.modules.values()):
        # A lazy module would be imported by any other way to read its names.
        if isinstance(other, ModuleType) and object.__getattribute__(other, "__dict__").get(_TIMER) is original:
            assign(other, _TIMER, module.marked_timer)


def _load(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Record how long a trainer waits for an iterator over its data, or for the next batch; not for the end of the data."""
    if not RECORDER.on:
        return
    span = Span(_DATA_LOADING)
    with span:
        try:
            loaded = yield
        except StopIteration:
            span.discard()
            repeated_prompts.forget(args[0])
            raise
    if span.start:
        gpu_time.note_phase(DATA_LOADING, span.start, span.stop)
    repeated_prompts.note(args[0], loaded)


_TIMER: Final = "marked_timer"
_LOADER: Final = "torchdata.stateful_dataloader.stateful_dataloader"
_WRAP_LOADER: Final = surround("data loading", _load)
HOOKS: Final = (
    # Before `verl.utils.profiler`, which imports it from here unless it finds a profiler.
    Hook("verl.utils.profiler.performance", _TIMER, _install, "no steps and phases of trainers of other projects"),
    Hook("verl.utils.profiler", _TIMER, _install, "no steps and phases"),
    Hook.wrapping(
        _LOADER, "_StatefulBaseDataLoaderIter.__next__", _WRAP_LOADER, "no time that is spent on loading data"
    ),
    Hook.wrapping(
        _LOADER, "StatefulDataLoader.__iter__", _WRAP_LOADER, "no time in which the workers of a data loader start"
    ),
)
