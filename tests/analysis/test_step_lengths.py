# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which steps contain start-up, what a step is compared with, and which steps are slow without a verdict."""

from tests.builders import explanations
from verl_otel.analysis import step_lengths
from verl_otel.analysis.model import DeviceTime, Phase, Verdict

SLOW = {**explanations.HEALTHY, ("server", ""): 8.0}


def numbers(steps):
    """The numbers of steps."""
    return [step.number for step in steps]


def test_a_long_first_step_contains_start_up():
    """The first step counts if it took at least twice as long as the others; a run of one step has no start-up."""
    steps = explanations.steps(explanations.HEALTHY, 4)
    assert numbers(step_lengths.find_start_up(steps)) == [1]
    assert step_lengths.find_start_up(steps[:1]) == ()
    assert step_lengths.find_start_up(explanations.steps(explanations.HEALTHY, 4, start_up=False)) == ()


def test_a_step_that_starts_the_workers_again_contains_start_up():
    """After a restart the devices spend most of a later step in start-up."""
    steps = explanations.steps(explanations.HEALTHY, 6)
    again = explanations.step(4, SLOW)
    steps[3] = again._replace(devices=(DeviceTime("gpu-0", {"start_up": 6 * 10**9, "train": 5 * 10**9}),))
    assert numbers(step_lengths.find_start_up(steps)) == [1, 4]
    assert step_lengths.find_unexplained(steps) == ()


def test_a_step_is_not_compared_with_start_up():
    """A step has no peers where all others contain start-up or failed."""
    first, second, third, fourth = explanations.steps(explanations.HEALTHY, 4)
    assert step_lengths.find_comparable([first, second], second) == ()
    assert step_lengths.find_comparable([first, second], first) == (second,)
    assert step_lengths.find_comparable([first, second, third._replace(failed=True), fourth], second) == (fourth,)
    even = explanations.steps(explanations.HEALTHY, 2, start_up=False)
    assert step_lengths.find_comparable(even, even[1]) == (even[0],)


def test_a_slow_step_without_a_verdict_is_unexplained():
    """Twice as long as the median and no verdict; the longest comes first."""
    steps = explanations.steps(explanations.HEALTHY, 8)
    steps[3] = explanations.step(4, SLOW)
    steps[5] = explanations.step(6, {**SLOW, ("weight_sync", ""): 4.0})
    assert numbers(step_lengths.find_unexplained(steps)) == [6, 4]
    verdict = Verdict(4, 11.4, "tool", "python", "tool", "python", 7.0, 7.0)
    steps[3] = steps[3]._replace(verdicts=(verdict,))
    assert numbers(step_lengths.find_unexplained(steps)) == [6]


def test_without_a_baseline_no_step_is_unexplained():
    """Two or three other steps say little about what is usual; milliseconds are noise."""
    steps = [*explanations.steps(explanations.HEALTHY, 3), explanations.step(4, SLOW)]
    assert step_lengths.find_unexplained(steps) == ()
    short = explanations.steps({("server", ""): 0.1}, 8, start_up=False)
    short[4] = explanations.step(5, {("server", ""): 0.5})
    assert step_lengths.find_unexplained(short) == ()


def test_a_planned_checkpoint_is_no_slow_step():
    """Time in a phase that most steps do not have is what makes a step longer on purpose."""
    steps = explanations.steps(explanations.HEALTHY, 8, start_up=False)
    saving = explanations.step(4, {**explanations.HEALTHY, ("weight_sync", ""): 8.0})
    phases = tuple(phase for phase in saving.phases if phase.key != "update_weights")
    steps[3] = saving._replace(phases=(*phases, Phase("save_checkpoint", 8.0, 0.7)))
    assert step_lengths.find_unexplained(steps) == ()
