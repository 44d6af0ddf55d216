# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""All guards of a run: the conditions that are switched on, the best checkpoint, and the callbacks of users.

Guards only decide. Their caller carries out the actions that they return.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from verl_otel._internal import error_boundary, process_state
from verl_otel.guards.wording import describe
from verl_otel.health.conditions import Condition, make_conditions, make_silent_conditions
from verl_otel.health.thresholds import DEFAULTS
from verl_otel.semconv.scalar_keys import BY_NAME, VALIDATION, find_keys

MAX_ALERTS: Final = 16
"""Alerts of one record; further ones are dropped."""


class Record:
    """The scalars of one step, as a callback of `on_record` sees them.

    Args:
        step: Number of the step.
        values: Finite and other scalars by verl's key, and by the name that the run log has for them: ``actor/ppo_kl`` is also
            ``ppo/kl_div``. A callback must not change them.
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


class Stop(NamedTuple):
    """Why a training is stopped."""

    guard: str
    """``nan``, ``kl``, ``reward_fall`` or ``plateau``; ``callback``: a callback has asked for it."""
    step: int
    text: str
    """What was seen, with numbers."""


class Decision(NamedTuple):
    """What the guards ask for after a step."""

    stop: Stop | None = None
    checkpoint: bool = False
    value: float | None = None
    """The value of the scalar of the best checkpoint at this step; None: there is none."""
    alerts: tuple[str, ...] = ()


class BestMetric:
    """The scalar that says which checkpoint is best.

    Args:
        text: ``KEY`` or ``max:KEY`` for a scalar whose highest value is best, ``min:KEY`` for the lowest. A key is
            verl's, or the name that the run log has for it, such as ``rollout/reward_mean``.
    """

    def __init__(self, text: str) -> None:
        direction, colon, key = text.partition(":")
        if not colon or direction not in ("max", "min"):
            direction, key = "max", text
        self.key: Final = key
        """As it was given."""
        self.keys: Final = find_keys(key)
        """Keys that a step may have its value under."""
        self.name: Final = f"{direction}:{BY_NAME.get(key, (key,))[0]}"
        """Direction and verl's key."""
        self._sign = -1.0 if direction == "min" else 1.0

    def is_in(self, values: Mapping[str, float]) -> bool:
        """Return whether the scalar is among those of a step."""
        return any(key in values for key in self.keys)

    def read(self, values: Mapping[str, float]) -> float | None:
        """Return the value of a step; None if it has none, or one that is not finite."""
        value = next((values[key] for key in self.keys if key in values), None)
        return value if value is not None and math.isfinite(value) else None

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value is better than another one."""
        return value * self._sign > than * self._sign

    def choose(self, values: Mapping[int, float]) -> int | None:
        """Return the step with the best of some values, the first one of equals; None without values."""
        return min(values, key=lambda step: (-self._sign * values[step], step), default=None)


NAMED: Final = 8
"""Scalars that are named if the one that was given is not there."""


def describe_missing(key: str, known: Iterable[str]) -> str:
    """Return which scalars there are instead of one that is missing: similar ones, or the first of all."""
    keys = sorted(known)
    near = difflib.get_close_matches(key, keys, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return f"there are {', '.join(keys[:NAMED])}{more}"


class Guards:
    """The guards of one run.

    Args:
        conditions: Conditions that stop the training.
        best: The scalar of the best checkpoint; None: none is kept.
        silent: Conditions that are reported, and stop nothing.
    """

    def __init__(
        self, conditions: list[Condition], best: BestMetric | None = None, silent: Sequence[Condition] = ()
    ) -> None:
        self._conditions = conditions
        self._silent = silent
        self.best: Final = best
        self._is_best_known = False
        """Whether the scalar of the best checkpoint was among those of a step, or was reported as missing."""

    def observe(self, step: int, values: Mapping[str, float]) -> Decision:
        """Add the scalars of a step and return what they ask for. The first condition that holds is the one that stops."""
        stops = [
            Stop(finding.kind, step, describe(finding))
            for condition in self._conditions
            if (finding := condition.observe(step, values)) is not None
        ]
        seen = [found for condition in self._silent if (found := condition.observe(step, values)) is not None]
        record = Record(step, _add_names(values) if _callbacks else values)
        for callback in tuple(_callbacks):
            try:
                callback(record)
            except Exception as error:
                name = getattr(callback, "__qualname__", repr(callback))
                error_boundary.warn_once(f"on_record {name}", "verl-otel: callback %s failed: %s", name, repr(error))
        if record.stop_reason is not None:
            stops.append(Stop("callback", step, record.stop_reason))
        value = None
        if self.best is not None:
            value = self.best.read(values)
            self._look_for(self.best, step, values)
        alerts = (*map(describe, seen), *record.alerts)
        return Decision(stops[0] if stops else None, record.wants_checkpoint, value, alerts)

    def _look_for(self, best: BestMetric, step: int, values: Mapping[str, float]) -> None:
        """Log once if a step lacks the scalar of the best checkpoint; that of a validation is expected where one was made."""
        is_expected = not best.key.startswith(VALIDATION) or any(key.startswith(VALIDATION) for key in values)
        if self._is_best_known or not is_expected:
            return
        self._is_best_known = True
        if not best.is_in(values):
            error_boundary.warn_once(
                f"best {best.key}",
                "verl-otel: step %d has no scalar %s, by which the best checkpoint is chosen: none is kept while it is missing; %s",
                step, best.key, describe_missing(best.key, _add_names(values)),
            )  # fmt: skip

    def end(self) -> None:
        """Log once if no step of the run had the scalar of the best checkpoint."""
        if self.best is not None and not self._is_best_known:
            self._is_best_known = True
            error_boundary.warn_once(
                f"best {self.best.key}",
                "verl-otel: no checkpoint was kept as the best one: no step had the scalar %s",
                self.best.key,
            )  # fmt: skip


def _add_names(values: Mapping[str, float]) -> dict[str, float]:
    """Return scalars by verl's key, and by the name of the run log."""
    named = {name: next((values[key] for key in keys if key in values), None) for name, keys in BY_NAME.items()}
    return {**{name: value for name, value in named.items() if value is not None}, **values}


def make_guards(thresholds: Mapping[str, float] = DEFAULTS, *, best_checkpoint: str, **steps: int) -> Guards:
    """Return the guards of a configuration; see `make_conditions` for the steps, and `BestMetric`."""
    best = BestMetric(best_checkpoint) if best_checkpoint else None
    return Guards(make_conditions(thresholds, **steps), best, make_silent_conditions(thresholds))
