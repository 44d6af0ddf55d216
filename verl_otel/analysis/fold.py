# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that is known of a run, taken in slice by slice in the order of time; what has been explained is let go."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from verl_otel.analysis import cost, tail, timeline
from verl_otel.analysis.devices import find as find_devices
from verl_otel.analysis.digest import Context, Digest, ahead_of, name_instance, trajectories_of
from verl_otel.analysis.facts import Counts, DeviceTime, Step, Trajectory
from verl_otel.analysis.gaps import Tally
from verl_otel.analysis.kept import SLOWEST_OF_STEP, Slowest, Steps
from verl_otel.analysis.ledger import Ledger
from verl_otel.analysis.packing import Packed, unpack
from verl_otel.analysis.reader import Open, Writers
from verl_otel.analysis.scalars import Columns
from verl_otel.analysis.shortcut import Shortcut
from verl_otel.analysis.sketches import Sketch, sketch
from verl_otel.analysis.slices import END
from verl_otel.analysis.traces import LATE_NS, Node, Trace, Unfinished, Written, assemble
from verl_otel.analysis.windows import Draft, Window, Windows
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import TRACESTATE_TRAJECTORY

MAX_WAITING: Final = 20_000
"""Trajectories that no step has trained on yet, 5 kB each. Beyond that the oldest will not be found by its step."""
MAX_SPENT: Final = 2_000
"""Trajectories that some step trained on and another one may, too."""


class Fold:
    """Takes in what was read and becomes the parts of an `Explanation`.

    Args:
        writers: The processes that are known so far.
        manifest: What the run says of itself.
        context: What was known before anything was read.
        opened: Spans that had not ended when they were written last.
        asked: Steps of which all detail is kept.
    """

    def __init__(
        self,
        writers: Writers,
        manifest: Mapping[str, Any],
        context: Context,
        opened: Iterable[Open] = (),
        asked: frozenset[int] | None = None,
    ) -> None:
        self.writers = writers
        self._manifest = manifest
        self._context = context
        self._algorithm = str(manifest.get(attr.ALGORITHM, ""))
        self._open_spans: dict[int, list[Open]] = {}
        for each in opened:
            self._open_spans.setdefault(each.span.trace_id, []).append(each)
        self.opened: list[Open] = []
        """What really had not ended."""
        self.tally = Tally(context.engine)
        self.columns = Columns()
        self.problems: list[str] = []
        self.validations: list[tuple[int | None, int, int]] = []
        self.slowest = Slowest()
        self.steps = Steps(asked)
        self.end_ns = 0
        self.start_ns = 0
        self._unfinished = Unfinished()
        self._windows = Windows()
        self._waiting: OrderedDict[int, Packed] = OrderedDict()
        self._spent: OrderedDict[int, Packed] = OrderedDict()
        self._unused: dict[int | None, dict[str, int]] = {}
        """Response tokens that no step trained on, by the step for which they were generated (None: not known), and by reason."""
        self._sketches: dict[int, Sketch] = {}
        self._judge = tail.Judge()
        self._ledger: Ledger | None = None
        self._counts = dict.fromkeys(Counts._fields, 0)

    def add(self, digest: Digest, watermark_ns: int) -> None:
        """Take in a slice.

        Args:
            digest: What it says.
            watermark_ns: Everything that was written before has been taken in with it.
        """
        numbers = [self.writers.add(*process) for process in digest.processes]
        self.tally.merge(digest.tally)
        self.columns.merge(digest.columns)
        self.problems += digest.problems
        if digest.last_ns:
            self._saw(digest.first_ns, digest.last_ns)
        self._counts["spans"] += digest.read
        self._sketches.update((each.step.trace_id, each) for each in digest.sketches)
        for trajectory in digest.trajectories:
            self._add_trajectory(trajectory)
        for span, process in digest.spans:
            self._unfinished.add(span, numbers[process])
        if watermark_ns < END:
            known_ns = watermark_ns - self._context.slack_ns
            self._add_traces(self._unfinished.take_whole(known_ns + LATE_NS))
            self._close(self._windows.close(known_ns))

    def finish(self) -> None:
        """Nothing more comes."""
        self.end_ns = max([self.end_ns, *(self.set_clock(each.process, each.written_ns) for each in self._all_open())])
        if self._windows.begin_ns is None:  # nothing has ended yet: the run begins with what is open
            for each in self._all_open():
                self._windows.saw(self.set_clock(each.process, each.span.start_ns))
        self._add_traces(self._unfinished.take_rest())
        for trace_id in list(self._open_spans):
            self._add_traces([(trace_id, [])])
        if self._unfinished.given_up:
            self.problems.append(
                f"{self._unfinished.given_up} traces without an end were given up: too many are open at once"
            )
        for trajectory in self._waiting.values():
            self._give_up(trajectory)
        self._close(self._windows.close_all(self.end_ns))

    def _saw(self, first_ns: int, last_ns: int) -> None:
        self._windows.saw(first_ns)
        self.end_ns = max(self.end_ns, last_ns)

    def set_clock(self, process: int, time_ns: int) -> int:
        """Return a time that a process wrote on the trainer's clock."""
        ahead = ahead_of(self.writers.resources, self._context.clocks)
        return time_ns if ahead is None else time_ns - ahead(process, time_ns)

    def _all_open(self) -> Iterable[Open]:
        return (each for group in self._open_spans.values() for each in group)

    # -- traces --

    def _add_traces(self, found: Iterable[tuple[int, list[Written]]]) -> None:
        instances = [name_instance(values) for values in self.writers.resources]
        ahead = ahead_of(self.writers.resources, self._context.clocks)
        shortcut = Shortcut(instances, ahead, self.tally)
        for trace_id, written in found:
            self._counts["spans"] += len({span.span_id for span, _ in written})
            known = self._with_open(trace_id, written)
            usual = shortcut.take(known) if known is written else None
            if usual is not None:
                self._add_trajectory(usual)
            else:
                self._add_trace(assemble(trace_id, known, instances, ahead))

    def _with_open(self, trace_id: int, written: list[Written]) -> list[Written]:
        """Return the spans of a trace with those that had not ended, as if they ended now."""
        opened = self._open_spans.pop(trace_id, ())
        if not opened:
            return written
        ended = {span.span_id for span, _ in written}
        left = [each for each in opened if each.span.span_id not in ended]
        self.opened += left
        return [*written, *((each.span._replace(end_ns=self.end_ns), each.process) for each in left)]

    def _add_trace(self, trace: Trace) -> None:
        self.tally.add(trace)
        is_open = any(attr.OPEN_AGE in root.span.attributes for root in trace.roots)
        for trajectory in trajectories_of(trace):
            (self._windows.add_trajectory if is_open else self._add_trajectory)(trajectory)
        for root in trace.roots:
            if root.span.name != timeline.TRAJECTORY and TRACESTATE_TRAJECTORY not in root.span.trace_state:
                self._windows.add_root(root)
            if root.span.parent_id or attr.OPEN_AGE in root.span.attributes:
                continue
            if root.span.name == timeline.STEP:
                self._add_step(root, trace.spans)
            elif root.span.name == timeline.VALIDATION:
                number = root.span.attributes.get(attr.STEP_NUMBER)
                known = number if isinstance(number, int) else None
                self.validations.append((known, root.span.start_ns, root.span.end_ns))

    def _add_trajectory(self, trajectory: Packed) -> None:
        self._windows.add_trajectory(trajectory)
        counts = self._counts
        counts["trajectories"] += 1
        for kind, calls in trajectory.calls.items():
            if kind in _COUNTED:
                counts[_COUNTED[kind]] += calls
        self.slowest.add(trajectory)
        if trajectory.validate:
            return
        self._waiting[trajectory.trace_id] = trajectory
        if len(self._waiting) > MAX_WAITING:
            self._give_up(self._waiting.popitem(last=False)[1])

    def _give_up(self, trajectory: Trajectory) -> None:
        """Remember what a trajectory cost that no step trained on."""
        if trajectory.response_tokens:
            wasted = self._unused.setdefault(trajectory.step, {})
            reason = cost.judge_unused(trajectory)
            wasted[reason] = wasted.get(reason, 0) + trajectory.response_tokens

    # -- steps --

    def _add_step(self, root: Node, spans: int) -> None:
        drawn = self._sketches.pop(root.span.trace_id, None)
        consumed = timeline.find_consumed(root) if drawn is None else drawn.step.trajectories
        known = {trace_id: each for trace_id in consumed if (each := self._consume(trace_id)) is not None}
        if drawn is None or drawn.spans != spans or len(known) < len(consumed):
            drawn = sketch(root, known, self._context.doubt)
        members = tuple(known.values())
        step = drawn.step._replace(slowest=_slowest(members))
        step = step._replace(verdicts=self._judge.judge(step, drawn.findings))
        self._windows.add_step(Draft(step, members))

    def _consume(self, trace_id: int) -> Packed | None:
        found = self._waiting.pop(trace_id, None)
        if found is None:
            self._counts["trained"] += trace_id not in self._spent
            return self._spent.get(trace_id)
        self._counts["trained"] += 1
        self._spent[trace_id] = found
        if len(self._spent) > MAX_SPENT:
            self._spent.popitem(last=False)
        return found

    # -- windows --

    def _close(self, windows: Iterable[Window]) -> None:
        for window in windows:
            if self._ledger is None:
                self.start_ns = window.begin_ns
                found = find_devices(map(Resource, self.writers.resources), self._manifest)
                self.problems += found.problems
                self._ledger = Ledger(found)
            devices = self._ledger.add_window(window.begin_ns, window.end_ns, window.roots, window.trajectories)
            self.end_ns = max(self.end_ns, window.end_ns)
            if window.draft is not None:
                step, members = window.draft
                step = step._replace(devices=devices)
                self.steps.add(step._replace(cost=cost.of_step(step, members, devices, algorithm=self._algorithm)))

    def settled_steps(self) -> tuple[tuple[Step, ...], dict[str, int]]:
        """Return the steps with their final verdicts, in the order of time, and the unused tokens that belong to none of them.

        What was generated for a number goes to the last step of that number: an earlier one was done again by a resumed run.
        """
        steps = list(self._judge.settle(self.steps.all()))
        places: dict[int | None, int] = {
            step.number: index for index, step in enumerate(steps) if step.number is not None and step.cost
        }
        rest: dict[str, int] = {}
        for number, wasted in self._unused.items():
            index = places.get(number)
            before = steps[index].cost if index is not None else None
            if index is None or before is None:
                rest = _add_up(rest, wasted)
            else:
                both = before._replace(wasted_tokens=_add_up(before.wasted_tokens, wasted))
                steps[index] = steps[index]._replace(cost=both)
        return tuple(steps), rest

    def counts(self) -> Counts:
        """Return how much there was."""
        return Counts(**{**self._counts, "processes": len(self.writers.resources)})

    def devices(self) -> tuple[DeviceTime, ...]:
        """Return the time of the GPUs over the whole run."""
        return self._ledger.total() if self._ledger is not None else ()


def _add_up(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {reason: first.get(reason, 0) + second.get(reason, 0) for reason in (*first, *second)}


def _slowest(members: Iterable[Packed]) -> tuple[Trajectory, ...]:
    """Return the slowest trajectories of a step, the one that ended last among them."""
    ordered = sorted(members, key=lambda each: each.start_ns - each.end_ns)
    chosen = ordered[:SLOWEST_OF_STEP]
    if ordered and (last := max(ordered, key=lambda each: each.end_ns)) not in chosen:
        chosen[-1] = last
    return tuple(map(unpack, chosen))


_COUNTED: Final = {"llm": "llm_calls", "tool": "tool_calls", "reward": "rewards"}
