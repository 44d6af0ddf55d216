# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Comparing runs: only what is sure is called significant, and the difference of a step is explained without a remainder."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import explanations
from verl_otel.analysis import comparison, significance
from verl_otel.analysis import comparison as compare
from verl_otel.analysis.model import DeviceTime, Series

TOOL = ("tool", "python")


@pytest.fixture
def run():
    """Make a run of so many steps."""

    def make(count=8, *, run_id="a", spread=0.05, seed=0, parts=None, **more):
        made = explanations.steps(parts or explanations.HEALTHY, count, spread=spread, seed=seed, **more)
        return explanations.explanation(made, run_id=run_id)

    return make


def significant(comparison):
    return {row.name for row in comparison.rows if row.significant}


def test_start_up_and_failed_steps_do_not_count(run):
    """The first step and those that failed are left out."""
    a, b = run(6, seed=1), run(7, run_id="b", seed=2)
    steps = [step._replace(failed=step.number == 3) for step in b.steps]
    found = compare.compare(a, b._replace(steps=tuple(steps)))
    assert found.counts == (5, 5)
    assert found.enough
    assert not [each for each in found.contributions if each.kind == "start"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_too_few_steps_tell_nothing(run, count):
    """With fewer than four steps after the first, nothing is said, however different they are."""
    found = compare.compare(run(8), run(count, run_id="b", level=5.0))
    assert not found.enough
    assert found.rows == ()


def test_a_phase_that_only_one_run_has(run):
    """A phase that is new has an infinite change; one that is gone has lost everything."""
    more = {**explanations.HEALTHY, ("start", ""): 1.0}
    parts = {key: seconds for key, seconds in explanations.HEALTHY.items() if key[0] != "weight_sync"}
    new = compare.compare(run(parts=parts), run(run_id="b", seed=1))
    rows = {row.name: row for row in new.rows}
    assert rows["update_weights"].difference.change == math.inf
    assert rows["update_weights"].significant
    gone = compare.compare(run(seed=1), run(run_id="b", parts=parts))
    assert {row.name: row for row in gone.rows}["update_weights"].difference.change == -1.0
    assert compare.compare(run(parts=more), run(run_id="b", parts=more, seed=1)).enough


def test_small_rows_and_path_are_tested_when_asked_for(run):
    """A phase of a thousandth of the step is left out unless a condition names it; so is the critical path."""
    parts = {**explanations.HEALTHY, ("weight_sync", ""): 0.004}
    a, b = run(parts=parts, seed=1), run(run_id="b", parts=parts, seed=2)
    asked = {"update_weights", "path tool python"}
    assert not asked & {row.name for row in compare.compare(a, b).rows}
    assert asked <= {row.name for row in compare.compare(a, b, asked=asked).rows}
    assert asked <= set(compare.names(a))


def test_runs_without_paths_gpus_and_tokens(run):
    """Where only the times of phases are known, only they are compared, and nothing seems to have vanished."""
    a, b = run(seed=1), run(run_id="b", seed=2)
    bare = tuple(step._replace(groups=(), path=(), devices=(), cost=None) for step in b.steps)
    found = compare.compare(a, b._replace(steps=bare), asked=["path tool python"])
    assert {row.name for row in found.rows} == {"step", "gen", "update_actor", "update_weights"}
    assert found.contributions == ()


def test_a_sure_change_below_three_per_cent_is_not_significant(run):
    """Runs without any noise that differ by 2 % differ for sure, and by nothing that matters; by 4 % they do."""
    for level, expected in ((1.02, False), (1.04, True)):
        found = compare.compare(run(spread=0.0), run(run_id="b", spread=0.0, level=level), noise=0.0)
        step = next(row for row in found.rows if row.name == "step")
        assert step.p < 0.001
        assert step.significant == expected


def test_gpu_time_after_the_last_step_is_left_out(run):
    """The last step's GPU time runs on to the end of the run: a long shut-down makes no run slower."""
    a, b = run(seed=1), run(run_id="b", seed=2)
    last = b.steps[-1]
    devices = tuple(each._replace(nanoseconds={**each.nanoseconds, "data": 10**12}) for each in last.devices)
    longer = b._replace(steps=(*b.steps[:-1], last._replace(devices=devices)))
    before, after = ({row.name: row for row in compare.compare(a, each).rows} for each in (b, longer))
    assert before["gpu idle"].difference == after["gpu idle"].difference
    assert before["gpu idle"].difference.a.steps == 6


def test_other_work_is_noted(run):
    """Another algorithm, another number of trajectories or tokens make times incomparable: it is said."""
    a, b = run(seed=1), run(run_id="b", seed=2)
    steps = tuple(
        step._replace(trajectories=tuple(range(16)), cost=step.cost._replace(trained_tokens=3000)) for step in b.steps
    )
    notes = compare.compare(a, b._replace(steps=steps, manifest={"verl.algorithm": "gae"})).notes
    assert "verl.algorithm differs: grpo in A, gae in B" in notes
    assert any("8 trajectories in A, 16 in B" in note for note in notes)
    assert any("1000 trained tokens in A, 3000 in B" in note for note in notes)
    assert compare.compare(a, a).notes == ("A and B are the same run",)


LISTS = st.lists(
    st.dictionaries(
        st.sampled_from([TOOL, ("tool", "search"), ("server", ""), ("worker", "update_actor"), ("weight_sync", "")]),
        st.integers(0, 10_000).map(lambda thousandths: thousandths / 1000),
        min_size=1,
    ).filter(lambda parts: sum(parts.values()) > 0),
    min_size=5,
    max_size=12,
)


@pytest.mark.full
@settings(deadline=None, database=None, max_examples=40)
@given(LISTS)
def test_a_run_never_differs_from_itself(parts):
    """Whatever its steps are like."""
    run = explanations.explanation([explanations.step(n, each) for n, each in enumerate(parts)])
    found = compare.compare(run, run)
    assert significant(found) == set()
    assert all(row.difference.change == 0 and row.p == 1 for row in found.rows)


@pytest.mark.full
@settings(deadline=None, database=None, max_examples=40)
@given(LISTS, LISTS, st.randoms(use_true_random=False))
def test_names_of_steps_and_their_order_in_the_list_do_not_matter(one, other, rng):
    """Other numbers, other trace ids, another order of the list: the same comparison."""
    a = [explanations.step(n, each) for n, each in enumerate(one)]
    b = [explanations.step(n, each) for n, each in enumerate(other)]
    renamed = [step._replace(number=rng.randrange(10**6), trace_id=rng.randrange(1, 10**6)) for step in b]
    rng.shuffle(renamed)
    before = compare.compare(explanations.explanation(a), explanations.explanation(b, run_id="b"))
    after = compare.compare(explanations.explanation(a), explanations.explanation(renamed, run_id="b"))
    assert [row for row in after.rows if row.name == "step"] == [row for row in before.rows if row.name == "step"]
    assert sorted(after.rows) == sorted(before.rows)
    assert sorted(after.contributions, key=str) == sorted(before.contributions, key=str)


@pytest.mark.full
@settings(deadline=None, database=None, max_examples=40)
@given(LISTS, LISTS)
def test_the_explanation_has_no_remainder(one, other):
    """What the kinds add sums up to the difference of the typical steps, and the names of a kind to the kind."""
    runs_of_other_names = [
        explanations.explanation([explanations.step(n, each) for n, each in enumerate(parts)]) for parts in (one, other)
    ]
    found = compare.compare(*runs_of_other_names)
    step = next(row for row in found.rows if row.name == "step").difference
    more = step.b.typical - step.a.typical
    assert sum(each.seconds for each in found.contributions) == pytest.approx(more, abs=1e-6)
    for each in found.contributions:
        assert sum(name.b - name.a for name in each.names) == pytest.approx(each.seconds, abs=1e-9)


@pytest.mark.full
def test_of_healthy_pairs_few_show_any_difference():
    """Of 150 pairs of runs of the same thing with 2 % of drift between runs, fewer than 5 % have any significant row."""
    rng, found = random.Random(11), 0
    for pair in range(150):
        runs = [
            explanations.steps(
                explanations.HEALTHY, 8, spread=0.05, seed=1000 + 2 * pair + n, level=math.exp(rng.gauss(0, 0.02))
            )
            for n in range(2)
        ]
        pair_of_runs = [explanations.explanation(steps, run_id=str(n)) for n, steps in enumerate(runs)]
        found += bool(significant(compare.compare(*pair_of_runs)))
    assert found <= 7


@pytest.mark.full
def test_a_planted_fifth_is_found_and_explained():
    """A step that is 20 % longer because of one tool is found in most of 60 pairs, and then the tool is named in each."""
    longer = {TOOL: 1 + 0.2 * sum(explanations.HEALTHY.values()) / explanations.HEALTHY[TOOL]}
    found = named = 0
    for pair in range(60):
        a = explanations.steps(explanations.HEALTHY, 8, spread=0.05, seed=5000 + pair)
        b = explanations.steps(explanations.HEALTHY, 8, spread=0.05, seed=6000 + pair, scale=longer)
        compared = compare.compare(explanations.explanation(a), explanations.explanation(b, run_id="b"))
        if "step" in significant(compared):
            found += 1
            named += compared.contributions[0].kind == "tool"
    assert found >= 50
    assert named == found


def test_the_levels_divide_the_error(run):
    """The step's own probability is doubled, the others' are Holm's, doubled, too: together they stay below the level."""
    a, b = run(seed=1), run(run_id="b", seed=2, scale={TOOL: 1.3})
    rows = {row.name: row for row in compare.compare(a, b).rows}
    assert rows["step"].p == pytest.approx(min(1, 2 * rows["step"].difference.p))
    rest = [row for name, row in rows.items() if name != "step"]
    expected = [min(1.0, 2 * p) for p in significance.holm([row.difference.p for row in rest])]
    assert [row.p for row in rest] == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1.0, 1.1, 1.2, 1.4])
def test_what_is_significant_is_what_is_detectable(run, scale):
    """A row is significant exactly if its change is at least the smallest one that would be, which other rows decide, too."""
    rows = [
        row
        for seed in range(6)
        for row in compare.compare(run(seed=seed), run(run_id="b", seed=50 + seed, scale={TOOL: scale})).rows
    ]
    assert [row.name for row in rows if row.significant != (abs(row.difference.change) >= row.detectable)] == []


# -- What two runs used and produced, and how a larger one scales --

T0 = explanations.T0
SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def series(name, points, **labels):
    """Return a series; points by seconds since the beginning."""
    named = tuple((key.replace("__", "."), value) for key, value in labels.items())
    return Series(name, named, tuple(T0 + int(at * SECOND) for at in points), tuple(points.values()))


def gpu(name, index, points):
    return series(name, points, hw__id=f"GPU-{index}", instance="actor_rollout_ref-0")


def tokens(instance, points, kind="generated", validate="false"):
    return series("verl.rollout.tokens", points, verl__token__type=kind, verl__validate=validate, instance=instance)


def measured_run(*found, gpus=2, nodes=None, tokens_of_step=1000, **manifest):
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
    assert measure(measured_run(tokens_of_step=0)) == comparison.Resources(gpus=2)
    assert comparison.measure_resources(measured_run(), ()) == comparison.Resources()


def test_the_number_of_gpus_is_the_configured_one():
    """A node may not have been heard of, and rollouts may have GPUs of their own; a damaged manifest does not count."""
    assert measure(measured_run(gpus=16, nodes=2)).gpus == 16
    assert measure(measured_run(gpus=4, **{"verl.nodes": "1", "verl.gpus": "2"})).gpus == 4
    assert measure(measured_run(**{"verl.nodes": "x", "verl.gpus": "8"})).gpus == 2
    assert measure(measured_run(**{"verl.nodes": 2, "verl.gpus": 8})).gpus == 16


def test_utilisation_and_memory_are_means_over_time_and_gpus():
    """A GPU with more values weighs no more; values before the first step and after the last one do not count."""
    used = measure(
        measured_run(
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
    used = measure(measured_run(gpu("hw.gpu.utilization", 0, {1: 1.0}), again, gpu("hw.gpu.utilization", 1, {1: 1.0})))
    assert used.gpu_utilization == pytest.approx((0.5 + 1.0) / 2)


@pytest.mark.parametrize("written", ["generated", "response"])
def test_rollout_tokens_are_the_growth_of_all_counters(written):
    """From 0 s to 50 s: in proportion between two points; prompts and answers of tools are not counted. The demo's runs count responses."""
    used = measure(
        measured_run(
            tokens("agent_loop-0", {-10: 100.0, 10: 300.0, 50: 1300.0, 70: 9000.0}, written),
            tokens("agent_loop-1", {20: 500.0}, written),
            tokens("agent_loop-1", {20: 90000.0}, "prompt"),
            tokens("agent_loop-1", {20: 90000.0}, "observation"),
        )
    )
    assert used.rollout_tokens_per_second == pytest.approx((1300 - 200 + 500) / 50)


def test_a_process_that_was_started_again_counts_on():
    used = measure(measured_run(tokens("agent_loop-0", {0: 0.0, 20: 1000.0, 30: 200.0, 50: 700.0})))
    assert used.rollout_tokens_per_second == pytest.approx((1000 + 700) / 50)


def test_what_was_validated_before_the_first_step_is_no_part_of_the_rate():
    """Counters are read once a second: their first point, or the next one, may be later than the step began. Between steps a validation counts."""
    made = measured_run(
        tokens("agent_loop-0", {1: 800.0, 15: 900.0, 60: 900.0}, validate="true"),
        tokens("agent_loop-1", {-1: 300.0, 1: 800.0, 49: 800.0, 51: 850.0}, validate="true"),
        tokens("agent_loop-0", {9: 600.0, 60: 600.0}),
    )
    validations = [
        (None, T0 - 9 * SECOND, T0),
        (1, T0 + 12 * SECOND, T0 + 14 * SECOND),
        (3, T0 + 50 * SECOND, T0 + 51 * SECOND),
    ]
    used = measure(made._replace(validations=tuple(validations)))
    assert used.rollout_tokens_per_second == pytest.approx((100 + 600) / 50)


def test_scaling_is_throughput_by_gpu():
    """Twice the GPUs with 1.8 times the tokens: 90 %. Runs of the same size, or of an unknown one, have none."""
    small, large = comparison.Resources(8, 1000.0, 2000.0), comparison.Resources(16, 1800.0, None)
    scaling = comparison.find_scaling(small, large)
    assert scaling.trained_tokens == pytest.approx(0.9)
    assert scaling.rollout_tokens is None
    assert comparison.find_scaling(large, small).trained_tokens == pytest.approx(1 / 0.9)
    assert comparison.find_scaling(small, small) is None
    assert comparison.find_scaling(comparison.Resources(), large) is None


# -- Runs with several attempts --


def resumed(made, of_attempt=2):
    """The same steps in attempts of two, each with a start-up in its first step and a pause of an hour before it."""
    steps = []
    for place, step in enumerate(made):
        attempt, is_first = place // of_attempt, place % of_attempt == 0
        begin = step.start_ns + attempt * 3_600_000_000_000
        end = begin + step.end_ns - step.start_ns + (10_000_000_000 if is_first else 0)
        steps.append(step._replace(start_ns=begin, end_ns=end, attempt=attempt + 1))
    return steps


def test_the_start_up_of_each_attempt_is_no_difference(run):
    """A training that runs through, and the same one in twenty attempts: its first steps are left out in each."""
    made = explanations.steps(explanations.HEALTHY, 40, spread=0.02, start_up=False)
    again = explanations.explanation(resumed(made), run_id="b")
    found = compare.compare(explanations.explanation(made), again)
    assert found.counts == (39, 20)
    assert abs(found.rows[0].difference.change) < 0.03
    assert significant(found) == set()
    assert compare.compare(explanations.explanation(made), again, skip=0).counts == (40, 40)


def test_repeated_steps_are_compared_once(run):
    """Those that a later attempt trained again are left out, and that is noted; the others stay in their order."""
    made = explanations.steps(explanations.HEALTHY, 12)
    steps = [step._replace(repeated=step.number in (7, 8), attempt=1 if step.number < 9 else 2) for step in made]
    found = compare.compare(run(12, run_id="b"), explanations.explanation(steps))
    assert found.counts == (11, 8)
    assert "2 repeated steps of B are left out" in found.notes


def test_the_gpu_time_of_the_last_step_of_each_attempt_is_left_out(run):
    """It runs on to the end of the attempt: validation and the last checkpoint."""
    made = explanations.steps(explanations.HEALTHY, 12, start_up=False)
    longer = DeviceTime("node/0", {"checkpoint": 600_000_000_000})
    steps = [
        step._replace(attempt=1 + (step.number > 6), devices=(longer,) if step.number in (6, 12) else step.devices)
        for step in made
    ]
    found = compare.compare(explanations.explanation(made), explanations.explanation(steps, run_id="b"))
    assert significant(found) == set()
    assert not [row.name for row in found.rows if row.name == "gpu checkpoint"]


def test_rates_do_not_have_the_pause_between_attempts():
    """Tokens, utilisation and memory are those of the time in which steps were trained."""
    made = measured_run(
        tokens("agent_loop-0", {0: 0.0, 20: 400.0, 25: 500.0, 3600: 0.0, 3630: 10.0, 3650: 600.0, 9000: 700.0}),
        gpu("hw.gpu.utilization", 0, {1: 0.5, 1000: 0.0, 2000: 0.0, 3645: 1.0}),
        gpu("hw.gpu.memory.usage", 0, {1: 10e9, 1000: 90e9, 3645: 30e9}),
    )
    steps = [
        made.steps[0]._replace(start_ns=T0 + begin * SECOND, end_ns=T0 + (begin + 10) * SECOND, attempt=attempt)
        for begin, attempt in ((0, 1), (10, 1), (3630, 2), (3640, 2))
    ]
    used = comparison.measure_resources(made, steps)
    assert used.rollout_tokens_per_second == pytest.approx((400 + 590) / 40)
    assert used.gpu_utilization == pytest.approx(0.75)
    assert (used.gpu_memory, used.gpu_memory_highest) == (20e9, 30e9)
