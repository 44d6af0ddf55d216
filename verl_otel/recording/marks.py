# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which trajectories somebody will want to look at: marked where the process knows, so that a tail sampler keeps them whole.

A Collector that samples by traces cannot see that a trajectory was the slowest of its step, or that its score is out of line; here it
costs a comparison. Marks are few by design: a mark that every second trajectory has tells nothing and keeps everything.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from verl_otel.recording.values import to_number
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

MAX_STEPS: Final = 16
"""Steps that are remembered: trajectories of several may end in turns."""
PER_STEP: Final = 4
"""Marks for a cut response, and for a score out of line, that a process gives in one step."""
SHOWN_PER_STEP: Final = 16
"""Marks for exemplars, of the same: one for each bucket of the histogram and a little more."""
ENOUGH: Final = 30
"""Scores of a data source before one of them can be out of line."""
FAR: Final = 3.0
"""Standard deviations from the mean that are out of line."""
clock = time.perf_counter
TRAJECTORY: Final = SPANS["trajectory"]
_TIMEOUTS: Final = ("TimeoutError", "Timeout", "DeadlineExceeded")


class _Scores:
    """Mean and spread of the scores of one data source. Source: B. P. Welford, Technometrics 4 (1962)."""

    __slots__ = ("count", "mean", "squares")

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, score: float) -> bool:
        """Take a score; return whether it is out of line with those before."""
        spread = math.sqrt(self.squares / self.count) if self.count else 0.0
        odd = self.count >= ENOUGH and spread > 0 and abs(score - self.mean) > FAR * spread
        self.count += 1
        distance = score - self.mean
        self.mean += distance / self.count
        self.squares += distance * (score - self.mean)
        return odd


class _Step:
    """What is known of the trajectories of one step."""

    __slots__ = ("given", "slowest")

    def __init__(self) -> None:
        self.slowest = 0.0
        self.given: dict[str, int] = {}


class Marks:
    """What this process has seen of trajectories, in the last few steps."""

    steps: dict[object, _Step] = {}
    ahead: dict[object, float] = {}
    """How long the slowest trajectory takes at least, of those that have ended since the last drain or are open still."""
    scores: dict[object, _Scores] = {}

    @classmethod
    def clear(cls) -> None:
        """Forget everything: a session begins."""
        cls.steps = {}
        cls.ahead = {}
        cls.scores = {}


def look_ahead(ended: list[Span], begun: list[Span]) -> None:
    """See how long the trajectories take of the steps of which some have ended: one that another one outlasts is not the slowest.

    Those of a step begin together and end in the order of their duration: without this nearly each one would be the slowest so far.

    Args:
        ended: What has ended since the last drain.
        begun: What is open, in the order in which it began; some of it may end just now.
    """
    ahead: dict[object, float] = {}
    for span in ended:
        if span.site.spec is TRAJECTORY:
            key = find_step(span)
            ahead[key] = max(ahead.get(key, 0.0), span.stop - span.start)
    waiting = set(ahead)
    now = clock()
    for span in begun:
        if not waiting:
            break
        if span.site.spec is TRAJECTORY and span.start:
            key = find_step(span)
            if key in waiting:
                waiting.discard(key)  # the one that began before all others
                ahead[key] = max(ahead[key], (span.stop or now) - span.start)
    Marks.ahead = ahead


def mark(span: Span, seconds: float) -> None:
    """Put ``verl.sampling.keep`` and its reason on a trajectory that ends, if it is one to look at.

    Args:
        span: The trajectory, with everything that is known of it.
        seconds: How long it took.
    """
    reason = find_reason(span, seconds)
    if reason is not None:
        span.set_attribute(attr.SAMPLING_KEEP, True)
        span.set_attribute(attr.SAMPLING_REASON, reason)


def show(span: Span, *, needed: bool) -> bool:
    """Return whether an exemplar may lead to a trajectory: to one that is kept, so one that is marked, or is marked now for this.

    Args:
        span: The trajectory, which has ended and was looked at by `mark`.
        needed: Whether its bucket shows nothing else, or nothing recent.
    """
    if span.attributes.get(attr.SAMPLING_KEEP):
        return True
    if not needed or not _give(_remember(find_step(span)), "exemplar", SHOWN_PER_STEP):
        return False
    span.set_attribute(attr.SAMPLING_KEEP, True)
    span.set_attribute(attr.SAMPLING_REASON, "exemplar")
    return True


def find_reason(span: Span, seconds: float) -> str | None:
    """Return why a trajectory is worth keeping: ``failure``, ``timeout``, ``slowest`` of its step so far, ``reward``, ``truncated``."""
    values = span.attributes
    key = find_step(span)
    step = _remember(key)
    slowest = seconds > step.slowest and seconds >= Marks.ahead.get(key, 0.0)
    step.slowest = max(step.slowest, seconds)
    score = to_number(values.get(attr.REWARD_SCORE))
    odd = score is not None and math.isfinite(score) and _scores_of(values.get(attr.DATA_SOURCE)).add(float(score))
    if span.error:
        return "timeout" if span.error.rpartition(".")[2].endswith(_TIMEOUTS) else "failure"
    if values.get(attr.OUTCOME) == "failure":
        return "failure"
    if slowest:
        return "slowest"
    if odd and _give(step, "reward"):
        return "reward"
    cut = "length" in (values.get(attr.GEN_AI_FINISH_REASONS) or ())  # type: ignore[operator]  # a tuple of texts
    return "truncated" if cut and _give(step, "truncated") else None


def find_step(span: Span) -> tuple[object, object]:
    """Return the step of a trajectory, and whether it validates; without the price of `Span.attributes`, for it may be open."""
    own, usual = span._attributes or {}, span.site.attributes
    return own.get(attr.STEP_NUMBER, usual.get(attr.STEP_NUMBER)), own.get(attr.VALIDATE, usual.get(attr.VALIDATE))


def _remember(key: object) -> _Step:
    found = Marks.steps.get(key)
    if found is None:
        found = Marks.steps.setdefault(key, _Step())
        for old in list(Marks.steps)[:-MAX_STEPS]:  # the copy is one operation: other threads may end trajectories, too
            Marks.steps.pop(old, None)
    return found


def _scores_of(source: object) -> _Scores:
    key = source if len(Marks.scores) < MAX_STEPS or source in Marks.scores else None
    return Marks.scores.setdefault(key, _Scores())


def _give(step: _Step, reason: str, most: int = PER_STEP) -> bool:
    """Return whether a step has a mark of this kind left, and take it."""
    given = step.given.get(reason, 0)
    step.given[reason] = given + 1
    return given < most
