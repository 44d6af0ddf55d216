# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl.logging``: how long each tracker (console, wandb, file ...) takes in one ``Tracking.log``."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import argument, close_span, open_span
from verl_otel.integrations.verl import gpu_time
from verl_otel.recording.attribute_values import to_name
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr

STATE: Final = "logging"
"""Name of the time in the account of GPU time."""
_LOGGING: Final = CallSite("logging", hook=True)


class TimedTrackers(dict[str, Any]):
    """The trackers of a ``Tracking``, by name, whose iteration opens a span for each of them.

    It takes the place of ``Tracking.logger`` during one call of ``log``, which does nothing with it but call each tracker in turn.

    Args:
        trackers: The trackers.
        wanted: Names of those that are called; None: all.
    """

    def __init__(self, trackers: dict[str, Any], wanted: Collection[str] | None) -> None:
        super().__init__(trackers)
        self.plain = trackers
        """The trackers as they were."""
        self._wanted = wanted
        self._span: Span | None = None

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]  # verl only iterates
        """Yield names and trackers. The span of a tracker ends when the next one is asked for."""
        for name, tracker in list(super().items()):
            self.end()
            if self._wanted is None or name in self._wanted:
                self._span = open_span(
                    "logging", lambda _, named, __: Span(_LOGGING, {attr.TRACKER: to_name(named[0])}), None, (name,), {}
                )
            yield name, tracker
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """End the span of the current tracker, if there is one."""
        span, self._span = self._span, None
        close_span(span, error)
        if span is not None and span.start:
            gpu_time.note_phase(STATE, span.start, span.stop)


def wrap_log(original: Any) -> Any:
    """Wrap ``Tracking.log``."""

    @functools.wraps(original)
    def log(self: Any, *args: Any, **kwargs: Any) -> Any:
        trackers = _replace_trackers(self, args, kwargs) if RECORDER.on else None
        if trackers is None:
            return original(self, *args, **kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            _restore_trackers(self, trackers, error)
            raise
        _restore_trackers(self, trackers, None)
        return result

    return log


def _restore_trackers(tracking: Any, trackers: TimedTrackers, error: BaseException | None) -> None:
    with error_boundary.suppress_errors("logging"):
        if tracking.logger is trackers:
            tracking.logger = trackers.plain
        trackers.end(error)


def _replace_trackers(tracking: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TimedTrackers | None:
    """Give a ``Tracking`` trackers with spans, and return them; None if its own are of an unknown form."""
    with error_boundary.suppress_errors("logging"):
        plain = vars(tracking).get("logger")
        if type(plain) is dict:
            trackers = TimedTrackers(plain, argument(args, kwargs, 2, "backend"))
            tracking.logger = trackers
            return trackers
    return None
