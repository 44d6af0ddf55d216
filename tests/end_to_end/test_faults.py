# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The plan of ``make test-extra ONLY=faults``, its judgement and its page; it trains nothing."""

import pytest

from tests.end_to_end.faults import judging, own_loops, page, plan
from tests.end_to_end.faults.kinds import KINDS, MODES, UNPLANTED
from tests.end_to_end.faults.plan import Fault

RIGHT = ["between", "logging", "file", "file", "trainer-0", 2.0]


def result(kind="slow tracker", *, verdicts=(), reached=100.0, **more):
    """The result of a training with a fault in step 6."""
    steps = {
        "6": {"seconds": 3.0, "verdicts": list(verdicts)},
        "7": {"seconds": 1.0, "verdicts": [RIGHT]},
        "9": {"seconds": 1.0, "verdicts": []},
    }
    known = {"training": 0, "faults": [Fault(kind, 6, 2.0)._asdict()], "reached": [reached], "steps": steps}
    return {**known, "state": "finished", "events": [], "lines": [], **more}


def test_there_are_many_kinds_and_a_quarter_is_held_out():
    """As the page says."""
    assert len(KINDS) >= 40
    assert sum(kind.held_out for kind in KINDS.values()) >= len(KINDS) // 4


def test_two_faults_in_one_step_may_be_named_by_any_verdict():
    """And both have to be."""
    known = result(verdicts=[["phase", "phase", "adv", "adv", "", 2.0], RIGHT])
    known["faults"].append(Fault("slow reward", 6, 2.0)._asdict())
    known["reached"].append(100.0)
    assert [judgement.named for judgement in judging.judge(known)] == [True, False]
    assert "Of 1 steps with two faults both are named in 0, one in 1, none in 0." in page.write([known])


@pytest.mark.parametrize(("waited", "named"), [(1.0, True), (0.6, False)])
def test_no_cpu_is_right_where_a_thread_waited_longer_than_usual(waited, named):
    """By the kernel's count, half a second in a usual step; which program took the CPU does not matter."""
    no_cpu = ["process", "paused", "no CPU", "trainer-0", "trainer-0", 1.0]
    known = result(verdicts=[no_cpu, RIGHT])
    for number in known["steps"]:
        known["steps"][number]["waited"] = 0.5
    known["steps"]["6"] |= {"waited": waited, "others": 0.0}
    known["steps"]["9"] |= {"waited": waited, "others": 0.9, "verdicts": [no_cpu]}
    known["steps"]["10"] = known["steps"]["11"] = {"seconds": 1.0, "verdicts": [], "waited": 0.5}
    assert [judgement.named for judgement in judging.judge(known)] == [named]
    assert judging.find_false(known) == (3, [] if named else [(9, no_cpu)], int(named))


def test_no_cpu_is_right_where_other_programs_take_it():
    """Measured beside, not by what is judged; of trainings in which no waits were."""
    known = result(verdicts=[RIGHT])
    no_cpu = ["process", "paused", "no CPU", "trainer-0", "trainer-0", 1.0]
    known["steps"]["8"] = {"seconds": 3.0, "verdicts": [no_cpu], "others": 0.7}
    known["steps"]["9"] = {"seconds": 3.0, "verdicts": [no_cpu, RIGHT], "others": 0.2}
    assert judging.find_false(known) == (2, [(9, no_cpu), (9, RIGHT)], 1)
    for others, named in ((0.7, True), (0.2, False)):
        known["steps"]["6"] = {"seconds": 3.0, "verdicts": [no_cpu, RIGHT], "others": others}
        assert [judgement.named for judgement in judging.judge(known)] == [named]


IN_ROLLOUTS = {"tool", "reward", "agent", "llm", "rewardloop", "block", "server", "hold", "weights", "sync", "score"}
IN_UPDATES = {"sample", "advantage", "balance", "metrics", "log", "validate", "checkpoint", "rank", "infer"}
REACHED = {
    "sync": {*IN_ROLLOUTS, *IN_UPDATES, "item", "submit", "get", "put", "clear"},
    "separate_async": {*IN_ROLLOUTS, *IN_UPDATES, "item", "submit", "get", "put", "clear"},
    "fully_async": {*IN_ROLLOUTS, *IN_UPDATES},
}
"""Places of `cpu_plant` that a training in a mode goes through, by its log."""


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_plants_what_it_reaches(mode):
    """Each kind once in a round, or with a reason why not."""
    trainings = plan.make_plan(1, 14, mode)[: 14 if mode != "fully_async" else 13]
    planted = [fault.kind for training in trainings for fault in training.faults]
    assert sorted([*planted, *UNPLANTED.get(mode, ())]) == sorted(KINDS)
    for training in trainings:
        for plant in training.plants:
            assert plant.partition(":")[0].partition("!")[0] in REACHED[mode], plant
    assert trainings == plan.make_plan(1, 20, mode)[: len(trainings)]


def test_an_asynchronous_fault_is_judged_by_the_step_that_it_made_longer():
    """By the ends of steps in the bed's log; where none is longer there is nothing to name, and steps beside the fault are healthy."""
    ends = {str(step): 100.0 + step for step in range(1, 8)} | {"8": 110.0, "9": 111.0, "10": 112.0, "11": 113.0}
    known = result(mode="separate_async", ends=ends, reached=107.5)
    known["steps"] |= {"8": {"seconds": 3.0, "verdicts": [RIGHT]}, "11": {"seconds": 1.0, "verdicts": [RIGHT]}}
    (judgement,) = judging.judge(known)
    assert (judgement.felt, judgement.found, judgement.named) == (True, True, True)
    assert judging.find_false(known)[0] == 3, "6, 7 and 11"
    known["reached"] = [103.5]
    (judgement,) = judging.judge(known)
    assert (judgement.felt, judgement.named) == (False, False)
    text = page.write([known])
    assert "| separate_async | slow tracker | network | tracker |  | 1 | 1 | 0 | 0 |  |" in text
    assert "| separate_async | all | 1 | 1 | 0 | 0 | 0 of 0 |" in text
    assert "Nothing." in text


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], (False, False)),
        ([RIGHT], (True, True)),
        ([["between", "logging", "wandb", "wandb", "trainer-0", 2.0]], (True, False)),
        ([["phase", "phase", "adv", "adv", "", 2.0], RIGHT], (True, False)),
    ],
)
def test_only_the_right_name_counts(verdicts, expected):
    """A verdict of another cause is found, and not named; the first one counts."""
    (judgement,) = judging.judge(result(verdicts=verdicts))
    assert (judgement.found, judgement.named) == expected


def test_an_event_names_what_hangs():
    """Only one of the right process, after the fault; its time counts."""
    event = {"kind": "stall", "time": 109.5, "instance": "trainer-0", "span": "verl.logging"}
    (judgement,) = judging.judge(result("hanging tracker", events=[event]))
    assert (judgement.named, judgement.delay) == (True, 9.5)
    (judgement,) = judging.judge(result("hanging tracker", events=[{**event, "time": 99.0}]))
    assert not judgement.found
    (judgement,) = judging.judge(result("hanging tracker", events=[{**event, "instance": "agent_loop-0"}]))
    assert (judgement.found, judgement.named) == (True, False)


def test_the_page_counts_what_was_run():
    """Nothing that was not run is in it."""
    text = page.write([result(verdicts=[RIGHT]), result("slow reward")])
    assert "| sync | slow tracker | network | tracker |  | 1 | 0 | 1 | 1 |  |" in text
    assert "| sync | slow reward | slow | reward |  | 1 | 0 | 0 | 0 |  |" in text
    assert "| slow tool |" not in text.partition("## Own loops")[0]
    assert "Not planted alone in these trainings of `sync`: slow tool, " in text
    assert "| all | 2 | 0 (0%; 0% to 66%) | 0 |  |" in text
    assert "* `sync`, slow reward of 2.0 s: reported: *nothing*." in text


def test_what_is_reported_where_nothing_is_planted_is_false():
    """Each verdict and each event counts, by mode; a long series is several trainings."""
    stall = {"kind": "stall", "time": 109.5, "instance": "trainer-0", "span": "verl.logging"}
    healthy = result(events=[stall], mode="separate_async", load=1.5) | {"faults": [], "reached": []}
    text = page.write([healthy])
    assert "| separate_async, no fault planted | 3 | 1 (33%; 6% to 79%) | 1 | 1.5 |" in text
    assert "By kind: between logging file 1." in text
    assert [training.steps for training in plan.make_healthy("asyncio", 340)] == [100, 100, 100, 40]


def test_the_page_is_made_of_the_kept_results():
    """It is not edited by hand, nor is what the package ships of it."""
    assert page.PAGE.read_text("utf-8") == page.write(page.read_kept())
    assert page.COUNTED.read_text("utf-8") == page.write_counted(page.read_kept())


def test_a_verdict_is_as_sure_as_those_of_its_kind():
    """Right if it names what was planted in its step, wrong on a healthy one, and not counted on the step after a fault."""
    known = result(verdicts=[RIGHT, ["phase", "phase", "adv", "adv", "", 2.0]])
    known["steps"]["9"]["verdicts"] = [RIGHT, ["rank", "worker", "update_actor", "rank 1", "", 1.0]]
    assert judging.count_verdicts([known]) == {"between": [1, 2], "rank": [0, 1]}
    assert '"between": (1, 2),' in page.write_counted([{"seed": "41", **known}])


def test_in_an_own_loop_the_line_that_waited_is_part_of_the_name():
    """Of two verdicts alike only that with the right line counts; it is no part of the name elsewhere."""
    kinds = own_loops.KINDS["threads"]
    verdict = ["trajectory", "trajectory", "", "6-1/2", "process-7", 2.0]
    for line, named in (("agent.py:7 in held_lock", True), ("agent.py:9 in roll_out", False)):
        known = result("lock held by another thread", verdicts=[[*verdict, line]])
        assert [judgement.named for judgement in judging.judge(known, kinds)] == [named]


@pytest.mark.parametrize("mode", own_loops.MODES)
def test_a_seed_plants_each_slow_kind_of_an_own_loop(mode):
    """Equal seeds make equal plans; there are steps with two faults in each run of slow ones."""
    runs = own_loops.make_plan(61, mode)
    assert runs == own_loops.make_plan(61, mode)
    slow = [run for run in runs if run.series == "slow"]
    kinds = {name for name, kind in own_loops.KINDS[mode].items() if kind.series in ("slow", "wrong data")}
    assert {fault.kind for run in slow for fault in run.faults} == kinds
    assert all(len({fault.step for fault in run.faults}) == len(run.faults) - own_loops.PAIRS for run in slow)
