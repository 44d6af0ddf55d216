# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From spans to what people speak of: steps with their phases, trajectories with what they waited for."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from verl_otel.analysis.load import Run
from verl_otel.model import SAMPLED, SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

PHASE_PREFIX: Final = SPANS["phase"].name


class Phase(NamedTuple):
    """One phase of a step. A key that occurs more than once in a step is summed up."""

    key: str
    seconds: float
    share: float
    """Of the step."""


class Part(NamedTuple):
    """One thing that a trajectory spent time on."""

    kind: str
    """``llm``, ``tool``, ``reward`` or ``wait``."""
    name: str
    """The model or the tool; empty for the others."""
    seconds: float
    calls: int
    turn: int | None
    """Turn of its longest call, where turns are known."""


class Trajectory(NamedTuple):
    """One trajectory."""

    trace_id: int
    uid: str
    rollout_index: int
    step: int | None
    validate: bool
    start_ns: int
    end_ns: int
    score: float | None
    failed: bool
    whole: bool
    """False: only its root was kept."""
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def label(self) -> str:
        """``<uid>/<index>`` with a uid short enough to read."""
        return f"{self.uid[:8] if _UUID.fullmatch(self.uid) else self.uid[-24:]}/{self.rollout_index}"


_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


class Step(NamedTuple):
    """One training step."""

    number: int | None
    trace_id: int
    start_ns: int
    end_ns: int
    failed: bool
    phases: tuple[Phase, ...]
    no_phase: float
    """Seconds that lie in no phase."""
    trajectories: tuple[int, ...]
    """Trace ids of the trajectories that it trained on."""
    gen_start_ns: int
    rollouts_end_ns: int
    """When the last of its trajectories ended; 0 if unknown."""
    gen_end_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9


class Timeline(NamedTuple):
    """The steps and trajectories of a run, in the order of time."""

    steps: tuple[Step, ...]
    trajectories: dict[int, Trajectory]
    """By trace id."""
    validations: tuple[SpanRecord, ...]


def build(run: Run) -> Timeline:
    """Return the steps and trajectories of a run."""
    children: dict[tuple[int, int], list[SpanRecord]] = defaultdict(list)
    roots = [loaded.span for loaded in run.spans if not loaded.span.parent_id]
    members: dict[int, list[SpanRecord]] = {root.trace_id: [] for root in roots if root.name == "verl.trajectory"}
    for loaded in run.spans:
        children[(loaded.span.trace_id, loaded.span.parent_id)].append(loaded.span)
        if loaded.span.trace_id in members:
            members[loaded.span.trace_id].append(loaded.span)
    trajectories = {
        root.trace_id: _trajectory(root, members[root.trace_id]) for root in roots if root.name == "verl.trajectory"
    }
    steps = tuple(_step(root, children, trajectories) for root in roots if root.name == "verl.step")
    return Timeline(steps, trajectories, tuple(root for root in roots if root.name == "verl.validation"))


def _step(
    root: SpanRecord, children: dict[tuple[int, int], list[SpanRecord]], trajectories: dict[int, Trajectory]
) -> Step:
    phases = [span for span in children[(root.trace_id, root.span_id)] if span.name.startswith(PHASE_PREFIX)]
    total = max(1, root.end_ns - root.start_ns)
    by_key: dict[str, int] = defaultdict(int)
    for span in phases:
        by_key[span.name.removeprefix(PHASE_PREFIX)] += span.end_ns - span.start_ns
    consumed = _consumed(root, phases, children)
    ends = [trajectories[trace_id].end_ns for trace_id in consumed if trace_id in trajectories]
    generations = [span for span in phases if span.name == f"{PHASE_PREFIX}gen"]
    return Step(
        number=_whole(root.attributes.get(attr.STEP_NUMBER)),
        trace_id=root.trace_id,
        start_ns=root.start_ns,
        end_ns=root.end_ns,
        failed=attr.ERROR_TYPE in root.attributes,
        phases=tuple(Phase(key, ns / 1e9, ns / total) for key, ns in by_key.items()),
        no_phase=(total - covered(phases, root.start_ns, root.end_ns)) / 1e9,
        trajectories=consumed,
        gen_start_ns=generations[0].start_ns if generations else 0,
        rollouts_end_ns=max(ends, default=0),
        gen_end_ns=generations[-1].end_ns if generations else 0,
    )


def _consumed(
    root: SpanRecord, phases: list[SpanRecord], children: dict[tuple[int, int], list[SpanRecord]]
) -> tuple[int, ...]:
    parents = [root, *phases]
    found = [
        link.trace_id
        for parent in parents
        for span in children[(parent.trace_id, parent.span_id)]
        if span.name == "verl.consume"
        for link in span.links
    ]
    return tuple(dict.fromkeys(found))


def _trajectory(root: SpanRecord, spans: list[SpanRecord]) -> Trajectory:
    values = root.attributes
    score = values.get(attr.REWARD_SCORE)
    return Trajectory(
        trace_id=root.trace_id,
        uid=str(values.get(attr.SAMPLE_UID, "")),
        rollout_index=_whole(values.get(attr.ROLLOUT_INDEX)) or 0,
        step=_whole(values.get(attr.STEP_NUMBER)),
        validate=bool(values.get(attr.VALIDATE, False)),
        start_ns=root.start_ns,
        end_ns=root.end_ns,
        score=float(score) if isinstance(score, (int, float)) else None,
        failed=attr.ERROR_TYPE in values,
        whole=bool(root.flags & SAMPLED),
        parts=_parts(root, spans),
    )


def _whole(value: object) -> int | None:
    is_whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return int(value) if is_whole else None  # type: ignore[call-overload]  # one of the two


def _parts(root: SpanRecord, spans: list[SpanRecord]) -> tuple[Part, ...]:
    """Return what is known of a trajectory; that the rest was waiting is known where all of it was kept."""
    groups: dict[tuple[str, str], list[SpanRecord]] = defaultdict(list)
    for span in spans:
        if attr.GEN_AI_TOOL in span.attributes:
            groups[("tool", str(span.attributes[attr.GEN_AI_TOOL]))].append(span)
        elif attr.GEN_AI_MODEL in span.attributes or span.name.startswith(("chat", "text_completion")):
            groups[("llm", str(span.attributes.get(attr.GEN_AI_MODEL, "")))].append(span)
        elif span.name == "verl.reward":
            groups[("reward", "")].append(span)
    turns = {span.span_id: span.attributes.get(attr.TURN_INDEX) for span in spans if span.name == "verl.turn"}
    parts = []
    for (kind, name), members in groups.items():
        longest = max(members, key=lambda span: span.end_ns - span.start_ns)
        turn = turns.get(longest.parent_id)
        seconds = covered(members, root.start_ns, root.end_ns) / 1e9
        parts.append(Part(kind, name, seconds, len(members), _whole(turn)))
    parts.sort(key=lambda part: -part.seconds)
    if root.flags & SAMPLED:
        busy = covered([span for members in groups.values() for span in members], root.start_ns, root.end_ns)
        waited = max(0, root.end_ns - root.start_ns - busy) / 1e9
        parts.append(Part("wait", "", waited, 0, None))
    return tuple(parts)


def covered(spans: Iterable[SpanRecord], begin: int, end: int) -> int:
    """Return how many nanoseconds between ``begin`` and ``end`` at least one of the spans covers."""
    total, reached = 0, begin
    for span in sorted(spans, key=lambda each: each.start_ns):
        start, stop = max(span.start_ns, reached), min(span.end_ns, end)
        if stop > start:
            total += stop - start
            reached = stop
    return total
