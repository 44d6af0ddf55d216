# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run whose steps are recorded by `verl_otel.step`: its identity, state and progress, and what is known of its trajectories.

verl's trainers report theirs by ``Tracking`` and `verl_otel.integrations`. All of it happens in the drain, with ended spans.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from verl_otel._internal import error_boundary, process_state
from verl_otel._internal.own_code import find_first
from verl_otel._internal.ranks import find_rank
from verl_otel.model import REMOTE, AttributeValue, Labels, LinkRecord, Point
from verl_otel.recording import series
from verl_otel.recording.attribute_values import to_name, to_number
from verl_otel.recording.context import SpanIds
from verl_otel.recording.state import RECORDER
from verl_otel.recording.step_statistics import (
    count_groups,
    describe_tail,
    make_component_fields,
    make_component_points,
    measure_components,
    measure_waits,
    parse_components,
    record_groups,
    sum_scores,
)
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs, metric_names
from verl_otel.semconv.run_state import RunState

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

# -- Trajectories: what the spans inside of them say about them, and the scores and durations of those of each step.
#
# A step has the trajectories that it consumed, or else those that began inside of it. Those of other processes, such as Ray's actors, arrive
# after its end (`session.shared_trajectories`): only the process of the step has all of them, and only there a statistic is one of the step --

MAX_PENDING: Final = 10_000
"""Trajectories that may wait for the end of their step, and traces whose trajectory has not ended. More replace the oldest."""
MAX_STEPS: Final = 4
"""Steps that have consumed trajectories and have not ended: those of an asynchronous loop overlap. A `verl_otel.consume` outside of a step has no end:
the next ones replace it."""
MAX_INCOMPLETE: Final = 64
"""Ended steps that wait for trajectories of other processes. The oldest is dropped without statistics."""
QUIET_LOOKS: Final = 4
"""Looks in succession that find no trajectory of an ended step: then no more are expected. Looks are one drain interval apart, in which each process
sends what it has; the first one may be older than the end of the step."""
MAX_PARENTS: Final = 64
"""Enclosing spans that are searched for a step."""
TESTING: Final = "testing"
"""Key of the phase in which a loop validates, verl's name for it: rewards of it are not those that the step trains on."""


class EndedTrajectory(NamedTuple):
    """A trajectory that has ended, as `step_statistics.Sample`."""

    seconds: float
    score: float | None
    source: str
    facts: dict[str, float]
    stop: float
    uid: str
    whole: bool = True
    """False: it failed or was cancelled. A step trains on it only if it says so by `verl_otel.consume`."""
    shared: bool = False
    """Whether another process has run it."""


class Shared(NamedTuple):
    """A trajectory for a step of another process."""

    step: int
    """Trace id of what submitted it."""
    trace_id: int
    trajectory: EndedTrajectory


class _Incomplete:
    """A step that has ended and may have trajectories in other processes."""

    def __init__(
        self, number: float | None, end_ns: int, consumed: Sequence[int] | None, samples: list[EndedTrajectory]
    ) -> None:
        self.number = number
        self.end_ns = end_ns
        self.consumed = None if consumed is None else frozenset(consumed)
        """Trace ids of the trajectories that it consumed; None: it has those that were submitted by it."""
        self.samples = samples
        self.quiet = 0
        """The last looks that found nothing for it."""


class StepSummary(NamedTuple):
    """The trajectories of a step that ran in this process."""

    reward: float | None
    """Mean of their scores."""
    stops: tuple[float, ...] = ()
    """Their ends on the clock of spans, in seconds."""
    waits: Mapping[str, float] = {}
    """See `step_statistics.measure_waits`."""


class Inside:
    """What the ended spans inside of one trajectory say about it."""

    __slots__ = (
        "calls", "components", "failed_tool", "generated", "llm", "preemptions", "prompt", "reasons", "reward", "score", "source", "tool",
        "turns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.llm = self.tool = self.reward = 0.0
        """Seconds in LLM calls, tools and rewards."""
        self.calls = 0
        """LLM calls."""
        self.turns = 0
        """Turns that the loop marked."""
        self.prompt: float | None = None
        """Tokens of the first prompt."""
        self.generated: float | None = None
        """Tokens that the model wrote in all its calls."""
        self.preemptions: float | None = None
        self.score: float | None = None
        self.source = ""
        self.components: dict[str, float] = {}
        """Of its rewards; see `step_statistics.parse_components`."""
        self.failed_tool = ""
        """Exception of the last tool that failed."""
        self.reasons: AttributeValue | None = None
        """Finish reasons of the last LLM call."""

    def facts(self) -> dict[str, float]:
        """Return what is known, by the names of `step_statistics.Sample`."""
        facts: dict[str, float] = {}
        if self.llm:
            facts["llm"] = self.llm
        if self.tool:
            facts["tool"] = self.tool
        if self.reward:
            facts["reward"] = self.reward
        if self.preemptions is not None:
            facts["preemptions"] = self.preemptions
        return facts | self.components


class _Trajectories:
    """The trajectories of the own loop of this process."""

    inside: dict[int, Inside] = {}
    """By trace id, until the trajectory ends."""
    ended: dict[int, tuple[object, EndedTrajectory]] = {}
    """Trajectories that wait for the end of a step of this process, by trace id: facts, and the trace id of what submitted them, or the number of
    the step that they name."""
    consumed: dict[int, list[int]] = {}
    """Trace ids of the trajectories that a step consumed, by the trace id of the step."""
    batches: dict[int, list[EndedTrajectory]] = {}
    """Scores that a step of this process computed outside of trajectories, by its trace id: those of a reward model on a batch."""
    outgoing: deque[Shared] = deque(maxlen=MAX_PENDING)
    """Trajectories for steps of other processes."""
    looks: deque[list[Shared]] = deque()
    """What looks for trajectories of other processes have found since the last drain."""
    incomplete: dict[int, _Incomplete] = {}
    """By the trace id of the step, in the order in which the steps ended."""
    may_share = False
    """Whether this process can get trajectories of others."""


def find_inside(span: Span) -> Inside | None:
    """Return what is known of the trajectory around an ended span; None if the span has no parent in this process, or is one of a hook."""
    ids: Any = span.ids
    if not ids or span.site.hook:
        return None
    if type(ids) is not SpanIds:  # those of its parent
        trace_id = ids[0].trace_id
    elif not ids.parent_id or ids.flags & REMOTE:
        return None
    else:
        trace_id = ids.trace_id
    return _Trajectories.inside.get(trace_id) or _begin(trace_id)


def _begin(trace_id: int) -> Inside:
    inside = _Trajectories.inside[trace_id] = Inside()
    _bound(_Trajectories.inside, MAX_PENDING)
    return inside


def note_turn(span: Span) -> None:
    """Count an ended turn that the loop marked."""
    inside = find_inside(span)
    if inside is not None:
        inside.turns += 1


def note_tool(span: Span, seconds: float) -> None:
    """Add the time of an ended tool."""
    inside = find_inside(span)
    if inside is not None:
        inside.tool += seconds
        inside.failed_tool = span.error or inside.failed_tool


def note_llm(
    span: Span,
    seconds: float,
    prompt: float | None,
    generated: float | None,
    preemptions: float | None,
    reasons: AttributeValue | None,
) -> None:
    """Add time, tokens, preemptions and finish reasons of an ended LLM call."""
    inside = find_inside(span)
    if inside is None:
        return
    inside.calls += 1
    inside.llm += seconds
    if inside.prompt is None:
        inside.prompt = prompt
    if generated is not None:
        inside.generated = (inside.generated or 0) + generated
    if preemptions is not None:
        inside.preemptions = (inside.preemptions or 0) + preemptions
    inside.reasons = reasons


def note_reward(span: Span, seconds: float, values: Mapping[str, AttributeValue], scores: Sequence[float]) -> None:
    """Add an ended reward to its trajectory, where the last score and the last value of each component count, or to its step if it is in none.

    Args:
        span: The reward.
        seconds: Its duration.
        values: All its attributes.
        scores: All its scores, without NaN.
    """
    inside = find_inside(span)
    if inside is None:
        return
    inside.reward += seconds
    score, source = to_number(values.get(attr.REWARD_SCORE)), to_name(values.get(attr.DATA_SOURCE, ""))
    if score is not None:
        inside.score, inside.source = float(score), source
    inside.components |= parse_components(values.get(attr.REWARD_FIELDS))
    if scores and _is_of_step(span):
        batch = _Trajectories.batches.setdefault(span.resolve().trace_id, [])
        batch.extend(
            EndedTrajectory(0.0, each, source, {}, 0.0, "") for each in scores[: max(0, MAX_PENDING - len(batch))]
        )
        _bound(_Trajectories.batches, MAX_STEPS)


def _is_of_step(span: Span) -> bool:
    """Return whether a span is in a step of an own loop, and in no trajectory and no validation of it."""
    for _ in range(MAX_PARENTS):
        parent = span._parent()
        if parent is None:
            return span.site.spec.verb == "step" and not span.site.hook
        if parent.attributes.get(attr.PHASE) == TESTING:
            return False
        span = parent
    return False


def find_failed_tool(trajectory: Span) -> str:
    """Return the exception of the last tool that failed in a trajectory; empty without one."""
    inside = _Trajectories.inside.get(trajectory.resolve().trace_id)
    return inside.failed_tool if inside is not None else ""


def find_reasons(trajectory: Span) -> AttributeValue | None:
    """Return the finish reasons of the last LLM call of a trajectory, as far as they are known."""
    inside = _Trajectories.inside.get(trajectory.resolve().trace_id)
    return inside.reasons if inside is not None else None


def describe(span: Span) -> None:
    """Set the score, the turns and the tokens of an ended trajectory of an own loop, unless they are set.

    A turn is a call of the model; where none was recorded, what the loop marked as a turn. A response of which only the calls are known is what
    the model wrote: what tools answered is not known then.
    """
    inside = _Trajectories.inside.get(span.resolve().trace_id)
    if inside is None:
        return
    own, fixed = span._attributes, span.site.attributes
    if own is None:
        own = span._attributes = {}
    for key, value in (
        (attr.REWARD_SCORE, inside.score),
        (attr.TURNS, inside.calls or inside.turns or None),
        (attr.PROMPT_TOKENS, inside.prompt),
        (attr.RESPONSE_TOKENS, inside.generated),
        (attr.GENERATED_TOKENS, inside.generated),
    ):
        if value is not None and key not in own and key not in fixed:
            own[key] = value  # it has ended: nothing else writes to it, and numbers need no check


def end_trajectory(span: Span, seconds: float, values: Mapping[str, AttributeValue], tokens: dict[str, float]) -> None:
    """Keep an ended trajectory for the statistics of its step.

    Args:
        span: The trajectory.
        seconds: Its duration.
        values: All its attributes.
        tokens: Its tokens that are known, by ``prompt``, ``response`` and ``generated``.
    """
    trace_id, detail = span.resolve().trace_id, span._detail
    inside = _Trajectories.inside.pop(trace_id, None)
    is_dropped = detail is not None and detail.unrecorded
    if span.site.hook or is_dropped or values.get(attr.VALIDATE):
        return
    facts = {**tokens, **inside.facts()} if inside is not None else tokens
    score = to_number(values.get(attr.REWARD_SCORE))
    source = to_name(values.get(attr.DATA_SOURCE, "")) or (inside.source if inside is not None else "")
    uid = to_name(values.get(attr.SAMPLE_UID, ""))
    whole = not span.error and values.get(attr.OUTCOME) != "cancelled"
    sample = EndedTrajectory(seconds, None if score is None else float(score), source, facts, span.stop, uid, whole)
    link = _find_link(span)
    if link is not None and link.flags & REMOTE:
        _Trajectories.outgoing.append(Shared(link.trace_id, trace_id, sample))
    else:
        step = link.trace_id if link is not None else values.get(attr.STEP_NUMBER)
        _Trajectories.ended[trace_id] = step, sample
        _bound(_Trajectories.ended, MAX_PENDING)


def note_consumed(span: Span) -> None:
    """Keep the links of an ended `verl_otel.consume` until its step ends."""
    links = (span._detail.links if span._detail is not None else None) or ()
    consumed = _Trajectories.consumed.setdefault(span.resolve().trace_id, [])
    consumed.extend(link.trace_id for link in links[: max(0, MAX_PENDING - len(consumed))])
    _bound(_Trajectories.consumed, MAX_STEPS)


def end_step(span: Span, phases: Iterable[tuple[str, float, float]]) -> StepSummary:
    """Record the scores and durations of the trajectories of a step of this process that has ended.

    If none of them has a score, those count that the step computed outside of trajectories.

    Args:
        span: The step.
        phases: Its phases.
    """
    step, number = span.resolve().trace_id, span.attributes.get(attr.STEP_NUMBER)
    names = {step} if number is None else {step, number}
    consumed = _Trajectories.consumed.pop(step, None)
    named = consumed
    if named is None:
        named = [trace_id for trace_id, (submitter, _) in list(_Trajectories.ended.items()) if submitter in names]
    popped = [_Trajectories.ended.pop(trace_id, None) for trace_id in named]
    samples = [entry[1] for entry in popped if entry is not None]
    if consumed is None:
        samples = _score_whole(samples)
    batch = _Trajectories.batches.pop(step, [])
    _Trajectories.inside.pop(step, None)
    if _Trajectories.may_share:
        _Trajectories.incomplete[step] = _Incomplete(to_number(number), span.end_ns, consumed, samples)
        _bound(_Trajectories.incomplete, MAX_INCOMPLETE)
    if any(sample.shared for sample in samples):
        samples = []  # not all have arrived
    seconds = _find_generation(samples, phases)
    if seconds:
        series.histogram(metric_names.SAMPLE_GENERATION).record(seconds)
    reward = _summarise(samples, to_number(number), span.end_ns)
    if reward is None:
        reward = _sum_scores(batch)
    return StepSummary(reward, tuple(sample.stop for sample in samples), measure_waits(samples))


def _score_whole(samples: list[EndedTrajectory]) -> list[EndedTrajectory]:
    """Return the samples without the scores of those that failed or were cancelled: the step waited for them, and trains on the others."""
    return [sample if sample.whole else sample._replace(score=None) for sample in samples]


def _find_generation(samples: list[EndedTrajectory], phases: Iterable[tuple[str, float, float]]) -> float:
    """Return the seconds from the first start to the last token of trajectories, or else those of the phases ``gen``; 0: nothing is known.

    A trajectory ends with its reward, which is no part of the generation.
    """
    if samples:
        ends = [sample.stop - sample.facts.get("reward", 0.0) for sample in samples]
        return max(ends) - min(sample.stop - sample.seconds for sample in samples)
    return sum(stop - start for key, start, stop in phases if key == GEN)


def take_outgoing() -> list[Shared]:
    """Remove and return the trajectories that ended in this process, for steps of other processes."""
    return [_Trajectories.outgoing.popleft() for _ in range(len(_Trajectories.outgoing))]


def has_outgoing() -> bool:
    """Return whether trajectories ended in this process for steps of other processes."""
    return bool(_Trajectories.outgoing)


def share(*, can: bool) -> None:
    """Set whether this process can get trajectories of others: ended steps wait for these."""
    _Trajectories.may_share = can


def receive(found: list[Shared]) -> None:
    """Keep what one look for trajectories of other processes has found, which may be nothing, until the next drain."""
    if found or _Trajectories.incomplete:
        _Trajectories.looks.append(found)


def has_received() -> bool:
    """Return whether there is something for a drain in what was received."""
    return bool(_Trajectories.looks)


def report() -> None:
    """Record what is not recorded with a span that ends. Called at the end of each drain.

    These are steps whose trajectories have arrived from other processes, and the phases ``gen`` of a process that has no step. Where the run ends
    before all have arrived, the step has no statistics.
    """
    if _Loop.phases and not has_step():
        for key, start, stop in _Loop.take_phases():
            if key == GEN:
                series.histogram(metric_names.SAMPLE_GENERATION).record(stop - start)
    for _ in range(len(_Trajectories.looks)):
        _take_look(_Trajectories.looks.popleft())
    for step, ended in list(_Trajectories.incomplete.items()):
        if ended.quiet < QUIET_LOOKS:
            break  # never back to a step before
        del _Trajectories.incomplete[step]
        if any(sample.shared for sample in ended.samples):
            samples = ended.samples if ended.consumed is not None else _score_whole(ended.samples)
            _add_points(ended.end_ns, {metric_names.AVERAGE_REWARD: _summarise(samples, ended.number, ended.end_ns)})


def _take_look(found: list[Shared]) -> None:
    """Pass the trajectories of one look to their steps, or keep them until these end."""
    for each in _Trajectories.incomplete.values():
        each.quiet += 1
    for shared in found:
        trajectory = shared.trajectory._replace(shared=True)
        ended = _find_step(shared)
        if ended is not None:
            ended.quiet = 0
            if len(ended.samples) < MAX_PENDING:
                ended.samples.append(trajectory)
        else:
            _Trajectories.ended[shared.trace_id] = shared.step, trajectory
            _bound(_Trajectories.ended, MAX_PENDING)


def _find_step(shared: Shared) -> _Incomplete | None:
    """Return the ended step that consumed a trajectory, or else submitted it and consumed none."""
    for each in _Trajectories.incomplete.values():
        if each.consumed is not None and shared.trace_id in each.consumed:
            return each
    submitter = _Trajectories.incomplete.get(shared.step)
    return submitter if submitter is not None and submitter.consumed is None else None


def _summarise(samples: list[EndedTrajectory], number: float | None, time_ns: int) -> float | None:
    """Record the statistics of all trajectories of a step, which ended at a time, and return the mean of their scores."""
    if not samples:
        return None
    components = measure_components([sample for sample in samples if sample.score is not None])
    RECORDER.pending_points.extend(make_component_points(components, time_ns))
    _log_components(number, components)
    record_groups(count_groups(samples))
    describe_tail(samples)
    return _sum_scores(samples)


def _log_components(number: float | None, components: Mapping[str, Mapping[str, float]]) -> None:
    from verl_otel.recording import run_log  # it imports spans, which import this module

    step = int(number) if number is not None and math.isfinite(number) else None
    run_log.add_step(logs.REWARD, step, make_component_fields(components))


def _sum_scores(samples: list[EndedTrajectory]) -> float | None:
    """Record the scores of a step; return their mean, None without a score. It is NaN if one is, as the update has it."""
    sum_scores(samples)
    scores = [sample.score for sample in samples if sample.score is not None]
    return sum(scores) / len(scores) if scores else None


def _find_link(span: Span) -> LinkRecord | None:
    """Return the link of a trajectory to what submitted it."""
    detail = span._detail
    if detail is not None and detail.links:
        for link in detail.links:
            if link.attributes.get(attr.LINK_TYPE) == "submitted_by":
                return link
    return None


def _bound(entries: dict[int, Any], limit: int) -> None:
    if len(entries) > limit:
        entries.pop(next(iter(entries)), None)


def _clear_trajectories() -> None:
    _Trajectories.inside, _Trajectories.ended, _Trajectories.consumed = {}, {}, {}
    _Trajectories.batches, _Trajectories.incomplete, _Trajectories.may_share = {}, {}, False
    _Trajectories.outgoing.clear()
    _Trajectories.looks.clear()


# -- The loop --

GEN: Final = "gen"
"""Phase in which a loop generates, or waits for what is generated ahead."""
MAX_PHASES: Final = 1000
"""Phases that are kept until their step ends."""
MAX_ENDED: Final = 1000
"""Steps that are kept until a session takes them."""
MAX_DATED: Final = 1000
"""Points that wait for a drain, from which on gauges have their value at the drain only: an empty loop makes a million steps a second."""


class EndedStep(NamedTuple):
    """A step that has ended. Times are those of the clock of spans, in seconds."""

    number: int | None
    before: float
    """End of the step before; 0: it is the first one."""
    start: float
    stop: float
    phases: tuple[tuple[str, float, float], ...]
    """Key, start and end of each phase since the end of the step before."""
    trajectories: StepSummary
    whole: bool = True
    """False: it failed or was interrupted, so that its length is not comparable."""


class _Loop:
    """The own loop of this process."""

    labels: Labels = ()
    began = False
    last_state = RunState.FINISHED
    """How the last step ended."""
    last_stop = 0.0
    last_number: int | None = None
    """Of the step that began last; None before the first one."""
    last_step: Span | None = None
    """The step that began last."""
    dated_ns = 0
    """When gauges were given to a step last, or when that step began: what was set since belongs to it."""
    phases: deque[tuple[str, float, float]] = deque(maxlen=MAX_PHASES)
    ended: deque[EndedStep] = deque(maxlen=MAX_ENDED)

    @classmethod
    def take_phases(cls) -> tuple[tuple[str, float, float], ...]:
        """Remove and return the phases. Another thread may discard them meanwhile, as one that begins a session."""
        phases, cls.phases = cls.phases, deque(maxlen=MAX_PHASES)
        return tuple(phases)


def configure(project: str, experiment: str) -> None:
    """Set the labels of ``verl.run.info``."""
    names = ((attr.PROJECT, project), (attr.EXPERIMENT, experiment))
    _Loop.labels = tuple((name, value) for name, value in names if value)


def note_phase(span: Span) -> None:
    """Record that a phase has ended. Called by the drain."""
    if not span.site.hook:
        _Loop.phases.append((to_name(span.attributes.get(attr.PHASE, "")), span.start, span.stop))


def number_step(span: Span) -> None:
    """Give a step that begins without a number the one after the step that began before, as ``@verl_otel.step`` cannot have one; and its rank."""
    number = span.attributes.get(attr.STEP_NUMBER)
    if number is None:
        number = (_Loop.last_number or 0) + 1
        span.set_attribute(attr.STEP_NUMBER, number)
    _Loop.last_number = number if type(number) is int else _Loop.last_number or 0
    _date_gauges()
    _Loop.last_step = span
    rank = find_rank(os.environ)  # a library may set it after telemetry has begun
    if rank is not None:
        span.set_attribute(attr.RANK, rank)


def is_repeated(step: Span) -> bool:
    """Return whether the first rank of a distributed loop records the same step: it is counted and judged there."""
    return bool(step.attributes.get(attr.RANK)) and not step.site.hook


def begin() -> None:
    """Record that the run has begun: a step has ended, or the program ends before its first one."""
    _Loop.began = True
    series.gauge(metric_names.RUN_INFO, _Loop.labels).set(1)
    series.gauge(metric_names.RUN_STATE).set(RunState.RUNNING.value)


def note_step(span: Span) -> None:
    """Record that a step of an own loop has ended. Called by the drain."""
    if not _Loop.began:
        begin()
    _Loop.last_state = _find_end_of(span)
    number = to_number(span.attributes.get(attr.STEP_NUMBER))
    phases = _Loop.take_phases()
    trajectories, whole = end_step(span, phases), _Loop.last_state == RunState.FINISHED
    before = _Loop.last_stop
    if before:
        series.counter(metric_names.STEP_BETWEEN_TIME).record(max(0.0, span.start - before))
    _add_points(span.end_ns, {metric_names.TRAINING_STEP: number, metric_names.AVERAGE_REWARD: trajectories.reward})
    if span is _Loop.last_step:
        _date_gauges()
    shown = int(number) if number is not None and math.isfinite(number) else None
    if not is_repeated(span):
        _Loop.ended.append(EndedStep(shown, before, span.start, span.stop, phases, trajectories, whole))
    _Loop.last_stop = span.stop


def _add_points(time_ns: int, values: Mapping[str, float | None]) -> None:
    """Record values of a step with one time stamp. A gauge would keep those of the last step before each drain only."""
    RECORDER.pending_points.extend(
        Point(series.INSTRUMENTS[metric], (), time_ns, time_ns, value)
        for metric, value in values.items()
        if value is not None
    )


def _date_gauges() -> None:
    """Record what the user's gauges were set to since the last step began, with the time of its end, as verl's scalars have it.

    A gauge keeps its last value only, and several steps may end between two drains. A drain leaves its own point of a dated value out: it would be
    older than this one, and stores refuse that. Called when a step begins, when the drain takes one, and at the end of the run: a loop may set its
    gauges in the step or after it. Steps that overlap have no values of their own.
    """
    step, begin_ns = _Loop.last_step, _Loop.dated_ns
    _Loop.dated_ns = now = time.time_ns()
    if step is None or not step.stop or len(RECORDER.pending_points) >= MAX_DATED:
        return
    with error_boundary.suppress_errors("gauges of a step"):
        RECORDER.pending_points.extend(
            Point(gauge.instrument, (), gauge.start_ns, step.end_ns, value)
            for gauge, value in series.take_own_gauges(begin_ns, now)
        )


def has_step() -> bool:
    """Return whether this process has begun a step of an own loop."""
    return _Loop.began or any(span.site.spec.verb == "step" and not span.site.hook for span in RECORDER.opened)


def is_between_steps() -> bool:
    """Return whether this process has an own loop that is in no step. Phases of it are spans: a checkpoint delays the next step."""
    return _Loop.last_number is not None and not any(span.site.spec.verb == "step" for span in RECORDER.opened)


def take_ended() -> list[EndedStep]:
    """Remove and return the steps that have ended."""
    return [_Loop.ended.popleft() for _ in range(len(_Loop.ended))]


def end() -> None:
    """Record the end of the run, if this process had an own loop: failed or interrupted if the program or its last step was."""
    report()
    _date_gauges()
    if _Loop.began:
        series.gauge(metric_names.RUN_STATE).set((_find_end_of_program() or _Loop.last_state).value)


def _find_end_of(step: Span) -> RunState:
    """Return the state of a run that ends with a step. `asyncio.run` makes of Ctrl-C a cancellation of the task that waits."""
    if step.error == KeyboardInterrupt.__name__ or step.attributes.get(attr.OUTCOME) == "cancelled":
        return RunState.INTERRUPTED
    return RunState.FAILED if step.error else RunState.FINISHED


def find_error() -> BaseException | None:
    """Return the exception with which the program ends; None: it goes on, or ends without one.

    The interpreter stores it before it calls the functions of `atexit`. An interactive one stores each exception and goes on.
    """
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) and not hasattr(sys, "ps1") else None


def _find_end_of_program() -> RunState | None:
    """Return the state that the exception leaves with which the program ends, also between two steps; None without one."""
    error = find_error()
    if error is None:
        return None
    return RunState.INTERRUPTED if isinstance(find_first(error), KeyboardInterrupt) else RunState.FAILED


def clear() -> None:
    """Discard everything that was recorded: a session begins."""
    _clear_trajectories()
    _Loop.last_stop, _Loop.last_number, _Loop.last_step = 0.0, None, None
    _Loop.phases, _Loop.ended = deque(maxlen=MAX_PHASES), deque(maxlen=MAX_ENDED)


def _reset() -> None:
    _Loop.labels, _Loop.began, _Loop.last_state = (), False, RunState.FINISHED
    clear()


process_state.register(clear=clear, reset=_reset, after_fork=_reset)
