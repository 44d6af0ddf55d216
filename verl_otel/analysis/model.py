# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The data model of the analysis: immutable records, each produced by one stage from the records of the stage before.

``io`` → spans and points · ``traces.tree`` → whole traces · ``traces.timeline`` → `Step`, `Trajectory` ·
``traces.critical_path`` → `Segment` · ``gpu.accounting`` → `DeviceTime` · ``verdicts`` → `Verdict`, `Saving` ·
``reader`` → `Explanation`. Times are nanoseconds since 1970 on the trainer's clock (``traces.clocks`` shifts those of other
hosts); durations that are shown to users are seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from verl_otel.analysis.typed import Unbounded
from verl_otel.model import Resource, SpanRecord, name_trajectory
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.kinds import GPU_CAUSES

if TYPE_CHECKING:
    from verl_otel.analysis.bounded_steps import RecentStep
    from verl_otel.analysis.start_up import StartUp

START_UP_SHARE: Final = 0.5
"""A step contains start-up if its devices spent this share of their time in it; that is so after a restart."""
CANCELLED: Final = "cancelled"
"""Outcome of a trajectory, and `Step.error` of a step, that was cancelled: of asyncio's Ctrl-C, or of a task that did not wait for it."""


class Segment(NamedTuple):
    """An interval of a critical path: everything else waited for this between its start and its end."""

    start_ns: int
    end_ns: int
    kind: str
    """One of `kinds.WORK`."""
    name: str
    """Phase key, method, tool, model or data source; empty where the kind is sufficient."""
    phase: str = ""
    """Phase of the step that contains it; empty: none."""
    instance: str = ""
    """Process: ``<role>-<number>``."""
    trace_id: int = 0
    """Trace id of its trajectory; 0: none."""
    turn: int | None = None
    span_id: int = 0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ns - self.start_ns) / 1e9


class Activity(NamedTuple):
    """Work for a trajectory outside of its own code: an LLM call, a tool, a reward."""

    kind: str
    """``llm`` (the call), ``server`` (the part of the call on a replica), ``tool`` or ``reward``."""
    name: str
    instance: str
    start_ns: int
    end_ns: int
    turn: int | None = None
    failed: bool = False


class Part(NamedTuple):
    """The time of a trajectory in one LLM, tool or reward, summed over its calls."""

    kind: str
    """``llm``, ``tool``, ``reward`` or ``wait``."""
    name: str
    """Model or tool; empty for other kinds."""
    seconds: float
    calls: int
    turn: int | None
    """Turn of its longest call; None where turns are unknown."""


class Trajectory(NamedTuple):
    """One trajectory."""

    trace_id: int
    uid: str
    rollout_index: int
    step: int | None
    """Number of the step that trained on it; of others that for which it was generated. None: unknown."""
    validate: bool
    start_ns: int
    end_ns: int
    score: float | None
    failed: bool
    whole: bool
    """False: only its root span was kept."""
    parts: tuple[Part, ...] = ()
    instance: str = ""
    outcome: str = ""
    finish: str = ""
    turns: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    """Length of the response, with the answers of tools that are in it."""
    generated_tokens: int = 0
    """Tokens of the response that the model wrote."""
    path: tuple[Segment, ...] = ()
    """Its own critical path, from its start to its end."""
    activities: tuple[Activity, ...] = ()
    submitter: int = 0
    """Trace id of what submitted it; 0: unknown."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def cancelled(self) -> bool:
        """Whether its loop cancelled it."""
        return self.outcome == CANCELLED

    @property
    def stopped(self) -> bool:
        """Whether it did not come to its end: it was cancelled, or failed."""
        return self.failed or self.outcome in (CANCELLED, "failure")

    @property
    def label(self) -> str:
        """Its name, as `name_trajectory` returns it."""
        return name_trajectory(self.uid, self.rollout_index, f"{self.trace_id:032x}")


BESIDE: Final = frozenset(("generate_async",))
"""Phases that run beside others: the one-step-off trainer of verl generates the next batch while it trains."""


class Phase(NamedTuple):
    """One phase of a step. Phases with the same key are summed."""

    key: str
    seconds: float
    """Within the step: a phase in the background may go on after it."""
    share: float
    """Fraction of the step."""


class Straggler(NamedTuple):
    """A rank that delayed the others of its group, measured before the first collective."""

    method: str
    rank: int
    instance: str
    seconds: float
    """Delay relative to the median of its group."""
    evidence: str
    """``arrival`` (the call arrived late), ``data`` (it started to compute late), ``tokens`` (it had more tokens) or ``cpu``; in own
    loops ``began`` (its method began late) or ``took`` (its method took longer)."""


class Saving(NamedTuple):
    """How much shorter a step would have been without something; counts only wait time that would really have been saved."""

    what: str
    """``slowest``, ``1%``, ``5%``, ``blocked``, or ``replica <name>``, ``tool <name>``, ``reward``."""
    trajectories: int
    """Number of trajectories that would have had to be faster; of ``blocked`` those that would have waited less."""
    seconds: float


class Verdict(NamedTuple):
    """One cause that made a step longer, and by how much."""

    step: int | None
    step_seconds: float
    kind: str
    """One of `kinds.VERDICTS`."""
    subject: str
    """Trajectory label, replica, tool, phase key or rank, as shown to users."""
    cause: str
    """Kind of work that took the time, one of `kinds.WORK`."""
    cause_name: str
    seconds: float
    """Excess of the cause: how much longer it took than its peers."""
    saved: float
    """Seconds by which the step would have been shorter."""
    trace_id: int = 0
    turn: int | None = None
    instance: str = ""
    uncertainty: Unbounded = 0.0
    """Seconds by which the clocks of the hosts involved may differ."""
    waiting: int = 0
    """Number of trajectories that waited for a blocked event loop."""
    line: str = ""
    """``FILE:LINE in FUNCTION`` of the code that blocked an event loop for the longest time, or at which what is named stood; empty: unknown."""
    lead: float = 0.0
    """Seconds that all causes of the awaited trajectory could have saved together; 0: it is about no trajectory."""
    failed: bool = False
    """Whether it is about a trajectory that failed or was cancelled."""
    lost_calls: int = 0
    """Calls of the awaited trajectory that failed, where they took most of its excess."""
    during: str = ""
    """Phase of the process in which it was paused all that time; empty: none, or several."""
    rests_on: str = "spans"
    """One of `kinds.EVIDENCE`."""
    cancelled: bool = False
    """Whether it is about a trajectory that was cancelled."""
    alike: bool = False
    """Whether other ranks took as long in it, so that `instance` may only have waited for them."""


class DeviceTime(NamedTuple):
    """How one GPU spent a window of time. The nanoseconds sum up to exactly the window."""

    device: str
    nanoseconds: dict[str, int]
    """Nanoseconds by cause (`kinds.GPU_CAUSES`)."""
    gpus: int = 1
    """Number of GPUs that it is the mean of: more than one only for steps of a long run whose detail was dropped."""
    lane: str = ""
    """Its use, as `devices.Device.lane`; empty: unknown, or several."""


def sum_causes(devices: Iterable[DeviceTime]) -> Counter[str]:
    """Return the nanoseconds of all GPUs together by cause, those above zero."""
    spent: Counter[str] = Counter()
    for device in devices:
        for cause, nanoseconds in device.nanoseconds.items():
            if nanoseconds:
                spent[cause] += device.gpus * nanoseconds
    return spent


def sum_states(spent: Mapping[str, int]) -> Counter[str]:
    """Return GPU time by state (`kinds.GPU_STATES`), from that by cause."""
    states: Counter[str] = Counter()
    for cause, nanoseconds in spent.items():
        states[GPU_CAUSES[cause].state] += nanoseconds
    return states


class Cost(NamedTuple):
    """The cost of the tokens of a step."""

    gpu_seconds: float
    trained_tokens: int
    """Generated tokens that reached the optimizer, and not in an update that was lost: what tools answered is masked out of the loss."""
    wasted_tokens: dict[str, int]
    """Wasted generated tokens by reason: ``aborted``, ``failed``, ``dropped``, ``lost``, ``zero_variance``, ``truncated``."""


class Failure(NamedTuple):
    """A model, a tool, or the reward, whose calls failed in the trajectories that a step trained on, or submitted."""

    kind: str
    """``llm``, ``tool`` or ``reward``."""
    name: str
    calls: int
    """Its calls that failed."""
    trajectories: int
    """Trajectories with such a call."""
    unrewarded: int
    """Those of them whose score is 0, or lost: they failed, or their reward did. Perhaps not because of the answer."""


class ShortRank(NamedTuple):
    """A rank that was given far fewer samples than the others for an update."""

    method: str
    rank: int
    instance: str
    samples: int
    usual: float
    """Median of the others."""


class Step(NamedTuple):
    """One training step."""

    number: int | None
    trace_id: int
    start_ns: int
    end_ns: int
    failed: bool
    phases: tuple[Phase, ...]
    no_phase: float
    """Seconds outside of all phases."""
    trajectories: tuple[int, ...]
    """Trace ids of the trajectories that it trained on."""
    gen_start_ns: int
    """Start of the phase of generation in which its rollouts ended, or of the first one that ended after them; 0: unknown."""
    rollouts_end_ns: int
    """End of the last of its trajectories, and of those that it submitted and that failed or were cancelled during gen; 0: unknown."""
    gen_end_ns: int
    """End of that phase: when the trainer noticed it."""
    path: tuple[Segment, ...] = ()
    """Its critical path, from its start to its end without a gap; empty where only `groups` were kept."""
    groups: tuple[tuple[str, str, int], ...] = ()
    """Its critical path by group: kind, name, nanoseconds; the longest first."""
    savings: tuple[Saving, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """The largest saving first; empty: no cause was found."""
    stragglers: tuple[Straggler, ...] = ()
    devices: tuple[DeviceTime, ...] = ()
    """GPU time from the start of this step to the start of the next one (or the end of the run). For steps of a long run
    whose detail was dropped: one entry, the mean of all GPUs."""
    cost: Cost | None = None
    slowest: tuple[Trajectory, ...] = ()
    """A few of its slowest trajectories."""
    quantiles: tuple[float, ...] = ()
    """Durations of its trajectories in seconds: minimum, p50, p95, p99, maximum."""
    lifetimes: bytes = b""
    """`timeline.pack_lifetimes` of its trajectories. Long runs keep it for the steps whose detail they keep."""
    uncertainty: Unbounded = 0.0
    """Seconds by which the clocks on its path may differ; infinite where one of them has no bound."""
    members: int = 0
    """Number of trajectories that it trained on. Long runs keep their ids for some steps only."""
    blind_spots: tuple[str, ...] = ()
    """Evidence for stragglers that its spans do not contain (`stragglers.EVIDENCE`)."""
    error: str = ""
    """Type of the exception that ended it, or `CANCELLED`; empty: none, or unknown."""
    next_ns: int = 0
    """Start of the next step that ended, or end of the run or of its attempt: its period ends there. 0: unknown."""
    reward: float | None = None
    """Mean score of the trajectories that it trained on; None: unknown."""
    open_ns: int = 0
    """Start of a step in this period that did not end; 0: there is none."""
    between_path: tuple[Segment, ...] = ()
    """Critical path from its end to the start of the next step, or of one that did not end, without a gap; empty where only `between_groups` were kept."""
    between_groups: tuple[tuple[str, str, int], ...] = ()
    """The same by group, as `groups`."""
    attempt: int = 1
    """Which attempt of the run it belongs to."""
    repeated: bool = False
    """Whether a later attempt was resumed from an earlier checkpoint: it trains it again, or ended before it reached it."""
    failures: tuple[Failure, ...] = ()
    """What failed in its trajectories, most calls first. Long runs keep it for the steps whose detail they keep, as what follows."""
    short_ranks: tuple[ShortRank, ...] = ()
    """Ranks that trained on far less than the others."""
    error_line: str = ""
    """``FILE:LINE in FUNCTION`` of the user's own code where `error` was raised, or its innermost span; empty: unknown."""
    error_instance: str = ""
    """Process in which it was raised; empty: that of the step."""
    starved: float = 0.0
    """Seconds of its critical path for which the process that it was in waited for a CPU."""
    dead_child: str = ""
    """Which child process died, and by what, where that broke a pool of processes; empty: unknown."""
    is_shared: bool = False
    """Whether another rank of a distributed loop took as long in the same phase, so that none is known to be the one that others waited for."""

    def slim(self) -> Step:
        """Return it without its large fields, to be judged again beside later steps."""
        return self._replace(
            path=(), slowest=(), devices=(), phases=(), trajectories=(), verdicts=(), savings=(), groups=()
        )

    @property
    def longest_phase(self) -> Phase | None:
        """The phase in which the trainer was longest; None: there is none."""
        own = [phase for phase in self.phases if phase.key not in BESIDE]
        return max(own, key=lambda phase: phase.seconds, default=None)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def interrupted(self) -> bool:
        """Whether it was cut off from outside, as by Ctrl-C: where it was then is no cause."""
        return self.error in (CANCELLED, KeyboardInterrupt.__name__)

    @property
    def between(self) -> float:
        """Seconds from its end to the start of the next step, which may not have ended."""
        return max(0, (self.open_ns or self.next_ns) - self.end_ns) / 1e9

    @property
    def is_starting(self) -> bool:
        """Whether its devices spent so much of their time in start-up that it contains the start of the workers."""
        spent = sum_causes(self.devices)
        return spent["start_up"] > START_UP_SHARE * spent.total()


class Event(NamedTuple):
    """A stall or a crash that the watchdog reported during the run, a stop by a guard, or an alert."""

    kind: str
    """``stall``, ``crash``, ``stopped`` or ``alert``."""
    time_ns: int
    text: str
    """One line, as in the log of the training."""
    detail: dict[str, Any]

    @property
    def resolved(self) -> bool:
        """Whether it is over."""
        return "resolved" in self.detail


class Series(NamedTuple):
    """One scalar over the run."""

    name: str
    labels: tuple[tuple[str, str], ...]
    times_ns: Sequence[int]
    values: Sequence[float]


class Counts(NamedTuple):
    """Counts of spans, trajectories, calls and processes of a run."""

    spans: int
    trajectories: int
    trained: int
    llm_calls: int
    tool_calls: int
    rewards: int
    processes: int
    cancelled: int = 0
    """Trajectories that were cancelled."""
    failed: int = 0
    """Trajectories that ended with an exception."""
    outside: int = 0
    """Calls of tools, models and rewards of an own loop that began in no trajectory and no step, as far as they were counted."""


class Process(NamedTuple):
    """One process that wrote files."""

    resource: Resource
    newest_ns: int
    """Timestamp of the newest data that it wrote."""
    ended: bool
    """True: it has no open spans."""

    @property
    def instance(self) -> str:
        """``<role>-<number>``, as shown to users."""
        return self.resource.text(attr.SERVICE_INSTANCE).rpartition("/")[2]

    @property
    def label(self) -> str:
        """Instance, process id and host, as shown to users."""
        return f"{self.instance} (pid {self.resource.text(attr.PROCESS_ID)} on {self.resource.text(attr.HOST_NAME)})"


class OpenSpan(NamedTuple):
    """A span that had started and not ended when it was last written."""

    span: SpanRecord
    process: int
    age: float
    written_ns: int
    last_child: str


class UnfinishedProcess(NamedTuple):
    """A process that had open spans at its last sign of life."""

    process: Process
    dead: bool
    """True: it stopped writing while others continued. False: it may still be running."""
    silent: float
    """Seconds between its last sign of life and the newest of the run."""
    work: tuple[OpenSpan, ...]


class Completeness(NamedTuple):
    """The limits of what was recorded of a run."""

    unfinished: tuple[UnfinishedProcess, ...]
    missing: tuple[str, ...]
    orphans: int
    """Number of spans whose parent is in no file."""


class Explanation(NamedTuple):
    """The result of the analysis of a run, for reports, pages and comparisons. Its size is bounded, however long the run was."""

    run_id: str
    folders: tuple[str, ...]
    manifest: dict[str, Any]
    state: str
    """``running``, ``finished``, ``failed``, ``stopped by guard``, ``interrupted``, ``crashed``, ``ended`` or ``no end seen``."""
    start_ns: int
    end_ns: int
    counts: Counts
    steps: tuple[Step, ...]
    validations: tuple[tuple[int | None, int, int], ...]
    """Number of the preceding step, start, end."""
    slowest: tuple[Trajectory, ...]
    """The slowest trajectories of the run."""
    devices: tuple[DeviceTime, ...]
    """GPU time of the whole run, from ``start_ns`` to ``end_ns``."""
    events: tuple[Event, ...]
    series: tuple[Series, ...]
    completeness: Completeness
    problems: tuple[str, ...]
    """Messages about what could not be read."""
    offsets: tuple[tuple[str, float, float], ...] = ()
    """Host, seconds by which its clock is ahead of the trainer's, and the uncertainty of that in seconds."""
    unused: dict[str, int] = {}
    """Generated tokens by reason (`Cost.wasted_tokens`) that no step trained on and that belong to none of ``steps``."""
    has_gpu: bool = True
    """False: no process and no metric of the run names a GPU; its devices are the ranks, on CPUs."""
    recent_steps: tuple[RecentStep, ...] = ()
    """The newest steps with all their trajectories, from which `levers` are computed."""
    start_ups: tuple[StartUp, ...] = ()
    """The time before the first step of each of the newest attempts."""

    @property
    def is_own(self) -> bool:
        """Whether it is a loop of one's own, for which settings of verl are no advice. Spans without a manifest may be of either."""
        return "attempts" in self.manifest and attr.VERL_VERSION not in self.manifest

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences about what is not there, or could not be read."""
        return (*self.completeness.missing, *self.problems)

    @property
    def orphans(self) -> int:
        """Number of spans whose parent is in no file."""
        return self.completeness.orphans
