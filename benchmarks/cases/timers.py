# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's ``marked_timer`` around a phase of a step: plain, and with our hook, which makes a span and a histogram besides."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from benchmarks.case import BASELINE, OURS, Case, Operation, Target, Unavailable, Variant
from benchmarks.rounds import loop


def _verl() -> Any:
    try:
        from verl.utils.profiler import performance
    except ImportError as error:
        raise Unavailable(f"verl is not installed: {error}") from None
    return performance


def _enter(timer: Any, **more: Any) -> Operation:
    return loop("with t('gen', raw): pass", t=timer, raw={}, **more)


def _theirs() -> Operation:
    return _enter(_verl().marked_timer)


def _ours() -> Operation:
    import verl_otel
    from benchmarks.backends.ours import Ours
    from verl_otel.integrations.verl import timers

    module = ModuleType("verl.utils.profiler")
    module.marked_timer = _verl().marked_timer  # type: ignore[attr-defined]  # all of the module that the hook looks at
    backend = Ours()
    timers.HOOKS[0].install(module)
    step = verl_otel.step(1)
    step.__enter__()

    def close() -> None:
        step.close()
        backend.close()

    return _enter(module.marked_timer, before=backend.empty, close=close)


CASES: Final = (
    Case(
        "marked-timer",
        "verl's `marked_timer` in a step",
        (
            Variant(BASELINE, "an empty statement: the loop itself", lambda: loop("pass")),
            Variant(OURS, "ours in its place, with a span and a histogram", _ours),
            Variant("verl", "verl's own, no telemetry", _theirs),
        ),
        (Target("verl's plain `marked_timer` replaced by ours", None, {"verl": 0.9}),),
        quick=False,
    ),
)
