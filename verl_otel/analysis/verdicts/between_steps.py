# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Verdicts on the time between two steps: which part of it took longer than after other steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from verl_otel.analysis.model import Segment, Step, Verdict
from verl_otel.analysis.traces import critical_path
from verl_otel.analysis.traces.span_names import BETWEEN, STEP, VALIDATION
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.baselines import (
    FEW_FACTOR,
    LOOK_AHEAD,
    PHASE_SECONDS,
    STEP_SHARE,
    Baselines,
)
from verl_otel.analysis.verdicts.slow_phases import PhaseTime, measure_phases
from verl_otel.model import SpanRecord
from verl_otel.semconv import attributes as attr

# -- The critical path between two steps: logging, validation, checkpoint, data loading, and the trainer's own code around them --

_SPAN_ID: Final = 1
"""Id of the span that stands for the time between two steps; those of real spans are random numbers of 64 bits."""


def make_root(step: Node, roots: Iterable[Node], begin_ns: int, end_ns: int) -> Node:
    """Return a tree of what the trainer did between two steps.

    Args:
        step: Root span of the step before.
        roots: Roots of all traces that overlap this time.
        begin_ns: End of that step.
        end_ns: Start of the next step.
    """
    span = SpanRecord(step.span.trace_id, _SPAN_ID, 0, BETWEEN, 1, begin_ns, end_ns, {}, (), (), 0, "", 1, "")
    children = sorted(_find_inside(roots, step.process, begin_ns, end_ns), key=lambda node: node.span.start_ns)
    return Node(span, step.instance, step.process, children)


def _find_inside(roots: Iterable[Node], process: int, begin_ns: int, end_ns: int) -> Iterator[Node]:
    """Yield the outermost spans of a process that lie between two times; spans around a whole training are entered.

    A validation that another process makes is one of them: the trainer of fully asynchronous training waits for that of the rollouter.
    """
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        span = node.span
        if span.name == STEP or span.end_ns <= begin_ns or span.start_ns >= end_ns:
            continue
        if node.process != process and span.name != VALIDATION:
            continue
        if begin_ns <= span.start_ns and span.end_ns <= end_ns:
            yield node
        else:
            waiting += node.children


def _find_open_step(roots: Iterable[Node], process: int, begin_ns: int, end_ns: int) -> int:
    """Return when a step of a process began between two times that has not ended; the second time if there is none."""
    steps = (root.span for root in roots if root.process == process and root.span.name == STEP)
    starts = [span.start_ns for span in steps if attr.OPEN_AGE in span.attributes]
    return min([end_ns, *(start_ns for start_ns in starts if start_ns >= begin_ns)])


# -- verdicts --

KIND: Final = "between"
"""Kind of these verdicts."""
_WARM: Final = "validation"
"""The kind of work whose first occurrence is judged, by the later ones: it consists of rollouts, which the step before has warmed up. Others, such
as a checkpoint, are slower the first time."""


class _Recent(NamedTuple):
    """The time after a recent step, to be judged again."""

    step: Step
    parts: tuple[PhaseTime, ...]


class BetweenSteps(msgspec.Struct):
    """Measures and judges the time between the steps of a run, in the order of time, in bounded memory."""

    _baselines: Baselines = msgspec.field(default_factory=Baselines)
    _recent: list[_Recent] = []
    _final: dict[int, tuple[Verdict, ...]] = {}
    _first: dict[int, int] = {}
    """The first step of each attempt, after which loggers, files and caches are used for the first time again."""

    def measure(
        self, step: Step, roots: tuple[Node, ...], next_ns: int, *, judge: bool
    ) -> tuple[tuple[Segment, ...], int]:
        """Return the critical path from a step to the next one, or to one that has not ended, and when that one began (0: there is none).

        Args:
            step: The step.
            roots: Roots of all traces that overlap its period, including its own.
            next_ns: Start of the next step, or end of the run.
            judge: False: it is the last step, which the end of the training follows.
        """
        self._first.setdefault(step.attempt, step.trace_id)
        own = next((root for root in roots if root.span.trace_id == step.trace_id and not root.span.parent_id), None)
        begin_ns = min(max(step.start_ns, step.end_ns), next_ns)
        if own is None or begin_ns >= next_ns:
            return (), 0
        until_ns = _find_open_step(roots, own.process, begin_ns, next_ns)
        root = make_root(own, roots, begin_ns, until_ns)
        path = tuple(critical_path.walk(root, begin_ns, until_ns))
        if judge and not step.failed:
            self._add(step, tuple(part._replace(phase=KIND) for part in measure_phases(path, root) if part.kind))
        return path, until_ns if until_ns < next_ns else 0

    def _add(self, step: Step, parts: tuple[PhaseTime, ...]) -> None:
        for part in _sum_by_key(parts):
            self._baselines.learn(part.key, step.trace_id, [part.seconds])
        self._recent.append(_Recent(step.slim(), tuple(_sum_by_key(parts))))
        while len(self._recent) > LOOK_AHEAD:
            recent = self._recent.pop(0)
            verdicts = tuple(self._judge(recent))
            if verdicts:
                self._final[recent.step.trace_id] = verdicts

    def settle(self) -> Mapping[int, tuple[Verdict, ...]]:
        """Return the verdicts that stand at the end of the run, by the trace id of the step before."""
        return {**self._final, **{recent.step.trace_id: tuple(self._judge(recent)) for recent in self._recent}}

    def _judge(self, recent: _Recent) -> Iterator[Verdict]:
        step, parts = recent
        floor = max(PHASE_SECONDS, STEP_SHARE * step.seconds)
        for part in parts:
            is_first = step.trace_id == self._first[step.attempt] or self._baselines.is_first(part.key, step.trace_id)
            if part.seconds < floor or (is_first and part.kind != _WARM):
                continue
            baseline = self._baselines.of_others(part.key, step.trace_id)
            if baseline is None or baseline.allows(part.seconds, floor):
                continue
            if is_first and part.seconds < FEW_FACTOR * baseline.median:
                continue
            excess = part.seconds - baseline.median
            if excess >= floor:
                yield Verdict(
                    step.number,
                    step.seconds,
                    KIND,
                    part.name or part.kind,
                    part.kind,
                    part.name or part.detail,
                    excess,
                    excess,
                    instance=part.instance,
                )


def _sum_by_key(parts: tuple[PhaseTime, ...]) -> Iterator[PhaseTime]:
    """Yield the parts with the seconds of equal keys added up: one kind of work may lie in several phases."""
    sums: dict[object, PhaseTime] = {}
    for part in parts:
        known = sums.get(part.key)
        sums[part.key] = part if known is None else known._replace(seconds=known.seconds + part.seconds)
    yield from sums.values()
