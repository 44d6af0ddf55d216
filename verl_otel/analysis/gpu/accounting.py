# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Accounts for GPU time: what each GPU did in a window, every nanosecond counted once, and what the tokens of a step cost.

For each device a sweep over its activity (docs/explanation/gpu-time.md has the picture): a worker's method first, then a weight sync that
delays its requests, then requests on its replica. The rest is idle, and `idle_causes` gives the cause. All integers, so that the
causes of a device sum up to exactly the window, and adjacent windows to the window around them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from verl_otel.analysis.gpu import idle_causes
from verl_otel.analysis.gpu.devices import Devices, natural
from verl_otel.analysis.model import Cost, DeviceTime, Step, Straggler, Trajectory, sum_causes
from verl_otel.analysis.traces.span_names import (
    CALL_PREFIX,
    CHECKPOINT,
    CONSUME,
    DATA_LOADING,
    LOGGING,
    PHASE_PREFIX,
    VALIDATION,
    WEIGHT_SYNC,
    WORKER_PREFIX,
)
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts.stragglers import EVIDENCE
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.kinds import GROUP_RELATIVE

# -- Collects the activity around a window of time: by the devices that it occupied, and by what explains idle ones --

Part = tuple[int, int, str]
"""Start, end, cause."""

COUNTED: Final = (*idle_causes.STATES, "in server", "in tool", "in reward", "open", "hidden", "validating", "blocked")
"""What is counted over time: the states of the trainer, and trajectories by what they wait for (`idle_causes.find_awaited`)."""
INDEX: Final = {name: index for index, name in enumerate(COUNTED)}
_WAITS: Final = {"tool": "in tool", "reward": "in reward", "llm": "hidden"}
"""What a trajectory can wait for, and how that is counted; LLM calls count only where none of them has a server side."""
WORK: Final = ("train", "weight_sync", "checkpoint", "switch", "start_up", "sync_wait", "rollout", "validation")
"""Work that occupies a device, in the order of precedence. ``sync_wait``: its requests are delayed by a weight sync."""
VALIDATING: Final = INDEX["validating"]
MARK, LEND, TAKE = range(len(COUNTED), len(COUNTED) + 3)
"""Changes that are not counted: a mark, the trainer lends its GPUs to the rollouts, the trainer takes them back."""
_ROLLOUT, _VALIDATION = WORK.index("rollout"), WORK.index("validation")
_OPENERS: Final = {
    WEIGHT_SYNC: "weight_sync",
    CHECKPOINT: "checkpoint",
    VALIDATION: "validation",
    LOGGING: "logging",
    DATA_LOADING: "data_loading",
}
_ROLLOUTER: Final = "agent_loop"
"""Role of the process that validates in parallel to the trainer (fully asynchronous): its validation occupies no GPU of the trainer."""


class WindowActivity:
    """Activity around a window, in lists that `accounting` sweeps over."""

    def __init__(self, devices: Devices) -> None:
        self.users, self.own = devices.users, devices.own
        self.serving = [number for number, device in enumerate(devices.gpus) if device.serves]
        self.work: list[list[tuple[int, int, int]]] = [[] for _ in devices.gpus]
        """By device: start, end, index of `WORK`."""
        self.changes: list[tuple[int, int, int]] = []
        """Time, index of `COUNTED`, delta."""
        self.starts: list[int] = []
        self._requests: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        """Start and end of requests by replica and index of `WORK`."""
        self.sleeps: list[tuple[int, bool]] = []

    def add_tree(self, root: Node) -> None:
        """Add a trace other than a trajectory's."""
        stack: list[tuple[Node, str]] = [(root, "")]
        while stack:
            node, inside = stack.pop()
            if node.span.name.startswith(WORKER_PREFIX):
                if node.instance != inside:  # a nested method in the same process is part of the outer one
                    self._add_work(node)
                inside = node.instance
            else:
                self._add_step(node)
            stack.extend((child, inside) for child in node.children)

    def _add_work(self, node: Node) -> None:
        start, end = node.span.start_ns, node.span.end_ns
        work = idle_causes.find_work(
            str(node.span.attributes.get(attr.WORKER_METHOD, node.span.name.rpartition(".")[2]))
        )
        for device in self.users.get(node.instance, ()):
            self.work[device].append((start, end, WORK.index(work)))
        if work == "train":
            self._change(start, end, "training")
            self.starts.append(start)

    def _add_step(self, node: Node) -> None:
        span = node.span
        start, end, name = span.start_ns, span.end_ns, span.name
        state = _OPENERS.get(name, "")
        if name.startswith(PHASE_PREFIX):
            key = name.removeprefix(PHASE_PREFIX)
            state = idle_causes.find_state(key)
            if key in ("switch_to_trainer", "switch_to_rollout"):
                self.sleeps.append((end, True) if key == "switch_to_trainer" else (start, False))
            taken = [child.span.end_ns for child in node.children if child.span.name == CONSUME]
            if state == "samples" and taken:  # it has received its samples: the engines are put to sleep
                self._change(max(taken), end, "switch")
        elif name.startswith(CALL_PREFIX):
            state = _find_called(node)
        elif name == VALIDATION:
            self._change(start, end, "validating")
            if node.instance.startswith(_ROLLOUTER):
                return
            self.sleeps.append((start, False))
        if name == WEIGHT_SYNC:
            for device in self.serving:
                self.work[device].append((start, end, WORK.index("sync_wait")))
        if state:
            self._change(start, end, state)

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Add a trajectory: its requests occupy replicas, its other activities explain idle ones."""
        begin_ns, end_ns = trajectory.start_ns, trajectory.end_ns
        self.starts.append(begin_ns)
        work = _VALIDATION if trajectory.validate else _ROLLOUT
        waits: dict[str, list[tuple[int, int]]] = {}
        is_served = False
        for kind, _, instance, start, end, _, _ in trajectory.activities:
            if kind == "server" or (kind == "llm" and instance in self.own):
                self._requests[instance, work].append((start, end))
                is_served = True
            else:
                waits.setdefault(kind, []).append((start, end))
        if trajectory.validate:
            self._change(begin_ns, end_ns, "validating")
            return
        self._change(begin_ns, end_ns, "open" if trajectory.whole else "hidden")
        if is_served:
            waits.pop("llm", None)
        for kind, times in waits.items() if trajectory.whole else ():
            for start, end in unite(times):
                self._change(max(start, begin_ns), min(end, end_ns), _WAITS[kind])

    def add_blocked(self, start: int, end: int) -> None:
        """Add an interval in which the event loop of trajectories was blocked."""
        self._change(start, end, "blocked")

    def settle(self) -> None:
        """Finish: assign the requests to the devices, with overlapping requests on a replica merged."""
        generating: list[tuple[int, int]] = []
        for (instance, work), times in self._requests.items():
            together = list(unite(times))
            for device in self.users.get(instance, ()):
                self.work[device] += [(start, end, work) for start, end in together]
            if work == _ROLLOUT:
                generating += together
        for start, end in unite(generating):
            self._change(start, end, "in server")

    def _change(self, start: int, end: int, name: str) -> None:
        if end > start:
            what = INDEX[name]
            self.changes.append((start, what, 1))
            self.changes.append((end, what, -1))


def _find_called(call: Node) -> str:
    """Return the state of the trainer in a call, one of `idle_causes.STATES`; empty where its phase or its workers determine it."""
    work = idle_causes.find_work(call.span.name.removeprefix(CALL_PREFIX))
    if work in ("weight_sync", "checkpoint"):
        return work
    has_workers = any(child.span.name.startswith(WORKER_PREFIX) for child in call.children)
    return "missing" if work == "train" and not has_workers else ""


def occupy(work: list[tuple[int, int, int]], begin: int, end: int) -> list[Part]:
    """Return what occupies one device, in parts that do not overlap and lie within the window."""
    changes = []
    for start, stop, rank in work:
        if start < end and stop > begin and stop > start:
            changes.append((start, rank, 1))
            changes.append((stop, rank, -1))
    changes.sort()
    counts = [0] * len(WORK)
    parts: list[Part] = []
    present, reached = 0, begin  # a bit for each kind of work; the lowest one takes precedence
    for when, rank, by in changes:
        if when > reached:
            if present:
                cause = WORK[(present & -present).bit_length() - 1]
                if parts and parts[-1][1] == reached and parts[-1][2] == cause:
                    parts[-1] = (parts[-1][0], min(when, end), cause)
                else:
                    parts.append((reached, min(when, end), cause))
            reached = min(when, end)
        counts[rank] += by
        present = present | 1 << rank if counts[rank] else present & ~(1 << rank)
    return parts


def unite(times: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the union of intervals: start, end, in order and disjoint."""
    upcoming = iter(sorted(times))
    begin, end = next(upcoming, (0, 0))
    for start, stop in upcoming:
        if start > end:
            if end > begin:
                yield begin, end
            begin, end = start, stop
        elif stop > end:
            end = stop
    if end > begin:
        yield begin, end


_STATES: Final = len(idle_causes.STATES)
_SERVER, _HIDDEN, _OPEN, _BLOCKED = INDEX["in server"], INDEX["hidden"], INDEX["open"], INDEX["blocked"]
_Idle = tuple[int, int, tuple[str, ...]]
"""Start, end, cause by lane."""


class GpuAccount(msgspec.Struct):
    """The GPU time of a run. Its memory does not grow with the run."""

    devices: Devices
    """GPUs of the attempt."""
    _total: dict[str, DeviceTime] = {}
    """By device, of all attempts."""
    _began_ns: int | None = None
    """Start of the first trajectory or training of the attempt; all idle time before it is start-up."""
    _opened_ns: int | None = None
    """Start of the first trajectory of the attempt."""
    _slept: tuple[int, bool] = (0, False)
    """When the trainer last took its GPUs back from the rollouts or lent them, and which of the two."""

    def __post_init__(self) -> None:
        """Begin the account of each device."""
        self._add_devices()

    def add_window(
        self,
        begin_ns: int,
        end_ns: int,
        roots: Sequence[Node],
        trajectories: Sequence[Trajectory],
        blocked: Sequence[tuple[int, int]] = (),
        late: Sequence[Straggler] = (),
        *,
        is_lossy: bool = False,
    ) -> tuple[DeviceTime, ...]:
        """Add a window of time and return what each device did in it.

        Args:
            begin_ns: Its start. Windows come in the order of time.
            end_ns: Its end.
            roots: The root of every trace other than a trajectory's that overlaps the window, from its first start to its last end (a worker
                may outlast its step).
            trajectories: All that overlap the window, whichever step trains on them.
            blocked: Intervals in which the event loops of trajectories were blocked: start, end.
            late: The late ranks of the step in this window: the others waited for them within their methods.
            is_lossy: Whether a process of the attempt was killed by the end of the window: its youngest trajectories are in no file.

        Returns:
            For each device its nanoseconds by cause, those above zero: together ``end_ns - begin_ns``.
        """
        activity = WindowActivity(self.devices)
        for root in roots:
            activity.add_tree(root)
        for trajectory in trajectories:
            activity.add_trajectory(trajectory)
        for start, end in blocked:
            activity.add_blocked(start, end)
        activity.settle()
        starts = [*activity.starts, *([] if self._began_ns is None else [self._began_ns])]
        self._began_ns = min(starts, default=None)
        opened = [trajectory.start_ns for trajectory in trajectories]
        self._opened_ns = min([*opened, *([] if self._opened_ns is None else [self._opened_ns])], default=None)
        lanes = sorted({device.lane for device in self.devices.gpus})
        first = (self._began_ns, None if is_lossy else self._opened_ns)
        idle = _sweep(activity, self.devices.replicas, lanes, begin_ns, end_ns, first, self._slept)
        self._slept = max([self._slept, *(switch for switch in activity.sleeps if switch[0] <= end_ns)])
        waits = self._find_waits(late)
        device_times = []
        for number, device in enumerate(self.devices.gpus):
            spent = _spend(occupy(activity.work[number], begin_ns, end_ns), idle, lanes.index(device.lane))
            waited = min(spent.get("train", 0), waits.get(number, 0))
            if waited:
                spent = {**spent, "train": spent["train"] - waited, "train_wait": spent.get("train_wait", 0) + waited}
                spent = {cause: nanoseconds for cause, nanoseconds in spent.items() if nanoseconds}
            total = self._total[device.name].nanoseconds
            for cause, nanoseconds in spent.items():
                total[cause] = total.get(cause, 0) + nanoseconds
            device_times.append(DeviceTime(device.name, spent, lane=device.lane))
        return tuple(device_times)

    def _find_waits(self, late: Iterable[Straggler]) -> dict[int, int]:
        """Return the nanoseconds that each device waited for late ranks within methods: in a collective all wait for the last one."""
        delays: dict[tuple[str, str], dict[str, float]] = {}
        for each in late:
            if each.evidence in EVIDENCE:  # those of own loops have no collectives: their devices are idle meanwhile
                group = delays.setdefault((_find_role(each.instance), each.method), {})
                group[each.instance] = group.get(each.instance, 0.0) + each.seconds
        waits: dict[int, int] = {}
        for (role, _), group in delays.items():
            longest = max(group.values())
            for instance, numbers in self.devices.users.items():
                waited = round(1e9 * (longest - group.get(instance, 0.0)))
                for number in numbers if waited and _find_role(instance) == role else ():
                    waits[number] = waits.get(number, 0) + waited
        return waits

    def restart(self, devices: Devices) -> None:
        """Begin another attempt, with a start-up of its own.

        Args:
            devices: Its GPUs. One that an attempt before had, too, is the same device: host and id are equal.
        """
        self.devices = devices
        self._began_ns, self._opened_ns, self._slept = None, None, (0, False)
        self._add_devices()

    def _add_devices(self) -> None:
        for device in self.devices.gpus:
            known = self._total.get(device.name, DeviceTime(device.name, {}))
            self._total[device.name] = known._replace(lane=device.lane)

    def total(self) -> tuple[DeviceTime, ...]:
        """Return the sum of all windows so far, for each device of any attempt."""
        return tuple(
            device._replace(nanoseconds=dict(device.nanoseconds))
            for _, device in sorted(self._total.items(), key=lambda item: natural(item[0]))
        )


def _find_role(instance: str) -> str:
    return instance.rpartition("-")[0]


def _sweep(
    activity: WindowActivity,
    replicas: int,
    lanes: Sequence[str],
    begin: int,
    end: int,
    since: tuple[int | None, int | None],
    slept: tuple[int, bool],
) -> list[_Idle]:
    """Return the causes of idle time throughout the window, by lane: parts that cover it without a gap.

    ``since`` is when the first work and the first trajectory began; None: not yet.
    """
    began, opened = since
    asleep = max([slept, *(switch for switch in activity.sleeps if switch[0] <= begin)])[1]
    changes = [
        *activity.changes,
        *((time_ns, TAKE if sleeps else LEND, 0) for time_ns, sleeps in activity.sleeps),
        (end, MARK, 0),
    ]
    changes += [(moment, MARK, 0) for moment in since if moment is not None]
    changes.sort()
    counts = [0] * len(COUNTED)
    causes_by_key: dict[tuple[int, str, bool, bool, bool, bool], tuple[str, ...]] = {}
    parts: list[_Idle] = []
    states, reached = 0, begin  # a bit for each state of the trainer; the lowest one takes precedence
    for time_ns, index, delta in changes:
        moment = time_ns if time_ns < end else end  # noqa: FURB136 - twice as fast as min(), in the loop over every event of a run
        if moment > reached:
            if counts[_SERVER] and not counts[_HIDDEN]:
                awaited = "server"  # as `find_awaited` returns, inlined because it is the most frequent case
            elif counts[_BLOCKED] and counts[_OPEN]:
                awaited = "blocked"
            else:
                awaited = idle_causes.find_awaited(*counts[_STATES:VALIDATING], replicas)  # type: ignore[call-arg]  # five of them
            has_begun, has_opened = began is not None and began <= reached, opened is not None and opened <= reached
            key = (states & -states, awaited, asleep, counts[VALIDATING] > 0, has_begun, has_opened)
            causes = causes_by_key.get(key) or causes_by_key.setdefault(
                key, tuple(_find_cause(lane, *key) for lane in lanes)
            )
            if parts and parts[-1][2] == causes:
                parts[-1] = (parts[-1][0], moment, causes)
            else:
                parts.append((reached, moment, causes))
            reached = moment
        if delta:
            counts[index] += delta
            if index < _STATES:
                states = states | 1 << index if counts[index] else states & ~(1 << index)
        elif index != MARK and time_ns > begin:
            asleep = index == TAKE
    return parts


def _find_cause(lane: str, state: int, awaited: str, asleep: bool, validating: bool, began: bool, opened: bool) -> str:  # noqa: FBT001 - a key
    if not began:
        return "start_up"
    doing = idle_causes.STATES[state.bit_length() - 1]  # no bit: the last of them, "data"
    return idle_causes.find_cause(lane, doing, awaited, asleep=asleep, validating=validating, recorded=opened)


def _spend(busy: list[Part], idle: list[_Idle], lane: int) -> dict[str, int]:
    """Return the nanoseconds by cause: those of ``busy``, and between them those of ``idle``, which covers the window."""
    spent: dict[str, int] = defaultdict(int)
    upcoming = iter(busy)
    part = next(upcoming, None)
    for start, end, causes in idle:
        reached = start
        while part is not None and part[0] < end:
            spent[causes[lane]] += max(0, part[0] - reached)
            stop = min(part[1], end)
            spent[part[2]] += max(0, stop - max(part[0], reached))
            reached = max(reached, stop)
            if part[1] > end:
                break
            part = next(upcoming, None)
        spent[causes[lane]] += end - reached
    return {cause: nanoseconds for cause, nanoseconds in spent.items() if nanoseconds}


# -- The cost of the tokens of a step: GPU seconds, and wasted response tokens --
#
# A trajectory is counted once, under the first reason that applies. Tokens of `NEVER_TRAINED` are in no weights that the run went on with; the
# others are, without or with a misleading gradient:
#
# * ``lost``: their step failed, or a later attempt continued from a checkpoint before it.
# * ``zero_variance``: all scores of a group are equal. The advantage of GRPO and similar estimators is a score's distance to the mean of its group,
#   so the policy gradient of such a group is zero (DAPO, arXiv 2503.14476, section 3.2; other terms, as KL loss, are ignored).
# * ``truncated``: the response was cut at its limit of tokens (DAPO, section 3.4).

NEVER_TRAINED: Final = ("aborted", "failed", "dropped", "lost")
"""Reasons for tokens that are not among the trained ones. All other reasons are for tokens that are."""
UNKNOWN: Final = ("padding", "recomputed", "joules")
"""Not recorded by any span: padding is added and removed inside verl, an engine counts preemptions but not their tokens."""
_ABORTED: Final = ("abort", "aborted", "cancelled")
_CUT: Final = ("length", "max_tokens")


class TotalCost(NamedTuple):
    """The cost of several steps together."""

    gpu_seconds: float
    trained_tokens: int
    wasted_tokens: dict[str, int]
    generated_tokens: int
    """See `count_generated`."""


def needs_spread(manifest: Mapping[str, Any]) -> bool:
    """Return whether a run learns nothing from a group with equal scores; True if its estimator is not known.

    With a KL penalty in the reward, rewards differ where scores are equal.

    Args:
        manifest: What the run recorded about itself.
    """
    algorithm = str(manifest.get(attr.ALGORITHM, ""))
    return (not algorithm or algorithm in GROUP_RELATIVE) and not manifest.get(attr.KL_IN_REWARD)


def find_cost(
    step: Step, members: Sequence[Trajectory], devices: Sequence[DeviceTime], *, needs_spread: bool = True
) -> Cost:
    """Return the cost of a step.

    Args:
        step: The step; it says which trajectories it consumed.
        members: Trajectories that it consumed and, if known, those that were generated for it and that no step consumed.
        devices: GPU time of the step.
        needs_spread: Whether equal scores of a group have no gradient.
    """
    consumed = set(step.trajectories)
    trained_members = [member for member in members if member.trace_id in consumed]
    flat = find_flat_groups(trained_members) if needs_spread else {}
    trained = 0
    wasted: dict[str, int] = defaultdict(int)
    for member in members:
        if member.validate:
            continue
        if member.trace_id in consumed:
            trained += member.generated_tokens
            reason = _find_waste_reason(member, flat)
        else:
            reason = find_unused_reason(member)
        if reason and member.generated_tokens:
            wasted[reason] += member.generated_tokens
    return Cost(sum_causes(devices).total() / 1e9, trained, dict(wasted))


def lose(cost: Cost) -> Cost:
    """Return the cost of a step whose update was lost: none of its tokens count as trained."""
    rest = {reason: tokens for reason, tokens in cost.wasted_tokens.items() if reason in NEVER_TRAINED}
    lost = {"lost": rest.get("lost", 0) + cost.trained_tokens} if cost.trained_tokens else {}
    return cost._replace(trained_tokens=0, wasted_tokens={**rest, **lost})


def sum_costs(steps: Sequence[Step], unused: Mapping[str, int] | None = None) -> TotalCost | None:
    """Return the total cost of steps; None where no step's cost is known.

    Args:
        steps: The steps.
        unused: Tokens that no step trained on and that belong to none of the steps (`Explanation.unused`).
    """
    costs = [step.cost for step in steps if step.cost is not None]
    if not costs:
        return None
    wasted: dict[str, int] = defaultdict(int, unused or {})
    for cost in costs:
        for reason, tokens in cost.wasted_tokens.items():
            wasted[reason] += tokens
    trained = sum(cost.trained_tokens for cost in costs)
    gpu_seconds = sum(cost.gpu_seconds for cost in costs)
    return TotalCost(gpu_seconds, trained, dict(wasted), count_generated(trained, wasted))


def count_generated(trained: int, wasted: Mapping[str, int]) -> int:
    """Return how many tokens were generated: the denominator of every share of wasted tokens.

    Wasted tokens of reasons other than `NEVER_TRAINED` are among the trained ones and do not count twice.

    Args:
        trained: Tokens that were trained on.
        wasted: Wasted tokens by reason.
    """
    return trained + sum(wasted.get(reason, 0) for reason in NEVER_TRAINED)


def find_unused_reason(trajectory: Trajectory) -> str:
    """Return the reason why a trajectory was never trained on."""
    if trajectory.finish in _ABORTED or trajectory.cancelled:
        return "aborted"
    return "failed" if trajectory.stopped else "dropped"


def _find_waste_reason(trajectory: Trajectory, flat: Mapping[str, bool]) -> str:
    """Return the reason why training on a trajectory was of no use; empty if it was of use."""
    if flat.get(trajectory.uid):
        return "zero_variance"
    return "truncated" if trajectory.finish in _CUT else ""


def find_flat_groups(members: Sequence[Trajectory]) -> dict[str, bool]:
    """Return by uid whether all scores of a group are equal, of those with several trajectories that all have a score."""
    scores: dict[str, list[float | None]] = defaultdict(list)
    for member in members:
        scores[member.uid].append(member.score)
    judged = {uid: values for uid, values in scores.items() if uid and len(values) > 1 and None not in values}
    return {uid: len(set(values)) == 1 for uid, values in judged.items()}
