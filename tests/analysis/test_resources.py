# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What two runs used and produced, and how a larger one scales."""

import pytest

from tests.builders import explanations
from verl_otel.analysis import comparison
from verl_otel.analysis.model import Series

T0 = explanations.T0
SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def series(name, points, **labels):
    """Return a series; points by seconds since the beginning."""
    named = tuple((key.replace("__", "."), value) for key, value in labels.items())
    return Series(name, named, tuple(T0 + int(at * SECOND) for at in points), tuple(points.values()))


def gpu(name, index, points):
    return series(name, points, hw__id=f"GPU-{index}", instance="actor_rollout_ref-0")


def tokens(instance, points, kind="response"):
    return series("verl.rollout.tokens", points, verl__token__type=kind, instance=instance)


def run(*found, gpus=2, nodes=None, tokens_of_step=1000, **manifest):
    """Return a run with three steps of 10 s, at 0, 20 and 40 s."""
    parts = {("server", ""): 10.0}
    steps = [
        explanations.step(number, parts, begin=T0 + 20 * (number - 1) * SECOND, tokens=tokens_of_step, devices=gpus)
        for number in (1, 2, 3)
    ]
    facts = {} if nodes is None else {"verl.nodes": str(nodes), "verl.gpus": str(gpus // nodes)}
    made = explanations.explanation(steps, run_id="a")
    return made._replace(series=tuple(found), manifest={**made.manifest, **facts, **manifest})


def measure(made):
    return comparison.measure_resources(made, made.steps)


def test_a_run_of_which_nothing_is_known_has_its_devices():
    assert measure(run(tokens_of_step=0)) == comparison.Resources(gpus=2)
    assert comparison.measure_resources(run(), ()) == comparison.Resources()


def test_the_number_of_gpus_is_the_configured_one():
    """A node may not have been heard of, and rollouts may have GPUs of their own; a damaged manifest does not count."""
    assert measure(run(gpus=16, nodes=2)).gpus == 16
    assert measure(run(gpus=4, **{"verl.nodes": "1", "verl.gpus": "2"})).gpus == 4
    assert measure(run(**{"verl.nodes": "x", "verl.gpus": "8"})).gpus == 2
    assert measure(run(**{"verl.nodes": 2, "verl.gpus": 8})).gpus == 16


def test_utilisation_and_memory_are_means_over_time_and_gpus():
    """A GPU with more values weighs no more; values before the first step and after the last one do not count."""
    used = measure(
        run(
            gpu("hw.gpu.utilization", 0, {-5: 0.0, 1: 1.0, 49: 0.5, 60: 0.0}),
            gpu("hw.gpu.utilization", 1, {5: 0.25, 6: 0.25, 7: 0.25, 8: 0.25}),
            gpu("hw.gpu.memory.usage", 0, {1: 10e9, 40: 30e9}),
            gpu("hw.gpu.memory.usage", 1, {1: 40e9}),
        )
    )
    assert used.gpu_utilization == pytest.approx((0.75 + 0.25) / 2)
    assert used.gpu_memory == pytest.approx((20e9 + 40e9) / 2)
    assert used.gpu_memory_highest == 40e9


def test_a_gpu_that_two_processes_read_is_one():
    again = series("hw.gpu.utilization", {30: 0.0}, hw__id="GPU-0", instance="actor_rollout_ref-1")
    used = measure(run(gpu("hw.gpu.utilization", 0, {1: 1.0}), again, gpu("hw.gpu.utilization", 1, {1: 1.0})))
    assert used.gpu_utilization == pytest.approx((0.5 + 1.0) / 2)


def test_rollout_tokens_are_the_growth_of_all_counters():
    """From 0 s to 50 s: in proportion between two points; prompts are not counted."""
    used = measure(
        run(
            tokens("agent_loop-0", {-10: 100.0, 10: 300.0, 50: 1300.0, 70: 9000.0}),
            tokens("agent_loop-1", {20: 500.0}),
            tokens("agent_loop-1", {20: 90000.0}, kind="prompt"),
        )
    )
    assert used.rollout_tokens_per_second == pytest.approx((1300 - 200 + 500) / 50)


def test_a_process_that_was_started_again_counts_on():
    used = measure(run(tokens("agent_loop-0", {0: 0.0, 20: 1000.0, 30: 200.0, 50: 700.0})))
    assert used.rollout_tokens_per_second == pytest.approx((1000 + 700) / 50)


def test_scaling_is_throughput_by_gpu():
    """Twice the GPUs with 1.8 times the tokens: 90 %. Runs of the same size, or of an unknown one, have none."""
    small, large = comparison.Resources(8, 1000.0, 2000.0), comparison.Resources(16, 1800.0, None)
    scaling = comparison.find_scaling(small, large)
    assert scaling.trained_tokens == pytest.approx(0.9)
    assert scaling.rollout_tokens is None
    assert comparison.find_scaling(large, small).trained_tokens == pytest.approx(1 / 0.9)
    assert comparison.find_scaling(small, small) is None
    assert comparison.find_scaling(comparison.Resources(), large) is None
