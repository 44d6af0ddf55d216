# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rollout and long tail: which trajectories hold the step, and why?"""

from __future__ import annotations

from typing import Final

from dashboards.boards import rollout_traces
from dashboards.parts import links, panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.bounds import find as find_bound
from dashboards.parts.panels import Panel
from dashboards.parts.queries import buckets, grouped, mean, mean_and, percentiles, quantile, query

_TRAJECTORY: Final = "verl_rollout_trajectory_duration_seconds"
_TRAINED: Final = '{run, verl_validate!="true"}'


def durations() -> Panel:
    """How are durations of trajectories spread?"""
    text = (
        "Trajectories by their duration, all chosen runs together, without those of validations. A diamond is one trajectory and opens its "
        "trace, where there is a trace store. A trajectory counts when it ends: what is still open is not here."
    )
    asked = buckets(f"sum by (le) (increase({_TRAJECTORY}_bucket{_TRAINED}[rate]))")
    return panels.heat("Durations of trajectories", text, "s", asked)


def quantiles() -> Panel:
    """How long is the tail?"""
    text = (
        "Percentiles of the trajectories that ended in the window, and the longest that the last step trained on. Percentiles are "
        "estimates between two bounds of the histogram; the longest is exact."
    )
    asked = percentiles(_TRAJECTORY, 0.5, 0.95, 0.99, matchers=_TRAINED)
    longest = query('verl_rollout_tail_duration_seconds{run, verl_aggregate="max"}', "{{verl_run_id}} longest")
    link = links.to_board("steps", "Anatomy of the steps of this run")
    return panels.lines("Duration of trajectories", text, "s", *asked, longest, width=12, low=0, links=[link])


def oldest() -> Panel:
    """How long has the oldest open trajectory been open?"""
    text = (
        "Age of the trajectory that has been open longest. A straight line upwards is a trajectory that does not end; it is not "
        "necessarily stuck, a long answer looks the same."
    )
    return panels.lines(
        "Oldest open trajectory",
        text,
        "s",
        grouped("max", "verl_run_id", "verl_rollout_oldest_age_seconds{run}"),
        low=0,
    )


def opened() -> Panel:
    """How many trajectories are open?"""
    text = (
        "Trajectories that are open now. The flat end of each hill is the tail: few trajectories, and all GPUs waiting."
    )
    return panels.lines(
        "Open trajectories", text, "short", grouped("sum", "verl_run_id", "verl_rollout_active{run}"), low=0
    )


def tail_share() -> Panel:
    """How much of the step goes to the slowest 5 %?"""
    text = (
        "Share of the last step in which all but the slowest 5 % of its trajectories had ended and the trainer waited for these. It is what "
        "cutting the tail could win at most; with small batches 5 % is one trajectory."
    )
    bounds = ((None, "transparent"), (find_bound("tail_share"), "orange"))
    asked = query("verl_rollout_tail_share_ratio{run}")
    return panels.lines("Step spent on the slowest 5 %", text, "percentunit", asked, low=0, high=1, steps=bounds)


def slowest() -> Panel:
    """What did the slowest trajectory spend its time on?"""
    text = (
        "Parts of the slowest trajectory of the last step. Parts can overlap, and what is in none of them is missing."
    )
    asked = query("verl_rollout_slowest_duration_seconds{run}", "{{verl_run_id}} {{verl_part}}")
    return panels.lines("Slowest trajectory, by part", text, "s", asked, width=12, low=0)


def slowest_tokens() -> Panel:
    """Was the slowest trajectory just long?"""
    text = (
        "Tokens of the slowest trajectory of the last step, and the longest response of the step. Where they are equal the tail is "
        "length; where they are not, look at tools, queue and preemptions."
    )
    own = query("verl_rollout_slowest_tokens{run}", "{{verl_run_id}} slowest, {{verl_token_type}}")
    longest = query("verl_response_length_max{run}", "{{verl_run_id}} longest response")
    return panels.lines("Slowest trajectory, tokens", text, "short", own, longest, width=12, low=0)


def turns() -> Panel:
    """How many turns has a trajectory?"""
    text = "Turns of the trajectories that ended in the window: mean and 95th percentile. One turn is one answer of the model."
    asked = mean_and("verl_rollout_turns", 0.95, exemplars=False)
    return panels.lines("Turns", text, "short", *asked, low=0)


def turn_duration() -> Panel:
    """How long is a turn?"""
    text = "Median and 95th percentile of one turn: the model's answer and the tools that it calls. Empty for single-turn agents."
    asked = percentiles("verl_rollout_turn_duration_seconds", 0.5, 0.95)
    return panels.lines("Duration of a turn", text, "s", *asked, low=0)


def tools() -> Panel:
    """Which tool is slow?"""
    text = "95th percentile of one call of each tool. It includes the wait for a free place in the tool's pool, if it has one."
    by = "verl_run_id, gen_ai_tool_name"
    asked = query(
        quantile(0.95, "verl_tool_call_duration_seconds", by), "{{verl_run_id}} {{gen_ai_tool_name}}", exemplars=True
    )
    return panels.lines("Tool calls, p95", text, "s", asked, low=0)


def tool_errors() -> Panel:
    """Which tool fails?"""
    text = "Share of calls that raised. Tools that answer with a text about their failure count as good: verl hides the exception."
    by = "by (verl_run_id, gen_ai_tool_name)"
    bad = f'sum {by} (rate(verl_tool_call_duration_seconds_count{{run, error_type!=""}}[window]))'
    every = f"(sum {by} (rate(verl_tool_call_duration_seconds_count{{run}}[window])) > 0)"
    asked = query(f"({bad} or {every} * 0) / {every}", "{{verl_run_id}} {{gen_ai_tool_name}}")
    return panels.lines("Tool calls that failed", text, "percentunit", asked, low=0, high=1)


def calls() -> Panel:
    """How long does the model take to answer?"""
    text = (
        "One call of the language model as the agent loop sees it: queue, prefill, decode and the way there and back."
    )
    asked = percentiles("gen_ai_client_operation_duration_seconds", 0.5, 0.95)
    return panels.lines("LLM calls", text, "s", *asked, low=0)


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
    asked = [query(mean(metric, window="[rate]"), f"{{{{verl_run_id}}}} {part}") for part, metric in parts.items()]
    sglang = query(mean("sglang:queue_time_seconds", window="[rate]"), "{{verl_run_id}} queue (SGLang)")
    return panels.lines("Queue, prefill, decode", text, "s", *asked, sglang, low=0)


def preemptions() -> Panel:
    """Does the engine throw work away?"""
    text = (
        "Requests that the engine put back into its queue, for a second. Each one is computed again: too little KV cache for so many at a "
        "time. Ours counts trajectories that ended, the engine's own counts at once."
    )
    ours = grouped("sum", "verl_run_id", "rate(verl_rollout_preemptions_total{run}[window])")
    vllm = grouped("sum", "verl_run_id", "rate(vllm:num_preemptions_total{run}[window])", "vLLM")
    sglang = grouped("sum", "verl_run_id", "rate(sglang:num_retracted_requests_total{run}[window])", "SGLang")
    return panels.lines("Preemptions", text, "short", ours, vllm, sglang, low=0)


def thrown_back() -> Panel:
    """Was the slowest trajectory thrown back?"""
    text = (
        "Preemptions of the slowest trajectory of the last step, and of all of them (mean and largest), where verl knows them. A slow "
        "trajectory with many is short of KV cache, and not long."
    )
    slowest = query("verl_rollout_slowest_preemptions{run}", "{{verl_run_id}} slowest")
    every = query("verl_rollout_trajectory_preemptions{run}", "{{verl_run_id}} {{verl_aggregate}}")
    return panels.lines("Preemptions of trajectories", text, "short", slowest, every, low=0)


def call_tokens() -> Panel:
    """How long are single calls?"""
    text = "Tokens that one call of the model reads and writes, mean. In a dialogue of many turns each call reads all that was before it."
    by = "verl_run_id, gen_ai_token_type"
    asked = query(mean("gen_ai_client_token_usage", by), "{{verl_run_id}} {{gen_ai_token_type}}")
    return panels.lines("Tokens of a call", text, "short", asked, low=0)


def staleness() -> Panel:
    """How old are the samples?"""
    text = (
        "Model versions between the generation of a sample and the step that trains on it: mean and 95th percentile, and the configured "
        "bound. 0 is on-policy. An old sample is not wrong, but its gradient is biased."
    )
    asked = [
        *mean_and("verl_rollout_staleness", 0.95, exemplars=False),
        query('verl_limit{run, verl_limit_name="staleness"}', "{{verl_run_id}} bound"),
    ]
    return panels.lines("Staleness", text, "short", *asked, low=0)


def lengths() -> Panel:
    """How long are the answers?"""
    text = "Tokens of the responses of trajectories that ended: median, 95th and 99th percentile, estimated."
    matchers = '{run, verl_token_type="response"}'
    asked = percentiles("verl_rollout_sequence_length", 0.5, 0.95, 0.99, matchers=matchers, exemplars=False)
    return panels.lines("Length of responses", text, "short", *asked, low=0)


def failed() -> Panel:
    """Do trajectories fail?"""
    text = (
        "Share of trajectories that ended with an error, by its class. verl goes on without them: the batch is smaller."
    )
    every = f"(sum by (verl_run_id) (rate({_TRAJECTORY}_count{{run}}[window])) > 0)"
    by_class = f'sum by (verl_run_id, error_type) (rate({_TRAJECTORY}_count{{run, error_type!=""}}[window]))'
    asked = query(f"{by_class} / on (verl_run_id) group_left () {every}", "{{verl_run_id}} {{error_type}}")
    none = query(f"{every} * 0", "{{verl_run_id}} none")
    return panels.lines("Trajectories that failed", text, "percentunit", asked, none, low=0, high=1)


def rewards() -> Panel:
    """How long does a reward take?"""
    text = "95th percentile of the reward of one sample, by data source. Where rewards run beside the rollout they cost no time."
    asked = query(
        quantile(0.95, "verl_reward_duration_seconds", "verl_run_id, verl_data_source"),
        "{{verl_run_id}} {{verl_data_source}}",
        exemplars=True,
    )
    return panels.lines("Rewards, p95", text, "s", asked, low=0)


BOARD: Final = Board(
    name="rollouts",
    title="verl / Rollout and long tail",
    text="Which trajectories hold the step, and why?",
    rows=(
        Row("The tail", (durations, quantiles, oldest, opened, tail_share, slowest, slowest_tokens)),
        Row("Turns, tools, rewards", (turns, turn_duration, tools, tool_errors, rewards, failed)),
        Row("Language model", (calls, engine_parts, preemptions, thrown_back, call_tokens, staleness, lengths)),
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
