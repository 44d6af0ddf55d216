# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Step anatomy: where does the time of a step go, and on which rank?"""

from __future__ import annotations

from typing import Final

from dashboards.boards import phases as phases_of
from dashboards.parts import links, panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.names import label, legend, metric
from dashboards.parts.panels import Panel
from dashboards.parts.queries import buckets, grouped, mean, mean_and, part, query
from dashboards.parts.thresholds import find_threshold

_CALLS: Final = f"by ({label.RUN_ID}, instance, {label.WORKER_METHOD})"
_PER_CALL: Final = (
    f"sum {_CALLS} (increase({metric.WORKER_CALL_TIME}{{process}}[window])) "
    f"/ (sum {_CALLS} (increase({metric.WORKER_CALLS}{{process}}[window])) > 0)"
)
"""Seconds of one call on each rank. A call counts when it ends, so that only a mean over whole calls means something."""
_STEPS: Final = f"(sum by ({label.RUN_ID}) (increase({metric.STEP_DURATION}_count{{run}}[window])) > 0)"


def durations() -> Panel:
    """How are durations of steps spread?"""
    text = "Steps by their duration; all chosen runs together. A diamond opens the trace of one step, where there is a trace store."
    target = buckets(f"sum by (le) (increase({metric.STEP_DURATION}_bucket{{run}}[window]))")
    return panels.heatmap("Durations of steps", text, "s", target)


def step_duration() -> Panel:
    """How long is a step?"""
    text = "Mean and percentiles in the window. Percentiles are estimates between two bounds of the histogram."
    targets = mean_and(metric.STEP_DURATION, 0.5, 0.95)
    return panels.timeseries("Duration of a step", text, "s", *targets, width=12, low=0)


def phases() -> Panel:
    """Where does the time of a step go?"""
    text = (
        "Seconds of a step in each phase. It is the host's time: a phase that waits for a GPU is as long as the wait. "
        "Phases that lie in one another count twice."
    )
    return phases_of.per_step(text)


def timeline() -> Panel:
    """Which phase was open when?"""
    text = (
        "Phases that were open when they were looked at, every few seconds. Shorter ones may be missing between two looks. "
        "A phase that is longer than it used to be stands still or waits: see the calls below."
    )
    return phases_of.opened("Phases over time", text)


def share() -> Panel:
    """Which share of the step is each phase?"""
    text = "Share of the time of all steps in the window. The sum is below 1 where no phase was open, above 1 where two were."
    spent = f"sum by ({label.RUN_ID}, {label.PHASE}) (increase({metric.PHASE_DURATION}_sum{{run}}[window]))"
    whole = f"sum by ({label.RUN_ID}) (increase({metric.STEP_DURATION}_sum{{run}}[window]))"
    target = query(part(spent, whole), f"{legend.RUN_ID} {legend.PHASE}")
    return panels.timeseries("Share of each phase", text, "percentunit", target, width=12, low=0)


def failures() -> Panel:
    """Which phases failed?"""
    text = "Phases and steps that ended with an error, by its class. A run may have gone on after it."
    phase = f'sum by ({label.RUN_ID}, {label.PHASE}, {label.ERROR_TYPE}) (increase({metric.PHASE_DURATION}_count{{run, {label.ERROR_TYPE}!=""}}[window]))'
    step = f'sum by ({label.RUN_ID}, {label.ERROR_TYPE}) (increase({metric.STEP_DURATION}_count{{run, {label.ERROR_TYPE}!=""}}[window]))'
    targets = [
        query(phase, f"{legend.RUN_ID} {legend.PHASE} {legend.ERROR_TYPE}"),
        query(step, f"{legend.RUN_ID} step {legend.ERROR_TYPE}"),
    ]
    return panels.timeseries("Errors", text, "short", *targets, width=12, low=0)


def between() -> Panel:
    """How long is the time between two steps?"""
    text = (
        "Time for each step that lies between the end of a step and the start of the next one, and what trackers and the data loader take of it. "
        "A data loader that is asked inside of a step is in that step instead."
    )
    targets = [
        query(
            f"sum by ({label.RUN_ID}) (increase({metric.STEP_BETWEEN_TIME}{{run}}[window])) / {_STEPS}",
            f"{legend.RUN_ID} between",
        ),
        query(
            f"sum by ({label.RUN_ID}, {label.TRACKER}) (increase({metric.LOGGING_TIME}{{run}}[window])) "
            f"/ on ({label.RUN_ID}) group_left () {_STEPS}",
            f"{legend.RUN_ID} logging {legend.TRACKER}",
        ),
        query(
            f"sum by ({label.RUN_ID}) (increase({metric.DATA_LOADING_TIME}{{run}}[window])) / {_STEPS}",
            f"{legend.RUN_ID} data loading",
        ),
    ]
    return panels.timeseries("Between two steps", text, "s", *targets, width=12, low=0)


def change() -> Panel:
    """Did something become slower all of a sudden?"""
    text = (
        "The last three steps as a multiple of the median of the 20 before, counted in steps: median time of a step, and mean time that its "
        "trajectories waited for the model (generation) and for tools; the largest size of the policy loss. The line is the threshold of the "
        "alert Slowdown."
    )
    target = query(f"{metric.TRAINING_CHANGE}{{run}}", f"{legend.RUN_ID} {legend.METRIC}")
    steps = ((None, "transparent"), (find_threshold("slow_factor"), "orange"))
    return panels.timeseries("Against the 20 steps before", text, "short", target, width=12, low=0, steps=steps)


def held() -> Panel:
    """What held the steps?"""
    text = "Time by which steps took longer or began later than those before, for each step, by what held them. `verl-otel explain` has the evidence."
    spent = (
        f"sum by ({label.RUN_ID}, {label.HELD_KIND}, {label.HELD_CAUSE}) (increase({metric.STEP_HELD}{{run}}[window]))"
    )
    target = query(
        f"{spent} / on ({label.RUN_ID}) group_left () {_STEPS}",
        f"{legend.RUN_ID} {legend.HELD_KIND} {legend.HELD_CAUSE}",
    )
    return panels.timeseries("Held by", text, "s", target, width=12, low=0)


def goodput() -> Panel:
    """Which share of the time is training?"""
    text = (
        "Share of the time since telemetry began in the process that trains that was spent in steps. Start-up, validations, the time between steps, "
        "and what held steps are lost."
    )
    return panels.timeseries("Goodput", text, "percentunit", query(f"{metric.GOODPUT}{{run}}"), width=12, low=0)


def blocked() -> Panel:
    """Was an event loop blocked?"""
    text = (
        "Share of the time in which the event loop of an instance ran no callback, by reason. With the reason callback, code without `await` "
        "holds all trajectories of the process; `verl-otel explain` names it. The reasons collection, cpu, interpreter and process are pauses of the whole process. A trainer that is a coroutine blocks its own loop as planned."
    )
    target = grouped("sum", f"instance, {label.REASON}", f"rate({metric.EVENT_LOOP_BLOCKED}{{process}}[window])")
    return panels.timeseries("Blocked event loops", text, "percentunit", target, width=12, low=0)


def lag() -> Panel:
    """How late do the event loops run their callbacks?"""
    text = (
        "How much later than asked the event loop of an instance ran a callback in the last minute: median, and the latest one. All "
        "trajectories and rewards of the instance wait that long at each `await`. A trainer that is a coroutine is late by whole phases, as planned."
    )
    target = grouped("max", f"instance, {label.AGGREGATE}", f"{metric.EVENT_LOOP_LAG}{{process}}")
    return panels.timeseries("Lag of event loops", text, "s", target, width=12, low=0)


def calls() -> Panel:
    """How long does a worker's method take on each rank?"""
    text = (
        "Mean time of one call, host time, on every chosen instance. A call counts when it ends. Work that the GPU does later, after the "
        "call returned, is not in it."
    )
    target = query(_PER_CALL, f"{{{{instance}}}} {legend.WORKER_METHOD}")
    return panels.timeseries("Worker calls, by rank", text, "s", target, width=12, low=0)


def late_ranks() -> Panel:
    """Does one rank keep the others waiting?"""
    text = (
        "Slowest rank against the median rank, for each method: 1 is even. In collective calls the late rank is often the shortest one, "
        "because the others wait for it inside the call: `verl-otel explain` tells them apart."
    )
    slowest = f"max by ({label.RUN_ID}, {label.WORKER_METHOD}) ({_PER_CALL})"
    median = f"quantile by ({label.RUN_ID}, {label.WORKER_METHOD}) (0.5, {_PER_CALL})"
    target = query(f"{slowest} / ({median} > 0)", f"{legend.RUN_ID} {legend.WORKER_METHOD}")
    steps = ((None, "transparent"), (find_threshold("rank_late_factor"), "orange"))
    return panels.timeseries("Slowest rank against the median", text, "short", target, width=12, low=1, steps=steps)


def busy() -> Panel:
    """Which share of the time is each rank inside a call?"""
    text = (
        "Time inside worker methods, as a share of the window. The rest is waiting for the trainer, for other roles or for data. "
        "A call that is longer than the window appears in one piece when it ends, and may show as more than 1."
    )
    target = grouped("sum", "instance", f"rate({metric.WORKER_CALL_TIME}{{process}}[window])")
    return panels.timeseries("Share of time in calls, by rank", text, "percentunit", target, width=12, low=0)


def sync() -> Panel:
    """How long does the weight sync take?"""
    text = "Sending new weights to the rollout replicas: mean and 95th percentile. Where it overlaps with other work it is not lost time."
    targets = mean_and(metric.WEIGHT_SYNC_DURATION, 0.95)
    return panels.timeseries("Weight sync", text, "s", *targets, low=0)


def sync_share() -> Panel:
    """Which share of a step is the weight sync?"""
    text = "Seconds of weight sync for each step. It tells what a faster backend could save at most."
    spent = f"sum by ({label.RUN_ID}) (increase({metric.WEIGHT_SYNC_DURATION}_sum{{run}}[window]))"
    return panels.timeseries("Weight sync for each step", text, "s", query(f"{spent} / {_STEPS}"), low=0)


def payload() -> Panel:
    """How many bytes does a sync send?"""
    text = "Bytes of the last sync: those of whole tensors that each rank hands over, and what was sent where only changes are (changes)."
    whole = grouped("max", label.RUN_ID, f"{metric.WEIGHT_SYNC_SIZE}{{run}}")
    changes = query(f"{metric.WEIGHT_SYNC_PAYLOAD}{{run}}", f"{legend.RUN_ID} changes")
    return panels.timeseries("Weight sync, bytes", text, "bytes", whole, changes, low=0)


def sync_parts() -> Panel:
    """Which part of a weight sync is slow?"""
    text = (
        "Host seconds of rank 0 in each part of its last sync: a rank makes whole tensors (gather) and sends them or loads them into the "
        "engine; a replica with GPUs of its own receives and loads them. Bytes divided by their sum is the rate."
    )
    target = grouped("max", f"{label.RUN_ID}, {label.PART}", f"{metric.WEIGHT_SYNC_PART_DURATION}{{run}}")
    return panels.timeseries("Weight sync, parts", text, "s", target, width=12, low=0)


def checkpoints() -> Panel:
    """How long does a checkpoint take?"""
    text = "Mean duration of the checkpoints of the window. Training stands still meanwhile, unless they are written in the background."
    target = query(mean(metric.CHECKPOINT_DURATION))
    return panels.timeseries("Checkpoint", text, "s", target, width=12, low=0)


def checkpoint_age() -> Panel:
    """How much work would be lost now?"""
    text = "Time since the last checkpoint of runs that have not ended: what a crash now would cost. It is empty before the first one."
    saved = f"{metric.CHECKPOINT_LAST_TIMESTAMP}{{run}} unless on ({label.RUN_ID}) {metric.RUN_STATE}{{run}} > 1"
    return panels.timeseries(
        "Age of the checkpoint", text, "s", grouped("max", label.RUN_ID, f"time() - ({saved})"), width=12, low=0
    )


def validation() -> Panel:
    """How long does a validation take?"""
    text = "Mean duration of the validations of the window. They lie outside of steps."
    return panels.timeseries("Validation", text, "s", query(mean(metric.VALIDATION_DURATION)), width=12, low=0)


def stalls() -> Panel:
    """Did something stand still or die?"""
    text = (
        "Stalls and crashes that were found, by reason, since the start. Stacks and open work are in the run directory."
    )
    target = grouped("sum", f"{label.RUN_ID}, reason", f"{metric.STALLS}{{run}}")
    return panels.timeseries(
        "Stalls and crashes", text, "short", target, width=12, low=0, links=[links.to_board("overview", "Overview")]
    )


def restarts() -> Panel:
    """Were workers started again?"""
    text = "Processes that Ray started again in the place of one that had died, since the start. Each has lost what it had in memory."
    target = grouped("sum", f"{label.RUN_ID}, {label.ROLE}, reason", f"{metric.WORKER_RESTARTS}{{run}}")
    return panels.timeseries("Restarted workers", text, "short", target, width=12, low=0)


BOARD: Final = Board(
    name="steps",
    title="verl / Step anatomy",
    text="Where does the time of a step go, and on which rank?",
    rows=(
        Row("Steps", (durations, step_duration)),
        Row("Phases", (phases, timeline, share, failures)),
        Row("Between steps, and what held them", (between, held, change, goodput, blocked, lag)),
        Row("Ranks", (calls, late_ranks, busy)),
        Row(
            "Weight sync, checkpoint, validation",
            (sync, sync_share, payload, sync_parts, validation, checkpoints, checkpoint_age),
        ),
        Row("Standing still", (stalls, restarts)),
    ),
    variables=(
        variables.data_source,
        *variables.RUNS,
        variables.role,
        variables.instance,
        variables.window,
    ),
)
