# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Inference engines: what vLLM and SGLang say of themselves, beside what the agent loops see.

verl switches vLLM's own metrics off unless ``actor_rollout_ref.rollout.disable_log_stats=False``, and SGLang's unless
``rollout.prometheus.enable=True``.
"""

from __future__ import annotations

from typing import Final

from dashboards.parts import panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.names import label, legend, metric
from dashboards.parts.panels import Panel
from dashboards.parts.queries import grouped, mean, percentiles, quantile, query
from dashboards.parts.thresholds import find_threshold

_REPLICA: Final = f"{label.RUN_ID}, instance"
_HERE: Final = "{process}"


def _pair(
    title: str, text: str, unit: str, vllm: str, sglang: str, *, high: float | None = None, steps: panels.Steps = ()
) -> Panel:
    """Return the same question to both engines; only the one that runs answers."""
    targets = [query(vllm, "{{instance}}"), query(sglang, "{{instance}} (SGLang)")]
    return panels.timeseries(title, text, unit, *targets, low=0, high=high, steps=steps)


def running() -> Panel:
    """How many requests does each replica work on?"""
    text = "Requests in the batch of each replica. A replica at 0 while others work is idle: see the imbalance below."
    vllm = f"sum by ({_REPLICA}) (vllm:num_requests_running{_HERE})"
    return _pair("Running requests", text, "short", vllm, f"sum by ({_REPLICA}) (sglang:num_running_reqs{_HERE})")


def waiting() -> Panel:
    """How many requests wait?"""
    text = "Requests in the queue of each replica. A queue is not bad in itself: a full batch and a short queue is the best there is."
    vllm = f"sum by ({_REPLICA}) (vllm:num_requests_waiting{_HERE})"
    return _pair("Waiting requests", text, "short", vllm, f"sum by ({_REPLICA}) (sglang:num_queue_reqs{_HERE})")


def cache() -> Panel:
    """How full is the KV cache?"""
    text = "Used share of the KV cache. Near 1 the engine preempts: requests are put back and computed again."
    steps = ((None, "transparent"), (find_threshold("kv_cache"), "red"))
    vllm = f"max by ({_REPLICA}) (vllm:kv_cache_usage_perc{_HERE})"
    sglang = f"max by ({_REPLICA}) (sglang:token_usage{_HERE})"
    return _pair("KV cache", text, "percentunit", vllm, sglang, high=1, steps=steps)


def prefix_hits() -> Panel:
    """Is the prefix cache of use?"""
    text = "Share of prompt tokens that were found in the prefix cache. After each weight sync it starts from 0 again, because verl empties it."
    hits = f"sum by ({_REPLICA}) (rate(vllm:prefix_cache_hits_total{_HERE}[rate]))"
    queried = f"(sum by ({_REPLICA}) (rate(vllm:prefix_cache_queries_total{_HERE}[rate])) > 0)"
    return _pair(
        "Prefix cache hits",
        text,
        "percentunit",
        f"{hits} / {queried}",
        f"max by ({_REPLICA}) (sglang:cache_hit_rate{_HERE})",
        high=1,
    )


def preemptions() -> Panel:
    """Does a replica throw work away?"""
    text = "Preemptions (vLLM) and retractions (SGLang), for a second. Each of them is work that is done twice."
    vllm = f"sum by ({_REPLICA}) (rate(vllm:num_preemptions_total{_HERE}[rate]))"
    sglang = f"sum by ({_REPLICA}) (rate(sglang:num_retracted_requests_total{_HERE}[rate]))"
    return _pair("Preemptions", text, "short", vllm, sglang)


def generation() -> Panel:
    """How many tokens does each replica write?"""
    text = "Tokens written for a second, by replica, all requests together. Few requests give few tokens: it is no measure of the GPU."
    vllm = f"sum by ({_REPLICA}) (rate(vllm:generation_tokens_total{_HERE}[rate]))"
    return _pair(
        "Tokens written per second",
        text,
        "short",
        vllm,
        f"sum by ({_REPLICA}) (rate(sglang:generation_tokens_total{_HERE}[rate]))",
    )


def prompts() -> Panel:
    """How many tokens does each replica read?"""
    text = "Tokens of prompts for a second, by replica, those in the prefix cache included."
    vllm = f"sum by ({_REPLICA}) (rate(vllm:prompt_tokens_total{_HERE}[rate]))"
    return _pair(
        "Tokens read per second",
        text,
        "short",
        vllm,
        f"sum by ({_REPLICA}) (rate(sglang:prompt_tokens_total{_HERE}[rate]))",
    )


def _latency(title: str, text: str, metric: str) -> Panel:
    """Return the 95th percentile of a duration that both engines call by one name."""
    vllm, sglang = (quantile(0.95, f"{engine}:{metric}", _REPLICA, "[rate]", _HERE) for engine in ("vllm", "sglang"))
    return _pair(title, text, "s", vllm, sglang)


def first_token() -> Panel:
    """How long until the first token?"""
    text = "95th percentile of the time to the first token: queue and prefill. It is the engine's own time, without the way to it."
    return _latency("Time to the first token, p95", text, "time_to_first_token_seconds")


def between_tokens() -> Panel:
    """How long between two tokens?"""
    text = "95th percentile of the time between two tokens. It rises with the batch: more tokens in all, each of them later."
    return _latency("Time between tokens, p95", text, "inter_token_latency_seconds")


def whole_request() -> Panel:
    """How long is a request?"""
    text = "95th percentile of whole requests. Compare it with the calls of the agent loops: the rest is the way there and back."
    return _latency("Request, p95", text, "e2e_request_latency_seconds")


def queue_time() -> Panel:
    """How long does a request wait?"""
    text = "95th percentile of the time in the queue of the engine. Requests that wait in verl's load balancer are not in it."
    vllm = quantile(0.95, "vllm:request_queue_time_seconds", _REPLICA, "[rate]", _HERE)
    return _pair(
        "Time in the queue, p95",
        text,
        "s",
        vllm,
        quantile(0.95, "sglang:queue_time_seconds", _REPLICA, "[rate]", _HERE),
    )


def client_calls() -> Panel:
    """What do the agent loops see?"""
    text = "Calls of the language model as agent loops see them: median and 95th percentile, all replicas together."
    name = metric.GEN_AI_CLIENT_INFERENCE_DURATION
    targets = percentiles(name, 0.5, 0.95)
    return panels.timeseries("LLM calls, by agent loops", text, "s", *targets, low=0)


def on_the_way() -> Panel:
    """How much of a call is not the engine?"""
    text = (
        "Mean call as agent loops see it, less the mean request as the engine sees it: the load balancer, Ray, the network, tokenisation. "
        "Both means are of what ended in the window, so that it is only right for many calls."
    )
    seen = mean(metric.GEN_AI_CLIENT_INFERENCE_DURATION)
    vllm = query(f"{seen} - on ({label.RUN_ID}) ({mean('vllm:e2e_request_latency_seconds')})", legend.RUN_ID)
    sglang = query(
        f"{seen} - on ({label.RUN_ID}) ({mean('sglang:e2e_request_latency_seconds')})", f"{legend.RUN_ID} (SGLang)"
    )
    return panels.timeseries("Call outside of the engine", text, "s", vllm, sglang)


def imbalance() -> Panel:
    """Do replicas share the work?"""
    text = (
        "Tokens written by the busiest replica against the mean of all: 1 is even. At the end of a rollout it always rises, "
        "since few trajectories are left."
    )
    vllm = f"sum by ({_REPLICA}) (rate(vllm:generation_tokens_total{_HERE}[window]))"
    sglang = f"sum by ({_REPLICA}) (rate(sglang:generation_tokens_total{_HERE}[window]))"
    steps = ((None, "transparent"), (find_threshold("engine_imbalance"), "orange"))
    targets = [
        query(
            f"max by ({label.RUN_ID}) ({tokens}) / (avg by ({label.RUN_ID}) ({tokens}) > 0)", f"{legend.RUN_ID}{suffix}"
        )
        for tokens, suffix in ((vllm, ""), (sglang, " (SGLang)"))
    ]
    return panels.timeseries("Imbalance of replicas", text, "short", *targets, low=1, steps=steps)


def endings() -> Panel:
    """Why do requests end?"""
    text = "Requests that ended, for a second, by reason: stop is an end of text, length the bound of tokens, abort a cancellation by the client."
    target = grouped("sum", f"{label.RUN_ID}, finished_reason", "rate(vllm:request_success_total{process}[rate])")
    aborted = grouped("sum", label.RUN_ID, "rate(sglang:num_aborted_requests_total{process}[rate])", "aborted (SGLang)")
    return panels.timeseries("Ends of requests", text, "short", target, aborted, low=0)


def asleep() -> Panel:
    """When is the engine asleep?"""
    text = (
        "Where trainer and engine share GPUs verl puts vLLM to sleep while it trains. An engine that stays asleep while a rollout waits for "
        "it has not been woken. vLLM only."
    )
    target = grouped("min", "instance", 'vllm:engine_sleep_state{run, sleep_state="awake"}')
    names = {"0": ("asleep", "dark-purple"), "1": ("awake", "green")}
    return panels.state_timeline("Sleep", text, target, names=names, height=6)


BOARD: Final = Board(
    name="engines",
    title="verl / Inference engines",
    text="What vLLM and SGLang say of themselves, by replica, beside what the agent loops see. Engines are found through the run's targets.",
    rows=(
        Row("Load", (running, waiting, imbalance, asleep)),
        Row("Memory", (cache, prefix_hits, preemptions)),
        Row("Throughput", (generation, prompts, endings)),
        Row("Latency in the engine", (first_token, between_tokens, queue_time)),
        Row("Latency outside of it", (whole_request, client_calls, on_the_way)),
    ),
    variables=(
        variables.data_source,
        *variables.RUNS,
        variables.engine_role,
        variables.engine,
        variables.window,
    ),
)
