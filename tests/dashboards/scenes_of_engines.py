# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Alerts of the inference engines, vLLM and SGLang alike."""

from tests.dashboards.scenes import Says, Scene
from tests.dashboards.trainings import RUN


def server(number):
    return f'job="verl",instance="{RUN}/llm_server-{number}",verl_run_id="{RUN}",model_name="tiny"'


LABELS = {"verl_run_id": RUN, "instance": f"{RUN}/llm_server-0"}


def parts(*pieces):
    """Return values from (how many, value) pieces."""
    return [value for count, value in pieces for _ in range(count)]


def queue():
    """A burst is gone after ten minutes, and 1.6 times as many as run may wait for long. Two engines are one server."""
    waiting = parts((20, 0), (20, 300), (40, 200), (60, 300), (40, 0))
    return Scene(
        "requests queue at vLLM",
        {
            f'vllm:num_requests_waiting{{{server(0)},engine="0"}}': waiting,
            f'vllm:num_requests_waiting{{{server(0)},engine="1"}}': waiting,
            f'vllm:num_requests_running{{{server(0)},engine="0"}}': [128] * 180,
            f'vllm:num_requests_running{{{server(0)},engine="1"}}': [128] * 180,
        },
        {9: set(), 19: set(), 39: set(), 50: set(), 57: {"EngineQueueLong"}, 75: set()},
        (Says(60, "EngineQueueLong", LABELS, f"{RUN}/llm_server-0: 600 requests wait, many more than run"),),
    )


def cache():
    """A full cache is what it is for, and some wait for other things; both together are a limit."""
    return Scene(
        "the KV cache of SGLang is full",
        {
            f"sglang:token_usage{{{server(0)}}}": parts((100, 0.99), (41, 0.95)),
            f"sglang:num_queue_reqs{{{server(0)}}}": parts((40, 0), (40, 3), (20, 0), (41, 3)),
            f"sglang:num_running_reqs{{{server(0)}}}": [128] * 141,
        },
        {19: set(), 23: set(), 27: {"KVCacheFull"}, 39: {"KVCacheFull"}, 45: set(), 60: set(), 69: set()},
        (Says(30, "KVCacheFull", LABELS, f"{RUN}/llm_server-0: the KV cache is 99% full, and requests wait for it"),),
    )


def preemptions():
    """Ten at once are nothing, nor is one every other second; two per second are a storm."""
    total = [*parts((40, 0), (20, 10)), *(10 + 60 * n for n in range(60)), *parts((61, 3550))]
    total += [3550 + 15 * n for n in range(60)]
    return Scene(
        "vLLM preempts",
        {f'vllm:num_preemptions_total{{{server(0)},engine="0"}}': total},
        {19: set(), 25: set(), 40: {"PreemptionStorm"}, 58: {"PreemptionStorm"}, 68: set(), 105: set(), 119: set()},
        (
            Says(
                50,
                "PreemptionStorm",
                LABELS,
                f"{RUN}/llm_server-0: 2.0 requests per second are thrown out and computed again",
            ),
        ),
    )


def imbalance():
    """At the end of a batch one replica has the last requests; later one has most of them while others have none."""
    names = [server(number) for number in range(4)]
    running = [parts((20, 64), (40, 20 if number == 0 else 0), (80, 100 if number == 0 else 4)) for number in range(4)]
    waiting = [parts((60, 0), (40, 60 if number == 0 else 0), (40, 0)) for number in range(4)]
    series = {f"vllm:num_requests_running{{{name}}}": values for name, values in zip(names, running, strict=True)}
    series |= {f"vllm:num_requests_waiting{{{name}}}": values for name, values in zip(names, waiting, strict=True)}
    return Scene(
        "one replica has most requests",
        series,
        {9: set(), 28: set(), 42: {"EngineImbalance"}, 49: {"EngineImbalance"}, 52: set()},
        (
            Says(
                45,
                "EngineImbalance",
                LABELS,
                f"{RUN}/llm_server-0: 160 requests, more than twice the mean of all replicas, and some wait",
            ),
        ),
    )


SCENES = [queue(), cache(), preemptions(), imbalance()]
