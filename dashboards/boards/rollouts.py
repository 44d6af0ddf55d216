# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rollout and long tail: which trajectories hold the step, and why?"""

from __future__ import annotations

from typing import Final

from dashboards.boards import rollout_traces
from dashboards.parts import links, panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.names import label, legend, metric, scalar
from dashboards.parts.panels import Panel
from dashboards.parts.queries import TRAINED, buckets, grouped, mean, mean_and, percentiles, quantile, query
from dashboards.parts.thresholds import find_threshold

_TRAJECTORY: Final = metric.ROLLOUT_TRAJECTORY_DURATION


def durations() -> Panel:
    """How are durations of trajectories spread?"""
    text = (
        "Trajectories by their duration, all chosen runs together, without those of validations. A diamond is one trajectory and opens its "
        "trace, where there is a trace store. A trajectory counts when it ends: what is still open is not here."
    )
    target = buckets(f"sum by (le) (increase({_TRAJECTORY}_bucket{TRAINED}[rate]))")
    return panels.heatmap("Durations of trajectories", text, "s", target)


def quantiles() -> Panel:
    """How long is the tail?"""
    text = (
        "Percentiles of the trajectories that ended in the window, and the longest that the last step trained on. Percentiles are "
        "estimates between two bounds of the histogram; the longest is that until verl handed the samples over."
    )
    targets = percentiles(_TRAJECTORY, 0.5, 0.95, 0.99, matchers=TRAINED)
    tail = f'{metric.ROLLOUT_TAIL_DURATION}{{run, {label.AGGREGATE}="max"}}'
    longest = grouped("max", label.RUN_ID, tail, "longest")
    link = links.to_board("steps", "Anatomy of the steps of this run")
    return panels.timeseries("Duration of trajectories", text, "s", *targets, longest, width=12, low=0, links=[link])


def oldest() -> Panel:
    """How long has the oldest open trajectory been open?"""
    text = (
        "Age of the trajectory that has been open longest, of a validation, too. A straight line upwards is a trajectory that does not end; it is not "
        "necessarily stuck, a long answer looks the same."
    )
    return panels.timeseries(
        "Oldest open trajectory",
        text,
        "s",
        grouped("max", label.RUN_ID, f"{metric.ROLLOUT_OLDEST_AGE}{{run}}"),
        low=0,
    )


def opened() -> Panel:
    """How many trajectories are open?"""
    text = "Trajectories that are open now, those of validations included. The flat end of each hill is the tail: few trajectories, and all GPUs waiting."
    return panels.timeseries(
        "Open trajectories", text, "short", grouped("sum", label.RUN_ID, f"{metric.ROLLOUT_ACTIVE}{{run}}"), low=0
    )


def tail_share() -> Panel:
    """How much of the step goes to the slowest 5 %?"""
    text = (
        "Share of the last step, from its start to its end, in which all but the slowest 5 % of its trajectories had ended and the trainer waited "
        "for these. It is what cutting the tail could win at most; with small batches 5 % is one trajectory."
    )
    steps = ((None, "transparent"), (find_threshold("tail_share"), "orange"))
    target = query(f"{metric.ROLLOUT_TAIL_SHARE}{{run}}")
    return panels.timeseries("Step spent on the slowest 5 %", text, "percentunit", target, low=0, high=1, steps=steps)


def slowest() -> Panel:
    """What did the slowest trajectory spend its time on?"""
    text = (
        "Parts of the slowest trajectory of the last step. Parts can overlap, and what is in none of them is missing. Where several processes "
        "of an own loop report one, each part is the longest of them."
    )
    target = grouped("max", f"{label.RUN_ID}, {label.PART}", f"{metric.ROLLOUT_SLOWEST_DURATION}{{run}}")
    return panels.timeseries("Slowest trajectory, by part", text, "s", target, width=12, low=0)


def slowest_tokens() -> Panel:
    """Was the slowest trajectory just long?"""
    text = (
        "Tokens of the slowest trajectory of the last step, and the longest response of the step, both with the answers of tools. Where they are equal the tail is "
        "length; where they are not, look at tools, queue and preemptions."
    )
    tokens = f"max by ({label.RUN_ID}, {label.TOKEN_TYPE}) ({metric.ROLLOUT_SLOWEST_TOKENS}{{run}})"
    own = query(tokens, f"{legend.RUN_ID} slowest, {legend.TOKEN_TYPE}")
    longest = query(f"{scalar('response_length/max')}{{run}}", f"{legend.RUN_ID} longest response")
    return panels.timeseries("Slowest trajectory, tokens", text, "short", own, longest, width=12, low=0)


def turns() -> Panel:
    """How many turns has a trajectory?"""
    text = (
        "Turns of the trajectories that ended in the window, without those of validations: mean and 95th percentile. A turn is a call of the "
        "model. verl's num_turns counts messages, of user, model and tools: about twice as many."
    )
    targets = mean_and(metric.ROLLOUT_TURNS, 0.95, matchers=TRAINED, exemplars=False)
    return panels.timeseries("Turns", text, "short", *targets, low=0)


def turn_duration() -> Panel:
    """How long is a turn?"""
    text = (
        "Median and 95th percentile of one turn, without those of validations: the call of the model and the tools that it calls. Empty for "
        "single-turn agents."
    )
    targets = percentiles(metric.ROLLOUT_TURN_DURATION, 0.5, 0.95, matchers=TRAINED)
    return panels.timeseries("Duration of a turn", text, "s", *targets, low=0)


def tools() -> Panel:
    """Which tool is slow?"""
    text = (
        "95th percentile of one call of each tool, without those of validations. It includes the wait for a free place in the tool's pool, if "
        "it has one."
    )
    by = f"{label.RUN_ID}, {label.GEN_AI_TOOL}"
    target = query(
        quantile(0.95, metric.TOOL_CALL_DURATION, by, matchers=TRAINED),
        f"{legend.RUN_ID} {legend.GEN_AI_TOOL}",
        exemplars=True,
    )
    return panels.timeseries("Tool calls, p95", text, "s", target, low=0)


def setups() -> Panel:
    """Which tool needs long to be ready?"""
    text = (
        "Mean time in which the environment of a tool is made for one call (verl's BaseTool.create), a part of the call, without those of "
        "validations. Empty for function tools, which have none."
    )
    by = f"by ({label.RUN_ID}, {label.GEN_AI_TOOL})"
    spent = f"sum {by} (rate({metric.TOOL_SETUP_TIME}{TRAINED}[window]))"
    calls = f"(sum {by} (rate({metric.TOOL_CALL_DURATION}_count{TRAINED}[window])) > 0)"
    target = query(f"{spent} / {calls}", f"{legend.RUN_ID} {legend.GEN_AI_TOOL}")
    return panels.timeseries("Set-up of tools", text, "s", target, width=12, low=0)


def ends() -> Panel:
    """How do trajectories end?"""
    text = (
        "Trajectories that ended in the window, by how, without those of validations: by the model (finished), at a limit of tokens or turns, by a "
        "time-out, the exception of a tool or another one, or because the engine dropped their last request (aborted)."
    )
    by = f"by ({label.RUN_ID}, {label.TRAJECTORY_END})"
    target = query(f"sum {by} (increase({metric.ROLLOUT_TRAJECTORIES}{TRAINED}[window]))", legend.TRAJECTORY_END)
    return panels.stacked("Trajectories by their end", text, "short", target)


def dropped() -> Panel:
    """How many trajectories are generated in vain?"""
    text = (
        "Trajectories of the window that no step trains on: removed by verl's replay buffer as stale, without a signal, failed or surplus, or "
        "received by a step that trained without them (filtered)."
    )
    by = f"by ({label.RUN_ID}, {label.REASON})"
    target = query(f"sum {by} (increase({metric.ROLLOUT_DROPPED}{{run}}[window]))", legend.REASON)
    return panels.stacked("Trajectories that were dropped", text, "short", target)


def tool_errors() -> Panel:
    """Which tool fails?"""
    text = (
        "Share of calls that failed, those of validations included. verl answers the model with a text where a tool raises or runs out of time: "
        "these calls count as failed, too. A tool that describes its failure in an answer of its own counts as good."
    )
    by = f"by ({label.RUN_ID}, {label.GEN_AI_TOOL})"
    bad = f'sum {by} (rate({metric.TOOL_CALL_DURATION}_count{{run, {label.ERROR_TYPE}!=""}}[window]))'
    every = f"(sum {by} (rate({metric.TOOL_CALL_DURATION}_count{{run}}[window])) > 0)"
    target = query(f"({bad} or {every} * 0) / {every}", f"{legend.RUN_ID} {legend.GEN_AI_TOOL}")
    return panels.timeseries("Tool calls that failed", text, "percentunit", target, width=12, low=0, high=1)


def calls() -> Panel:
    """How long does the model take to answer?"""
    text = (
        "One call of the language model as the agent loop sees it, without those of validations: queue, prefill, decode and the way there and "
        "back."
    )
    targets = percentiles(metric.GEN_AI_CLIENT_INFERENCE_DURATION, 0.5, 0.95, matchers=TRAINED)
    return panels.timeseries("LLM calls", text, "s", *targets, low=0)


def engine_parts() -> Panel:
    """Does a call wait, read or write?"""
    text = (
        "Mean time of a request in the engine's queue, in prefill and in decode, as vLLM counts it; for SGLang the queue only. A long queue "
        "wants more replicas or fewer requests at a time; a long decode is the length of the answer."
    )
    parts = {
        "queue": "vllm:request_queue_time_seconds",
        "prefill": "vllm:request_prefill_time_seconds",
        "decode": "vllm:request_decode_time_seconds",
    }
    targets = [query(mean(metric, window="[rate]"), f"{legend.RUN_ID} {part}") for part, metric in parts.items()]
    sglang = query(mean("sglang:queue_time_seconds", window="[rate]"), f"{legend.RUN_ID} queue (SGLang)")
    return panels.timeseries("Queue, prefill, decode", text, "s", *targets, sglang, low=0)


def preemptions() -> Panel:
    """Does the engine throw work away?"""
    text = (
        "Requests that the engine put back into its queue, for a second, those of validations included. Each one is computed again: too little KV cache for so many at a "
        "time. Ours counts trajectories that ended, the engine's own counts at once."
    )
    ours = grouped("sum", label.RUN_ID, f"rate({metric.ROLLOUT_PREEMPTIONS}{{run}}[window])")
    vllm = grouped("sum", label.RUN_ID, "rate(vllm:num_preemptions_total{run}[window])", "vLLM")
    sglang = grouped("sum", label.RUN_ID, "rate(sglang:num_retracted_requests_total{run}[window])", "SGLang")
    return panels.timeseries("Preemptions", text, "short", ours, vllm, sglang, low=0)


def thrown_back() -> Panel:
    """Was the slowest trajectory thrown back?"""
    text = (
        "Preemptions of the slowest trajectory of the last step, and of all of them (mean and largest), where verl knows them. A slow "
        "trajectory with many is short of KV cache, and not long."
    )
    slowest = query(f"{metric.ROLLOUT_SLOWEST_PREEMPTIONS}{{run}}", f"{legend.RUN_ID} slowest")
    every = query(f"{metric.ROLLOUT_TRAJECTORY_PREEMPTIONS}{{run}}", f"{legend.RUN_ID} {legend.AGGREGATE}")
    return panels.timeseries("Preemptions of trajectories", text, "short", slowest, every, low=0)


def call_tokens() -> Panel:
    """How long are single calls?"""
    text = (
        "Tokens that one call of the model reads, of these from the cache of the engine, and writes, mean, without calls of validations. In a dialogue of many turns each call reads "
        "all that was before it."
    )
    calls = f"sum by ({label.RUN_ID}) (increase({metric.GEN_AI_CLIENT_INFERENCE_DURATION}_count{TRAINED}[window]))"
    counters = {
        "input": metric.GEN_AI_CLIENT_INPUT_TOKENS,
        "cached": metric.GEN_AI_CLIENT_CACHED_TOKENS,
        "output": metric.GEN_AI_CLIENT_OUTPUT_TOKENS,
    }
    targets = [
        query(
            f"sum by ({label.RUN_ID}) (increase({tokens}{TRAINED}[window])) / ({calls} > 0)", f"{legend.RUN_ID} {kind}"
        )
        for kind, tokens in counters.items()
    ]
    return panels.timeseries("Tokens of a call", text, "short", *targets, low=0)


def staleness() -> Panel:
    """How old are the samples?"""
    text = (
        "Model versions between the generation of a sample and the step that trains on it: mean and 95th percentile, and the bound: the "
        "oldest that verl's asynchronous v1 trainers train on; other trainers have none. 0 is on-policy. An old sample is not wrong, but its gradient is biased. Behind the sync: versions by which engines served older "
        "weights than were synced before a trajectory began; anything but 0 is wrong."
    )
    targets = [
        *mean_and(metric.ROLLOUT_STALENESS, 0.95, exemplars=False),
        query(f'{metric.LIMIT}{{run, {label.LIMIT}="staleness"}}', f"{legend.RUN_ID} bound"),
        query(f"{metric.ROLLOUT_WEIGHTS_BEHIND}{{run}}", f"{legend.RUN_ID} behind the sync"),
    ]
    return panels.timeseries("Staleness", text, "short", *targets, low=0)


def lengths() -> Panel:
    """How long are the answers?"""
    text = (
        "Tokens of the responses of trajectories that ended, without those of validations: median, 95th and 99th percentile, estimated. "
        "Answers of tools are in them, and count towards the limit."
    )
    matchers = f'{{run, {label.TOKEN_TYPE}="response", {label.VALIDATE}!="true"}}'
    targets = percentiles(metric.ROLLOUT_SEQUENCE_LENGTH, 0.5, 0.95, 0.99, matchers=matchers, exemplars=False)
    return panels.timeseries("Length of responses", text, "short", *targets, low=0)


def failed() -> Panel:
    """Do trajectories fail?"""
    text = "Share of trajectories that ended with an error, by its class, those of validations included. verl goes on without them: the batch is smaller."
    every = f"(sum by ({label.RUN_ID}) (rate({_TRAJECTORY}_count{{run}}[window])) > 0)"
    by_class = f'sum by ({label.RUN_ID}, {label.ERROR_TYPE}) (rate({_TRAJECTORY}_count{{run, {label.ERROR_TYPE}!=""}}[window]))'
    target = query(f"{by_class} / on ({label.RUN_ID}) group_left () {every}", f"{legend.RUN_ID} {legend.ERROR_TYPE}")
    none = query(f"{every} * 0", f"{legend.RUN_ID} none")
    return panels.timeseries("Trajectories that failed", text, "percentunit", target, none, width=12, low=0, high=1)


def rewards() -> Panel:
    """How long does a reward take?"""
    text = (
        "95th percentile of the time that the score of one sample takes, by data source, without those of validations. Where scores are computed "
        "beside the rollout they cost no time."
    )
    target = query(
        quantile(0.95, metric.REWARD_DURATION, f"{label.RUN_ID}, {label.DATA_SOURCE}", matchers=TRAINED),
        f"{legend.RUN_ID} {legend.DATA_SOURCE}",
        exemplars=True,
    )
    return panels.timeseries("Rewards, p95", text, "s", target, width=12, low=0)


# -- TransferQueue's own series: the store through which samples go from the rollout to the trainer --

_UNIT: Final = f"{label.RUN_ID}, storage_unit_id"


def queue_samples() -> Panel:
    """How many samples does TransferQueue hold?"""
    text = "Samples in each partition. One that only grows is not cleared: what was trained on stays in memory."
    target = query(f"sum by ({label.RUN_ID}, partition_id) (tq_partition_samples_total{{run}})", "{{partition_id}}")
    return panels.timeseries("Samples in TransferQueue", text, "short", target, low=0)


def queue_progress() -> Panel:
    """How much of what was asked for is there?"""
    text = "Share of the samples of each partition that have been written. A partition that stays below 1 waits for rollouts."
    labels = f"{label.RUN_ID}, partition_id"
    target = query(f"max by ({labels}) (tq_partition_production_progress{{run}})", "{{partition_id}}")
    return panels.timeseries("Progress of partitions", text, "percentunit", target, low=0, high=1)


def queue_storage() -> Panel:
    """Are the storage units full?"""
    text = "Used share of the keys of each storage unit. At 1 a unit refuses new samples."
    target = query(f"max by ({_UNIT}) (tq_storage_utilization_ratio{{run}})", "{{storage_unit_id}}")
    return panels.timeseries("Storage of TransferQueue", text, "percentunit", target, low=0, high=1)


def queue_memory() -> Panel:
    """How much memory do the processes of TransferQueue need?"""
    text = "Resident memory of the storage units and of the controller."
    targets = [
        query(f"max by ({_UNIT}) (tq_storage_memory_rss_bytes{{run}})", "{{storage_unit_id}}"),
        query(f"max by ({label.RUN_ID}) (tq_controller_memory_rss_bytes{{run}})", "controller"),
    ]
    return panels.timeseries("Memory of TransferQueue", text, "bytes", *targets, low=0)


def queue_requests() -> Panel:
    """Do requests to TransferQueue take long?"""
    text = "99th percentile of the requests of each kind, the slowest unit. TransferQueue computes it; it is over all requests since its start."
    target = query(f"max by ({label.RUN_ID}, op_type) (tq_storage_request_latency_p99{{run}})", "{{op_type}}")
    return panels.timeseries("Requests to TransferQueue, p99", text, "s", target, low=0)


def queue_rate() -> Panel:
    """Which requests does the controller of TransferQueue get?"""
    text = "Requests to the controller for a second, by kind. Failed ones are in tq_controller_request_errors_total, which has no series without any."
    target = query(f"sum by ({label.RUN_ID}, op_type) (rate(tq_controller_request_total{{run}}[rate]))", "{{op_type}}")
    return panels.timeseries("Requests to TransferQueue", text, "short", target, low=0)


BOARD: Final = Board(
    name="rollouts",
    title="verl / Rollout and long tail",
    text="Which trajectories hold the step, and why?",
    rows=(
        Row("The tail", (durations, quantiles, oldest, opened, tail_share, slowest, slowest_tokens)),
        Row(
            "Turns, tools, rewards", (turns, turn_duration, tools, setups, tool_errors, rewards, failed, ends, dropped)
        ),
        Row("Language model", (calls, engine_parts, preemptions, thrown_back, call_tokens, staleness, lengths)),
        Row(
            "TransferQueue (its own series: transfer_queue.metrics.enabled=True)",
            (queue_samples, queue_progress, queue_storage, queue_memory, queue_requests, queue_rate),
            folded=True,
        ),
        Row("Traces (need a Tempo)", rollout_traces.PANELS, folded=True),
    ),
    variables=(
        variables.data_source,
        variables.trace_source,
        *variables.RUNS,
        variables.window,
        variables.slow,
    ),
)
