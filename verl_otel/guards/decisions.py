# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""All guards of a run: the conditions that are switched on, the best checkpoint, and the callbacks of users.

Guards only decide. Their caller carries out the actions that they return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from verl_otel._internal import error_boundary, process_state
from verl_otel.guards.conditions import Condition, Finding, make_conditions
from verl_otel.health.thresholds import DEFAULTS

MAX_ALERTS: Final = 16
"""Alerts of one record; further ones are dropped."""


class Record:
    """The scalars of one step, as a callback of `on_record` sees them.

    Args:
        step: Number of the step.
        values: Finite and other scalars by verl's key. A callback must not change them.
    """

    def __init__(self, step: int, values: Mapping[str, float]) -> None:
        self.step: Final = step
        self.values: Final = values
        self.stop_reason: str | None = None
        self.wants_checkpoint = False
        self.alerts: list[str] = []

    def stop(self, reason: str) -> None:
        """Ask for the end of the training, by verl's own last step: it trains one more step, validates and saves as configured.

        Args:
            reason: Shown in the log, the manifest of the run and its report.
        """
        self.stop_reason = str(reason)

    def checkpoint(self) -> None:
        """Ask for a checkpoint of this step, by verl's own function, before the next step begins."""
        self.wants_checkpoint = True

    def alert(self, text: str) -> None:
        """Report something without a stop: a warning in the log and in the run log, and an event of the run.

        Args:
            text: What was seen.
        """
        if len(self.alerts) < MAX_ALERTS:
            self.alerts.append(str(text))


Callback = Callable[[Record], object]
_callbacks: Final[list[Callback]] = []
process_state.register(reset=_callbacks.clear)


def on_record(callback: Callback) -> Callback:
    """Call a function with the scalars of each step, in the process of the trainer. Also a decorator.

    The function runs between two steps and delays the training by as long as it takes. An exception is logged once and changes nothing.

    Args:
        callback: Called with a `Record`: ``step``, ``values``, ``stop(reason)``, ``checkpoint()`` and ``alert(text)``.

    Returns:
        The function itself.

    Example:
        @verl_otel.on_record
        def watch(record):
            if record.values.get("val-core/math/acc", 0) > 0.95:
                record.checkpoint()
                record.stop("accuracy reached")
    """
    _callbacks.append(callback)
    return callback


class Decision(NamedTuple):
    """What the guards ask for after a step."""

    stop: Finding | None = None
    checkpoint: bool = False
    value: float | None = None
    """The value of the scalar of the best checkpoint at this step; None: there is none."""
    alerts: tuple[str, ...] = ()


class BestMetric:
    """The scalar that says which checkpoint is best.

    Args:
        text: ``KEY`` or ``max:KEY`` for a scalar whose highest value is best, ``min:KEY`` for the lowest.
    """

    def __init__(self, text: str) -> None:
        direction, colon, key = text.partition(":")
        if not colon or direction not in ("max", "min"):
            direction, key = "max", text
        self.key: Final = key
        self.name: Final = f"{direction}:{key}"
        """Key and direction."""
        self._sign = -1.0 if direction == "min" else 1.0

    def read(self, values: Mapping[str, float]) -> float | None:
        """Return the value of a step; None if it has none, or one that is not finite."""
        value = values.get(self.key)
        return value if value is not None and math.isfinite(value) else None

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value is better than another one."""
        return value * self._sign > than * self._sign

    def choose(self, values: Mapping[int, float]) -> int | None:
        """Return the step with the best of some values, the first one of equals; None without values."""
        return min(values, key=lambda step: (-self._sign * values[step], step), default=None)


class Guards:
    """The guards of one run.

    Args:
        conditions: Conditions that stop the training.
        best: The scalar of the best checkpoint; None: none is kept.
    """

    def __init__(self, conditions: list[Condition], best: BestMetric | None = None) -> None:
        self._conditions = conditions
        self.best: Final = best

    @property
    def active(self) -> bool:
        """Whether anything is switched on."""
        return bool(self._conditions or self.best or _callbacks)

    def observe(self, step: int, values: Mapping[str, float]) -> Decision:
        """Add the scalars of a step and return what they ask for. The first condition that holds is the one that stops."""
        findings = [
            finding for condition in self._conditions if (finding := condition.observe(step, values)) is not None
        ]
        record = Record(step, values)
        for callback in tuple(_callbacks):
            try:
                callback(record)
            except Exception as error:
                name = getattr(callback, "__qualname__", repr(callback))
                error_boundary.warn_once(f"on_record {name}", "verl-otel: callback %s failed: %s", name, repr(error))
        if record.stop_reason is not None:
            findings.append(Finding("callback", step, record.stop_reason))
        value = self.best.read(values) if self.best is not None else None
        return Decision(findings[0] if findings else None, record.wants_checkpoint, value, tuple(record.alerts))


def make_guards(thresholds: Mapping[str, float] = DEFAULTS, *, best_checkpoint: str, **steps: int) -> Guards:
    """Return the guards of a configuration; see `make_conditions` for the steps, and `BestMetric`."""
    return Guards(make_conditions(thresholds, **steps), BestMetric(best_checkpoint) if best_checkpoint else None)
