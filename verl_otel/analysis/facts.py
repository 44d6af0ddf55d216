# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the analysis knows of a run, as frozen data: each stage makes some of it from what the stage before made.

``reader`` → chunks of spans · ``traces`` → whole traces · ``timeline`` → `Step`, `Trajectory` · ``critical_path`` → `Segment` ·
``ledger`` → `DeviceTime` · ``tail`` → `Verdict`, `Saving` · ``summary`` → `Explanation`. Times are nanoseconds since 1970 on the
trainer's clock (``clocks`` shifts those of other hosts); durations that people read are seconds.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

KINDS: Final = (
    "step",  # the trainer itself, in no phase
    "phase",  # the trainer itself, in a phase
    "call",  # a worker group's call: dispatch and transport
    "worker",  # a method on a rank
    "weight_sync",
    "checkpoint",
    "validation",
    "poll",  # rollouts had ended, the trainer had not noticed
    "start",  # submitted, not started: the agent loop had no room, or was not there yet
    "trajectory",  # the agent loop's own code and its waiting
    "llm",  # an LLM call outside its server: transport and routing
    "server",  # an LLM server, where the engine does not say more
    "queue",  # the engine's three states, where it says them
    "prefill",
    "decode",
    "tool",
    "reward",
    "unknown",  # nobody's span lies there
)
"""What a segment of a critical path can be."""

STATES: Final = ("productive", "overhead", "idle")
CAUSES: Final = {
    "train": "productive",
    "rollout": "productive",
    "validation": "overhead",
    "weight_sync": "overhead",
    "checkpoint": "overhead",
    "switch": "overhead",
    "start_up": "overhead",
    "tail_wait": "idle",
    "tool_wait": "idle",
    "reward_wait": "idle",
    "rollout_wait": "idle",
    "train_wait": "idle",
    "sync_wait": "idle",
    "checkpoint_wait": "idle",
    "validation_wait": "idle",
    "data": "idle",
    "unknown": "idle",
}
"""Why a GPU is in a state; each cause belongs to one state."""

_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


class Segment(NamedTuple):
    """A part of a critical path: from here to there, everything waited for this."""

    start_ns: int
    end_ns: int
    kind: str
    """One of `KINDS`."""
    name: str
    """Phase key, method, tool, model, data source; empty where the kind says it all."""
    phase: str = ""
    """Phase of the step in which it lies; empty: none."""
    instance: str = ""
    """Process: ``<role>-<number>``."""
    trace_id: int = 0
    """The trajectory that it belongs to; 0: none."""
    turn: int | None = None
    span_id: int = 0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ns - self.start_ns) / 1e9


class Activity(NamedTuple):
    """Something that was done for a trajectory in another place than its own code."""

    kind: str
    """``llm`` (the call), ``server`` (its part on a replica), ``tool`` or ``reward``."""
    name: str
    instance: str
    start_ns: int
    end_ns: int
    turn: int | None = None
    failed: bool = False


class Part(NamedTuple):
    """One thing that a trajectory spent time on, all its calls together."""

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
    parts: tuple[Part, ...] = ()
    instance: str = ""
    outcome: str = ""
    finish: str = ""
    turns: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    path: tuple[Segment, ...] = ()
    """Its own critical path, from its start to its end."""
    activities: tuple[Activity, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def label(self) -> str:
        """``<uid>/<index>`` with a uid short enough to read."""
        return f"{self.uid[:8] if _UUID.fullmatch(self.uid) else self.uid[-24:]}/{self.rollout_index}"


class Phase(NamedTuple):
    """One phase of a step. A key that occurs more than once in a step is summed up."""

    key: str
    seconds: float
    share: float
    """Of the step."""


class Straggler(NamedTuple):
    """A rank that kept the others of its group waiting, from what can be seen before the first collective."""

    method: str
    rank: int
    instance: str
    seconds: float
    """How much later than the median of its group it came."""
    evidence: str
    """``arrival`` (the call reached it late), ``data`` (it began to compute late), ``tokens`` (its share was larger) or ``cpu``."""


class Saving(NamedTuple):
    """How much shorter a step would have been without something; only the wait that this would really save."""

    what: str
    """``slowest``, ``1%``, ``5%``, or ``replica <name>``, ``tool <name>``, ``reward``."""
    trajectories: int
    """How many would have had to be faster."""
    seconds: float


class Verdict(NamedTuple):
    """What held one step, and by how much."""

    step: int | None
    step_seconds: float
    kind: str
    """``trajectory``, ``replica``, ``tool``, ``reward``, ``phase``, ``rank``."""
    subject: str
    """Trajectory label, replica, tool, phase key, rank: as shown to people."""
    cause: str
    """What it was doing, as a kind of segment: ``tool``, ``server``, ``queue``, ``reward``, ``weight_sync``, ``worker`` …"""
    cause_name: str
    seconds: float
    """Size of the cause: how long it took beyond what its peers took."""
    saved: float
    """By how much the step would have been shorter."""
    trace_id: int = 0
    turn: int | None = None
    instance: str = ""
    uncertainty: float = 0.0
    """Seconds by which clocks of different hosts may be apart."""


class DeviceTime(NamedTuple):
    """How one GPU spent a window of time. The nanoseconds sum up to the window exactly."""

    device: str
    nanoseconds: dict[str, int]
    """By cause, one of `CAUSES`."""
    gpus: int = 1
    """Of how many GPUs it is the mean: more than one only for steps of a long run whose detail was not kept."""


class Cost(NamedTuple):
    """What the tokens of a step cost."""

    gpu_seconds: float
    trained_tokens: int
    """Response tokens that reached the optimiser."""
    wasted_tokens: dict[str, int]
    """Response tokens by why they were of no use: ``aborted``, ``failed``, ``zero_variance``, ``dropped``, ``truncated`` …"""
    joules: float | None = None


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
    path: tuple[Segment, ...] = ()
    """Its critical path: from its start to its end without a gap; empty where only `groups` were kept."""
    groups: tuple[tuple[str, str, int], ...] = ()
    """Its critical path summed up: kind, name, nanoseconds; the longest first."""
    savings: tuple[Saving, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """The worst first; empty: nothing held it noticeably."""
    stragglers: tuple[Straggler, ...] = ()
    devices: tuple[DeviceTime, ...] = ()
    """GPU time from the start of this step to the start of the next one (or the end of the run). Of steps of a long run whose detail
    was not kept, one entry: the mean of all GPUs."""
    cost: Cost | None = None
    slowest: tuple[Trajectory, ...] = ()
    """Its slowest trajectories, a few."""
    quantiles: tuple[float, ...] = ()
    """Seconds of its trajectories: minimum, p50, p95, p99, maximum."""
    uncertainty: float = 0.0
    """Seconds by which the clocks that its path goes through may be apart; infinite where nothing bounds one of them."""
    members: int = 0
    """How many trajectories it trained on. In a long run their ids are kept of some steps only."""
    blind_spots: tuple[str, ...] = ()
    """Evidence for stragglers that its spans cannot show (`stragglers.EVIDENCE`)."""
    error: str = ""
    """Type of the exception that ended it; empty: none, or not known."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9


class Event(NamedTuple):
    """A stall or a crash that was found while the run went on."""

    kind: str
    """``stall`` or ``crash``."""
    time_ns: int
    text: str
    """One line, as in the training's log."""
    detail: dict[str, Any]


class Series(NamedTuple):
    """One scalar over the run."""

    name: str
    labels: tuple[tuple[str, str], ...]
    times_ns: tuple[int, ...]
    values: tuple[float, ...]


class Counts(NamedTuple):
    """How much there is of a run."""

    spans: int
    trajectories: int
    trained: int
    llm_calls: int
    tool_calls: int
    rewards: int
    processes: int


class Explanation(NamedTuple):
    """Everything that a report, a page or a comparison says of a run. Bounded, however long the run was."""

    run_id: str
    folders: tuple[str, ...]
    manifest: dict[str, Any]
    state: str
    """``running``, ``finished``, ``failed``, ``ended`` or ``no end seen``."""
    start_ns: int
    end_ns: int
    counts: Counts
    steps: tuple[Step, ...]
    validations: tuple[tuple[int | None, int, int], ...]
    """Number of the step that each follows, start, end."""
    slowest: tuple[Trajectory, ...]
    """The slowest trajectories of the run."""
    devices: tuple[DeviceTime, ...]
    """The whole run, from ``start_ns`` to ``end_ns``."""
    events: tuple[Event, ...]
    series: tuple[Series, ...]
    gaps: Any
    """`gaps.Gaps`: what is unfinished or missing."""
    problems: tuple[str, ...]
    """What could not be read, in words."""
    offsets: tuple[tuple[str, float, float], ...] = ()
    """By how many seconds the clock of a host was found to be ahead of the trainer's, and the uncertainty of that."""
    unused: dict[str, int] = {}
    """Response tokens that no step trained on and that were generated for no step of ``steps``, by why (`Cost.wasted_tokens`)."""
