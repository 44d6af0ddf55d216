# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which traces are kept: whole trajectories of a step, a share of the others, and marks for a tail sampler that keeps marked traces whole.

A Collector that samples by traces cannot tell that a trajectory was the slowest of its step, or that its score is an outlier; in the
process it takes a comparison. Marks are limited per step: a mark on every second trajectory would keep everything.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

from verl_otel._internal import process_state
from verl_otel.model import RANDOM, SAMPLED
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.context import draw
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

MAX_STEPS: Final = 16
"""Steps that are tracked: trajectories of several steps may end alternately."""
PER_STEP: Final = 4
"""Limit of marks for truncated responses, and of marks for outlier scores, in one step of a process."""
SHOWN_PER_STEP: Final = 16
"""Limit of marks for exemplars of trajectories in one step of a process, and of those for exemplars of what lies in them: one for each bucket
of the histogram and a few more."""
MAX_DEPTH: Final = 8
"""Spans between a trajectory and one in it whose exemplar leads to the trajectory."""
ENOUGH: Final = 30
"""Scores of a data source before one of them can be an outlier."""
FAR: Final = 3.0
"""Standard deviations from the mean beyond which a score is an outlier."""
clock = time.perf_counter
TRAJECTORY: Final = SPANS["trajectory"]
_TIMEOUTS: Final = ("TimeoutError", "Timeout", "DeadlineExceeded")


class _Scores:
    """Mean and spread of the scores of one data source. Source: B. P. Welford, Technometrics 4 (1962)."""

    __slots__ = ("count", "mean", "squares")

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, score: float) -> bool:
        """Add a score; return whether it is an outlier among those before."""
        spread = math.sqrt(self.squares / self.count) if self.count else 0.0
        is_outlier = self.count >= ENOUGH and spread > 0 and abs(score - self.mean) > FAR * spread
        self.count += 1
        distance = score - self.mean
        self.mean += distance / self.count
        self.squares += distance * (score - self.mean)
        return is_outlier


class _Step:
    """The trajectories of one step."""

    __slots__ = ("slowest", "taken")

    def __init__(self) -> None:
        self.slowest = 0.0
        self.taken: dict[str, int] = {}

    def take(self, reason: str, limit: int = PER_STEP) -> bool:
        """Return whether this step has a mark of a kind left, and take it."""
        taken = self.taken.get(reason, 0)
        self.taken[reason] = taken + 1
        return taken < limit


class TrajectoryMarks:
    """What a process knows of the trajectories of the last few steps, and the marks that it gives."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Discard everything: a session begins."""
        self.steps: dict[object, _Step] = {}
        self.longest: dict[object, float] = {}
        """Seconds that the slowest trajectory of a step takes at least, of those that ended since the last drain or are open."""
        self.scores: dict[object, _Scores] = {}

    def look_ahead(self, ended: list[Span], begun: list[Span]) -> None:
        """Find how long the trajectories take at least of the steps of which some have ended.

        A trajectory that another one of its step outlasts is not the slowest. Those of a step begin together and end in the order of their
        duration: without this nearly each one would be the slowest so far.

        Args:
            ended: What the drain has taken.
            begun: What is left, in the order in which it began.
        """
        longest: dict[object, float] = {}
        for span in ended:
            if span.site.spec is TRAJECTORY:
                key = find_step(span)
                longest[key] = max(longest.get(key, 0.0), span.stop - span.start)
        waiting = set(longest)
        now = clock()
        for span in begun:
            if not waiting:
                break
            if span.site.spec is TRAJECTORY and span.start:
                key = find_step(span)
                if key in waiting:
                    waiting.discard(key)  # the one that began before all others
                    longest[key] = max(longest[key], (span.stop or now) - span.start)
        self.longest = longest

    def mark(self, span: Span, seconds: float) -> None:
        """Set ``verl.sampling.keep`` and its reason on a trajectory that ends, if it is worth keeping.

        Args:
            span: The trajectory, with all its attributes.
            seconds: Its duration.
        """
        reason = self.find_reason(span, seconds)
        if reason is not None:
            span.take_attributes({attr.SAMPLING_KEEP: True, attr.SAMPLING_REASON: reason})

    def allows_exemplar(self, span: Span, *, needed: bool) -> bool:
        """Return whether an exemplar may lead to a span: if it is in a trajectory, to one that is kept, or is marked now for this.

        Args:
            span: The span, which has ended. If it is a trajectory, it went through `mark`.
            needed: Whether its bucket has no other exemplar, or no recent one.
        """
        trajectory = find_trajectory(span)
        if trajectory is None:
            return True
        own, is_part = trajectory._attributes, trajectory is not span
        if own is not None and own.get(attr.SAMPLING_KEEP):
            return True
        if is_part and (own is None or 0 < trajectory.stop < span.stop):  # it cannot be marked, or is written already
            return False
        kind = "exemplar of a part" if is_part else "exemplar"
        if not needed or not self._step(find_step(trajectory)).take(kind, SHOWN_PER_STEP):
            return False
        if own is None:
            own = trajectory._attributes = {}
        own[attr.SAMPLING_KEEP] = True  # without `set_attribute`: the thread of an open trajectory may be in it
        own[attr.SAMPLING_REASON] = "exemplar"
        return True

    def find_reason(self, span: Span, seconds: float) -> str | None:
        """Return why a trajectory is worth keeping: ``failure``, ``timeout``, ``slowest`` of its step so far, ``reward``, ``truncated``."""
        values = span.attributes
        key = find_step(span)
        step = self._step(key)
        slowest = seconds > step.slowest and seconds >= self.longest.get(key, 0.0)
        step.slowest = max(step.slowest, seconds)
        score = to_number(values.get(attr.REWARD_SCORE))
        is_outlier = (
            score is not None and math.isfinite(score) and self._scores(values.get(attr.DATA_SOURCE)).add(float(score))
        )
        if span.error:
            return "timeout" if span.error.rpartition(".")[2].endswith(_TIMEOUTS) else "failure"
        if values.get(attr.OUTCOME) == "failure":
            return "failure"
        if slowest:
            return "slowest"
        if is_outlier and step.take("reward"):
            return "reward"
        reasons = values.get(attr.GEN_AI_FINISH_REASONS)
        is_cut = type(reasons) is tuple and "length" in reasons
        return "truncated" if is_cut and step.take("truncated") else None

    def _step(self, key: object) -> _Step:
        step = self.steps.get(key)
        if step is None:
            step = self.steps.setdefault(key, _Step())
            for old in list(self.steps)[:-MAX_STEPS]:  # the copy is atomic: other threads may end trajectories, too
                self.steps.pop(old, None)
        return step

    def _scores(self, source: object) -> _Scores:
        key = source if len(self.scores) < MAX_STEPS or source in self.scores else None
        return self.scores.setdefault(key, _Scores())


def find_trajectory(span: Span) -> Span | None:
    """Return the trajectory of this process in which a span lies: itself, or one above it that was not written before."""
    current: Any = span
    for _ in range(MAX_DEPTH):
        if current is None or current.site.spec is TRAJECTORY:
            return current  # type: ignore[no-any-return]  # a span, as `local_span` says
        current = current._parent()
    return None


def find_step(span: Span) -> tuple[object, object]:
    """Return step and validation flag of a trajectory, which may be open. Reads them without merging all its attributes.

    The step is its number or, in an own loop, whose trajectories have none, the trace of the span that submitted it.
    """
    own, defaults = span._attributes or {}, span.site.attributes
    step: object = own.get(attr.STEP_NUMBER, defaults.get(attr.STEP_NUMBER))
    if step is None and span._detail is not None and span._detail.links:
        step = span._detail.links[0].trace_id
    return step, own.get(attr.VALIDATE, defaults.get(attr.VALIDATE))


# -- Which traces are kept: decided when a trace begins --

_RANDOM_BITS: Final = (1 << 64) - 1


class SamplingPolicy:
    """The settings of the sampler and its counts in the last few steps."""

    def __init__(self) -> None:
        self.ratio = 1.0
        """Share of trajectories that ``OTEL_TRACES_SAMPLER`` keeps."""
        self.whole_per_step = 0
        """Trajectories of a step, in this process, that are kept whole in any case; 0: no limit."""
        self.share_above = 0.05
        """Share that is kept whole beyond that number."""
        self.exemplars = True
        """Whether histograms have exemplars (``OTEL_METRICS_EXEMPLAR_FILTER``)."""
        self._counts: dict[object, int] = {}
        """Trajectories by step, of the last few steps: trajectories of several steps may alternate, and a validation counts by itself."""
        self.clear()

    def clear(self) -> None:
        """Discard the counts: a session begins, whose steps are not those of the one before."""
        self._counts.clear()

    def decide(self, span: Span, trace_id: int) -> int:
        """Return the trace flags of a new root span, whose trace id is random."""
        return RANDOM | SAMPLED if self._samples(span, trace_id) else RANDOM

    def _samples(self, span: Span, trace_id: int) -> bool:
        if span.site.spec.verb != "trajectory":
            return True
        if (trace_id & _RANDOM_BITS) >= round(self.ratio * (_RANDOM_BITS + 1)):
            return False
        if not self.whole_per_step:
            return True
        step = find_step(span)
        count = self._counts[step] = self._counts.get(step, 0) + 1
        for old in list(self._counts)[:-MAX_STEPS]:  # the copy is atomic: other threads count, too
            self._counts.pop(old, None)
        return count <= self.whole_per_step or draw() < self.share_above


MARKS: Final = TrajectoryMarks()
POLICY: Final = SamplingPolicy()
process_state.register(clear=MARKS.clear, after_fork=MARKS.clear)
process_state.register(clear=POLICY.clear, after_fork=POLICY.clear)
