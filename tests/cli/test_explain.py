# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel explain``: why steps were slow, in words that need no manual; what is not known is said."""

import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.builders import explanations, stories, texts
from verl_otel import cli
from verl_otel.analysis import Run
from verl_otel.analysis.model import (
    Completeness,
    Cost,
    Counts,
    Event,
    Process,
    Saving,
    Segment,
    Straggler,
    Trajectory,
    Verdict,
)
from verl_otel.cli import advice, explain, run_selection
from verl_otel.cli.documents.explain import make_explain
from verl_otel.cli.page import data
from verl_otel.model import Resource
from verl_otel.semconv import counted_verdicts
from verl_otel.semconv.kinds import ADVICE, WORK

TOOL = ("tool", "python")


@pytest.fixture
def held():
    """A run of seven healthy steps and one in which the tool python held a trajectory for 9.8 s."""
    steps = explanations.steps(explanations.HEALTHY, 8, start_up=False)
    verdict = Verdict(
        7, 14.2, "trajectory", "5ee0d1c4/1", "tool", "python", 9.8, 9.5, trace_id=0xABC, turn=6, instance="agent_loop-0"
    )
    slow = explanations.step(7, {**explanations.HEALTHY, TOOL: 11.8})
    path = [
        each._replace(trace_id=0xABC, turn=6, instance="agent_loop-0") if each.kind == "tool" else each
        for each in slow.path
    ]
    savings = (Saving("slowest", 1, 9.5), Saving("1%", 1, 9.5), Saving("5%", 4, 9.7), Saving("tool python", 3, 9.6))
    steps[6] = slow._replace(verdicts=(verdict,), path=tuple(path), savings=savings, blind_spots=("data",))
    return explanations.explanation(steps)


def test_the_step_that_was_held_is_explained(call, held, explained):
    """The worst step comes with how long it was, what held it and where, what that cost, and what everything else waited for."""
    explained(held)
    result = call("explain", "r1")
    lines = result.out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("Step 7"))
    assert result.code == 0
    assert lines[0] == "Run r1 · finished"
    assert "1 of 8 steps was delayed, by 9.80 s in all (22% of the time of all steps and between them)." in lines
    assert lines[at] == "Step 7 took 14.20 s, 9.80 s longer than usual (others: median 4.40 s)."
    sentence = " ".join(line.strip() for line in lines[at + 1 : at + 3])
    assert sentence == (
        "Trajectory 5ee0d1c4/1 delayed it: tool python (turn 6, on agent_loop-0) took 9.80 s longer than for its peers. "
        "Without that the step would have been 9.50 s shorter."
    )
    assert "     83%   11.80 s  trajectory 5ee0d1c4/1: tool python, turn 6, on agent_loop-0" in lines
    assert [line.strip() for line in lines if " s without" in line or " s if" in line] == [
        "9.70 s without the slowest 5% (4 of its trajectories)",
        "9.60 s if tool python had never been slower than its median",
        "9.50 s without its slowest trajectory",
    ]


def test_gpu_time_and_tokens_of_the_step_and_of_the_run(call, held, explained):
    """States with their causes in per cent, the price of a token, and tokens that were of no use with the reason."""
    steps = list(held.steps)
    steps[6] = steps[6]._replace(cost=Cost(28.4, 1000, {"zero_variance": 250, "truncated": 150, "dropped": 1000}))
    explained(held._replace(steps=tuple(steps)))
    out = call("explain", "r1").out
    assert "  GPU time until the next step (2 x 14.20 s)" in out
    assert "    idle        83%  tool wait 83%" in out
    assert "28.40 s of GPU time for 1,000 tokens that were trained on: 28.4 GPU ms a token" in out
    assert "250 of 2,000 tokens (12%) trained on without a signal (all scores of their group are equal)" in out
    assert "150 of 2,000 tokens (8%) with a signal, trained on although cut at the limit of tokens" in out
    assert "1,000 of 2,000 tokens (50%) never trained on" in out
    assert "8,000 tokens that were trained on" in out.partition("The whole run")[2]


@pytest.mark.parametrize(("manifest", "named"), [({"verl.version": "0.9.1"}, 2), ({"attempts": []}, 0)])
def test_settings_of_verl_are_advice_for_its_trainers_only(call, held, explained, manifest, named):
    """Tokens without a signal: the step and the run name the setting where verl trained; a loop of one's own has none."""
    steps = [step._replace(cost=Cost(28.4, 1000, {"zero_variance": 900})) for step in held.steps]
    explained(held._replace(steps=tuple(steps), manifest=manifest))
    out = call("explain", "r1").out
    assert out.count("have no gradient: filter their groups") == 2
    assert out.count("algorithm.filter_groups.enable=True") == named


def test_a_healthy_run_says_so(call, explained):
    """Where nothing held a step, the slowest one is shown as what it is; start-up is named and not shown as slow."""
    explained(explanations.explanation(explanations.steps(explanations.HEALTHY, 5, spread=0.02)))
    out = call("explain", "r1").out
    assert "Nothing delayed any of 5 steps noticeably.\nStep 1, the first one, took 34." in out
    assert "which includes the start-up (gen 96%)" in out
    assert out.count("Nothing delayed it noticeably.") == 1


def test_too_few_steps_have_no_usual_length(call, explained):
    """With two steps after the first one, nothing says which of them is slow: the longer one is shown, and not called healthy."""
    made = explanations.steps(explanations.HEALTHY, 3)
    made[1] = explanations.step(2, {**explanations.HEALTHY, TOOL: 9.0})
    explained(explanations.explanation(made))
    too_few = "oo few steps to say what is usual: 2 of 3 can be compared, 4 are needed"
    text = call("explain", "r1").out
    assert f"T{too_few}." in text
    assert "\nStep 2 took 11.40 s (step 3: 4.40 s). Too few steps to say what is usual.\n" in text
    assert "79%    9.00 s  gen: tool python" in text
    assert "\nStep 1 " not in text
    assert f"88% of it in gen. T{too_few}." in call("report", "r1").out
    assert json.loads(call("explain", "--json", "r1").out)["held"]["text"] == f"t{too_few}"


def test_a_step_that_took_longer_is_not_called_healthy(call, explained):
    """Below twice the median it is none of the slow steps; the text does not claim that nothing delayed it."""
    steps = explanations.steps(explanations.HEALTHY, 6, start_up=False)
    steps[3] = explanations.step(4, {**explanations.HEALTHY, ("server", ""): 2.5})
    explained(explanations.explanation(steps))
    assert "No single cause was found; from twice the median on a step counts as slow." in call("explain", "r1").out


def test_a_long_step_without_a_cause_is_not_called_healthy(call, explained):
    """Ten times as long as the others and no verdict: it is said that no cause was found."""
    steps = explanations.steps(explanations.HEALTHY, 6, start_up=False)
    steps[3] = explanations.step(4, {**explanations.HEALTHY, ("server", ""): 40.0})
    explained(explanations.explanation(steps))
    out = call("explain", "r1").out
    assert "1 of 6 steps was slow without a known cause: step 4 (43.40 s)." in out
    assert "Step 4 took 43.40 s (others: median 4.40 s). No single cause was found." in out
    assert ADVICE["long generation"][:28] in out
    brief = call("explain", "r1", "--brief").out
    assert "longest 43.40 s; 1 of 6 steps was slow without a known cause\n" in brief
    assert "nothing delayed" not in brief


def test_slow_steps_are_counted_with_and_without_a_cause(call, held, explained):
    """The headline counts both kinds; the steps of both are explained, those with a verdict first."""
    steps = list(held.steps)
    steps[2] = explanations.step(3, {**explanations.HEALTHY, ("server", ""): 30.0})
    explained(held._replace(steps=tuple(steps)))
    out = call("explain", "r1").out
    assert (
        "1 of 8 steps was delayed, by 9.80 s in all (13% of the time of all steps and between them). "
        "Slow without a cause: step 3 (33.40 s)."
    ) in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("Step ")] == ["7", "3"]
    counts = json.loads(call("explain", "--json", "r1").out)["counts"]
    assert (counts["held"], counts["unexplained"]) == (1, 1)


def test_what_follows_a_step_is_not_added_to_it(call, held, explained):
    """The step itself took 9.80 s longer; the next one also started 1.80 s late. Text, brief, JSON and page have the same sum."""
    steps = list(held.steps)
    late = Verdict(7, 14.2, "between", "between", "between", "", 1.8, 1.8)
    steps[6] = steps[6]._replace(verdicts=(*steps[6].verdicts, late), next_ns=steps[6].end_ns + 2_000_000_000)
    run = held._replace(steps=tuple(steps))
    explained(run)
    out, count = (
        call("explain", "r1").out,
        "1 of 8 steps was delayed, after 1 the next one started late, by 11.60 s in all (25% of the time of all steps and between them)",
    )
    assert count in out
    assert (
        "Step 7 took 14.20 s, 9.80 s longer than usual (others: median 4.40 s), and the next one started 1.80 s late."
        in out
    )
    assert count in call("explain", "r1", "--brief").out
    assert data.describe_run(run)["explain"]["held"]["text"] == count
    (step,) = json.loads(call("explain", "r1", "--json", "--step", "7").out)["steps"]
    keys = ("longer", "explained", "unexplained", "next_late")
    assert [step[key] for key in keys] == pytest.approx([9.8, 9.5, 0, 1.8])


@pytest.mark.parametrize(
    ("saved", "title"),
    [
        (6.0, "14.20 s, 9.80 s longer than usual (others: median 4.40 s), of which 3.80 s are not explained."),
        (12.0, "14.20 s (others: median 4.40 s); without its causes 12.00 s less."),
    ],
)
def test_causes_and_the_excess_of_a_step_are_told_apart(saved, title, call, held, explained):
    """What they do not explain is named; where they explain more, the rest of the step was short, and it is not compared."""
    steps = list(held.steps)
    steps[6] = steps[6]._replace(verdicts=(steps[6].verdicts[0]._replace(saved=saved),))
    explained(held._replace(steps=tuple(steps)))
    assert f"Step 7 took {title}" in call("explain", "r1").out


def test_steps_are_in_the_order_of_what_their_titles_say(call, held, explained):
    """The one that took most longer comes first, also where more of another one is explained."""
    steps = list(held.steps)
    verdict = steps[6].verdicts[0]
    longest = explanations.step(4, {**explanations.HEALTHY, TOOL: 15.0})
    steps[3] = longest._replace(verdicts=(verdict._replace(step=4, saved=8.0),))
    explained(held._replace(steps=tuple(steps)))
    titles = [line for line in call("explain", "r1").out.splitlines() if line.startswith("Step ")]
    assert [(line.split()[1], line.split()[5]) for line in titles] == [("4", "13.00"), ("7", "9.80")]
    assert [step["number"] for step in json.loads(call("explain", "r1", "--json").out)["steps"]] == [4, 7]


def test_lines_fit_the_terminal(held, explained, monkeypatch):
    """On one of 60 columns they are divided between words; what is written to a file or a pipe is not."""
    explained(held)
    monkeypatch.setenv("COLUMNS", "60")
    terminal, file = Terminal(is_terminal=True), Terminal(is_terminal=False)
    for stream in (terminal, file):
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main(["explain", "r1"]) == 0
    widest = [max(len(line) for line in each.written.splitlines() if "https:" not in line) for each in (terminal, file)]
    assert widest[0] <= 60 < widest[1]
    assert terminal.written.split() == file.written.split()


def test_a_run_without_gpus_has_devices(call, held, explained):
    """On CPUs the ranks are devices, and nothing is called a GPU."""
    steps = list(held.steps)
    steps[6] = steps[6]._replace(cost=Cost(28.4, 1000, {}))
    explained(held._replace(steps=tuple(steps), has_gpu=False))
    out = call("explain", "r1").out
    assert "  Device time until the next step (CPU, 2 x 14.20 s)" in out
    assert "28.40 s of device time (CPU) for 1,000 tokens that were trained on: 28.4 device ms a token" in out
    assert "  Device time (CPU, 2 x 45.00 s)" in out
    assert "GPU" not in out


def test_parts_below_one_per_cent_are_left_out(call, explained):
    """Neither list of the critical path has a row of less than 1 % of the step; many short parts in a row are one."""
    parts = {("server", ""): 50.0, ("tool", "tiny"): 0.001, ("worker", "update_actor"): 40.0}
    parts |= {("tool", f"short-{index}"): 0.1 for index in range(20)}
    explained(explanations.explanation([explanations.step(1, parts)]))
    out = call("explain", "--step", "1", "r1").out
    largest, _, in_order = out.partition("Critical path in the order of time\n")
    assert "  0%" not in out
    assert "tiny" not in out
    assert "      2%    2.00 s  21 smaller ones" in largest
    rows = in_order.splitlines()[:4]
    assert [row.split()[1:5] for row in rows[:3]] == [
        ["0.000", "s", "50.00", "s"],
        ["50.001", "s", "40.00", "s"],
        ["90.001", "s", "2.00", "s"],
    ]
    assert rows[2].endswith("  20 short parts")
    assert rows[3] == "    1 part below 1% of the step is left out here (--json has all)"


def test_crashes_and_stalls_come_first(call, held, explained):
    """What ended the run, or held it for good, stands above all steps; so does work of the dead and work that goes on."""
    after = held.start_ns + 90_000_000_000
    crash = Event("crash", after, "agent_loop-0 was killed (signal 9) with 3 trajectories", {})
    work = SimpleNamespace(
        span=SimpleNamespace(name="verl.trajectory", attributes={}), age=75.0, last_child="chat qwen"
    )
    values = {"service.instance.id": "r1/agent_loop-0", "process.pid": 7, "host.name": "n1"}
    process = Process(Resource(values), 0, ended=False)
    gone = SimpleNamespace(dead=True, silent=30.0, process=process, work=(work,))
    explained(held._replace(events=(crash,), completeness=Completeness((gone,), (), 0)))
    lines = call("explain", "r1").out.splitlines()
    assert lines[4] == "CRASH after 1 m 30 s: agent_loop-0 was killed (signal 9) with 3 trajectories"
    assert lines[5].startswith("DEAD: agent_loop-0 (pid 7 on n1) stopped writing 30.00 s before the others")
    explained(
        held._replace(
            completeness=Completeness((SimpleNamespace(dead=False, silent=0.0, process=process, work=(work,)),), (), 0)
        )
    )
    assert (
        "STILL OPEN: agent_loop-0 (pid 7 on n1): verl.trajectory for 1 m 15 s, last in chat qwen"
        in call("explain", "r1").out
    )


def test_which_step_a_scalar_is_of_is_not_known_exactly_in_fully_async(call, tmp_path):
    """Verl adds the metrics of a local step after it has logged those of the version."""
    for mode in ("fully_async", "sync"):
        story = stories.training(tmp_path / mode, mode)
        story.manifest(verl__version="0.9.1", verl__trainer__mode=mode)
        out = call("explain", story.write()).out
        assert ("verl logs those of a version without its last local step" in out) == (mode == "fully_async")


def test_what_is_not_known_is_said(call, held, explained):
    """Missing files, doubtful clocks, evidence that no span gives: each has a line."""
    steps = tuple(step._replace(blind_spots=("data", "cpu")) for step in held.steps)
    gaps = Completeness((), ("actor: only 3 of 4 ranks wrote files for 7 calls",), 2)
    run = held._replace(steps=steps, completeness=gaps, offsets=(("n2", -0.5, 0.02), ("n3", 0.0, 0.0)), devices=())
    explained(run)
    unknown = call("explain", "r1").out.partition("What is not known\n")[2].splitlines()
    assert "  actor: only 3 of 4 ranks wrote files for 7 calls" in unknown
    assert "  the clock of n2 was 500 ms behind, give or take 20 ms" in unknown
    assert not [line for line in unknown if "n3" in line]
    assert any(line.startswith("  2 spans have a parent in no file") for line in unknown)
    explained(run._replace(state="running"))
    assert "\n  2 spans have a parent that is not written yet\n" in call("explain", "r1").out
    explained(run)
    assert "  GPU time: no process reports its GPUs" in unknown
    assert "rank" not in "\n".join(unknown).replace("3 of 4 ranks", "")
    late = tuple(
        step._replace(verdicts=(Verdict(7, 14.2, "rank", "rank 3", "worker", "update_actor", 3, 2),))
        if step.verdicts
        else step
        for step in steps
    )
    explained(run._replace(steps=late))
    why = "its CPU time, the clock or the power of its GPU"
    assert (
        f"  whether a late rank differs from the others in how long it prepared, {why}: not recorded"
        in call("explain", "r1").out
    )


def test_late_ranks_are_named_for_the_step_and_for_the_run(call, held, explained):
    """Who was late with the evidence, and in how many of the last steps."""
    late = (Straggler("update_actor", 3, "actor-3", 1.5, "arrival"),)
    explained(held._replace(steps=tuple(step._replace(stragglers=late) for step in held.steps)))
    out = call("explain", "r1").out
    assert "rank 3 (actor-3) 1.50 s in update_actor: the call reached it late" in out
    assert (
        "rank 3 (actor-3) was late in 8 of the last 8 steps, by 12.00 s in all; mostly the call reached it late" in out
    )


def test_one_step_in_full(call, held, explained):
    """``--step`` asks for all detail of it and shows its path in the order of time, without a gap."""
    asked = explained(held)
    result = call("explain", "--step", "7", "r1")
    assert asked.steps == frozenset({7})
    assert result.code == 0
    lines = result.out.splitlines()
    begin = lines.index("  Critical path in the order of time") + 1
    rows = [line.split() for line in lines[begin : begin + 4]]
    reached = 0.0
    for row in rows:
        assert float(row[1]) == pytest.approx(reached, abs=0.006)
        reached += float(row[3]) / (1000 if row[4] == "ms" else 1)
    assert reached == pytest.approx(14.2, abs=0.02)
    assert "The whole run" not in result.out


def test_a_step_that_is_not_there_is_a_wrong_usage(call, held, explained):
    """Exit code 2, and which steps there are."""
    explained(held)
    result = call("explain", "--step", "99", "r1")
    assert (result.code, result.out) == (2, "")
    assert result.err == "verl-otel: step 99 is not in the run: it has 8 steps, 1 to 8\n"


def test_a_step_that_was_trained_twice_is_that_of_the_attempt_that_counts(call, held, explained):
    """The step of the newer attempt comes first; a verdict on the other one says that it was superseded, in `explain` and in `report`."""
    lost = held.steps[6]._replace(repeated=True)
    again = explanations.step(7, explanations.HEALTHY, begin=held.steps[7].end_ns + 1, attempt=2)
    explained(held._replace(steps=(*held.steps[:6], lost, held.steps[7]._replace(repeated=True), again)))
    titles = [line for line in call("explain", "r1", "--step", 7).out.splitlines() if line.startswith("Step ")]
    assert [title.partition(" took")[0] for title in titles] == ["Step 7", "Step 7 (superseded)"]
    assert "\nStep 7 (superseded) (14.20 s): trajectory 5ee0d1c4/1 delayed it" in call("report", "r1").out


def test_as_many_steps_as_are_asked_for(call, explained):
    """The worst first; without a number, three."""
    steps = [
        explanations.step(
            n, explanations.HEALTHY, verdicts=(Verdict(n, 4.4, "phase", "gen", "phase", "gen", n, n / 10),)
        )
        for n in range(1, 6)
    ]
    explained(explanations.explanation(steps))

    def shown(*more):
        return [line.split()[1] for line in call("explain", *more, "r1").out.splitlines() if line.startswith("Step ")]

    assert shown() == ["5", "4", "3"]
    assert shown("--steps", "1") == ["5"]
    assert shown("--steps", "99") == ["5", "4", "3", "2", "1"]
    assert shown("--steps", "2-4") == ["2", "3", "4"]
    assert "none of these steps is in the run" in call("explain", "--steps", "7-9", "r1").err
    assert "'0' is not valid: give an integer of 1 or more" in call("explain", "--steps", "0", "r1").err


def test_nothing_to_explain(call, explained):
    """Exit code 1 with what to do, for an empty run and for one that has trajectories only."""
    empty = explanations.explanation([])._replace(counts=Counts(0, 0, 0, 0, 0, 0, 0))
    explained(empty)
    result = call("explain", "r1")
    assert result.code == 1
    assert (
        result.err
        == "verl-otel: nothing to explain: no step was recorded. verl-otel check says whether training is hooked\n"
    )
    explained(empty._replace(counts=Counts(9, 3, 0, 0, 0, 0, 1)))
    assert "only 3 trajectories" in call("explain", "r1").err
    explained(empty._replace(events=(Event("stall", 0, "verl.step for 60 s", {}),)))
    assert call("explain", "r1").code == 0


def test_json(call, held, explained):
    """The same as data: no number that JSON does not know, ids as hexadecimal, only the chosen steps."""
    steps = list(held.steps)
    steps[6] = steps[6]._replace(cost=Cost(float("nan"), 1, {}))
    explained(held._replace(steps=tuple(steps)))
    answer = json.loads(call("explain", "--json", "r1").out)
    (step,) = answer["steps"]
    assert (step["number"], step["cost"]["gpu_seconds"]) == (7, None)
    assert step["verdicts"][0]["trace_id"] == f"{0xABC:032x}"
    assert step["verdicts"][0]["saved"] == 9.5
    assert sum(each["seconds"] for each in step["path"]) == pytest.approx(step["seconds"])
    assert sum(step["gpu"]["gpu-0"].values()) == pytest.approx(step["seconds"])
    assert answer["run"]["stragglers"] == []
    assert answer["counts"]["held"] == 1


@pytest.mark.parametrize(
    ("right", "expected"), [({"trajectory": (9, 10)}, {"right": 9, "of": 10, "series": "41"}), ({}, None)]
)
def test_json_has_how_often_such_verdicts_were_right(call, held, explained, monkeypatch, right, expected):
    """Null where none was counted."""
    monkeypatch.setattr(counted_verdicts, "RIGHT", right)
    monkeypatch.setattr(counted_verdicts, "SERIES", "41")
    explained(held)
    (step,) = json.loads(call("explain", "--json", "r1").out)["steps"]
    assert step["verdicts"][0]["counted"] == expected


def test_a_step_of_which_only_the_sums_were_kept():
    """In a long run most steps have no path any more: their groups are shown."""
    steps = [step._replace(path=()) for step in explanations.steps(explanations.HEALTHY, 3, start_up=False)]
    text = texts.explain(explanations.explanation(steps))
    assert "45%    2.00 s  tool python" in text


def test_trajectories_keep_their_names_in_the_path():
    """A trajectory of the path that is among the slowest is called by its label, others by the begin of their trace id."""
    slow = Trajectory(0xF << 124, "prompt-7", 2, 1, False, 0, 1, None, False, True)
    path = tuple(
        Segment(explanations.T0 + n * 10**9, explanations.T0 + (n + 1) * 10**9, "llm", "m", "gen", "a", trace)
        for n, trace in enumerate((0xF << 124, 0xE << 124))
    )
    step = explanations.step(1, {TOOL: 2.0}, begin=explanations.T0, slowest=(slow,))._replace(path=path)
    text = texts.explain(explanations.explanation([step]))
    assert "trajectory prompt-7/2: LLM call" in text
    assert "trajectory e0000000: LLM call" in text


def test_a_run_without_an_ended_span_has_no_times_since_its_start():
    """Where it is not known when the run began nothing is said to be after that, and no title stands alone."""
    event = Event("stall", explanations.T0, "verl.step for 60 s", {})
    text = texts.explain(explanations.explanation([], start_ns=0, end_ns=0, events=(event,)))
    assert "STALL: verl.step for 60 s" in text
    assert " after " not in text
    assert "The whole run" not in text


def test_how_long_a_failed_step_took_is_nobodys_measure():
    """The median of the others is of whole steps."""
    steps = explanations.steps(explanations.HEALTHY, 4, start_up=False)
    steps[1:3] = [each._replace(failed=True, end_ns=each.start_ns + 10**9) for each in steps[1:3]]
    text = texts.explain(explanations.explanation(steps))
    assert "Step 4 took 4.40 s (step 1: 4.40 s)." in text


class Terminal:
    """A stream that remembers what was written."""

    def __init__(self, *, is_terminal):
        self.written = ""
        self.isatty = lambda: is_terminal

    def write(self, text):
        self.written += text

    def flush(self):
        pass


def test_progress_is_shown_on_a_terminal_only(monkeypatch):
    """After a second the share that was read is shown and wiped away in the end; a file or a pipe sees nothing."""
    for is_terminal in (True, False):
        stream = Terminal(is_terminal=is_terminal)
        with run_selection.Meter(stream) as meter:
            meter.show(1, 10)
            assert stream.written == ""
            monkeypatch.setattr(run_selection, "QUIET_SECONDS", -1.0)
            meter.show(5 * 10**8, 10**9)
        assert stream.written.startswith("\rreading:  50% of 1.00 GB") == is_terminal
        assert stream.written.endswith("\r") == is_terminal
        monkeypatch.setattr(run_selection, "QUIET_SECONDS", 1.0)


@pytest.mark.parametrize(("nanoseconds", "shown"), [(400_000, False), (2_000_000, True)])
def test_no_time_until_the_next_step_has_no_line(nanoseconds, shown, call, explained):
    """A block of 0 ms says nothing, also where all detail is asked for."""
    steps = list(explanations.steps(explanations.HEALTHY, 4))
    between = (("between", "", nanoseconds),)
    steps[2] = steps[2]._replace(next_ns=steps[2].end_ns + nanoseconds, between_groups=between)
    explained(explanations.explanation(steps))
    assert ("  Then " in call("explain", "r1", "--step", "3").out) == shown


def test_a_verdict_has_its_evidence(call, tmp_path):
    folder = stories.training(tmp_path / "r1", "r1").write()
    result = call("explain", "--brief", folder)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "run r1: finished, 2 steps, 4 trajectories"
    (step,) = [step for step in Run.open(folder).steps() if step.verdicts]
    assert f"step 2: 15.00 s [trace {step.trace_id:032x}]" in lines
    (cause,) = [line for line in lines if line.startswith("  cause: ")]
    assert "update_actor" in cause
    assert f"kind {step.verdicts[0].kind}, cause worker" in cause
    assert any(line.startswith("do (") for line in lines)
    assert lines[-1].startswith(f"more: verl-otel explain {folder} --step 2; ")


def test_the_ids_are_those_of_the_json(call, tmp_path):
    folder = stories.training(tmp_path / "r1", "r1").write()
    document = json.loads(call("explain", "--json", folder).out)
    brief = call("explain", "--brief", folder).out
    assert all(step["trace_id"] in brief for step in document["steps"])


def test_a_step_that_is_open_is_no_time_between_steps(call, tmp_path):
    """Neither is what has ended in it; the time before it is the trainer's."""
    story = stories.Story(tmp_path / "r1", "r1")
    trainer = story.process()
    stories.step(trainer, 1, 0, 10, [("gen", 0, 10)])
    trainer.span("verl.logging", 10, 10.5, verl__tracker="file")
    step = trainer.still_open("verl.step", 11, 20, verl__step__number=2, last_child="verl.phase.update_actor")
    trainer.span("verl.phase.gen", 11, 15, step)
    folder = story.write()
    lines = call("explain", folder).out.splitlines()
    at = lines.index("  Then 1.00 s until a step that did not end")
    assert lines[at + 1 : at + 3] == [
        "     50%    500 ms  the trainer itself, between two steps",
        "     50%    500 ms  logging (file)",
    ]
    (step,) = json.loads(call("explain", "--step", "1", "--json", folder).out)["steps"]
    assert sum(part["seconds"] for part in step["between_summed"]) == 1.0
    assert json.loads(call("report", "--json", folder).out)["steps"][0]["between"] == 1.0
    assert call("report", folder).out.split("between\n")[1].splitlines()[0].split()[-1] == "1.00"


def test_the_time_of_a_step_that_is_open_is_not_that_of_the_step_before(call):
    """Its GPU time neither: step 3 had ended, and three seconds of step 4 had gone by, when a process was killed."""
    folder = Path(cli.__file__).parent / "demo" / "recorded" / "crash"
    document = json.loads(call("explain", "--steps", "1-3", "--json", folder).out)
    last = document["steps"][-1]
    assert last["is_open"]
    assert last["devices"]["seconds"] == pytest.approx(last["seconds"] + last["between"])
    assert document["run"]["devices"]["seconds"] == pytest.approx(document["end"] - document["start"])
    assert document["run"]["cost"]["gpu_seconds"] == pytest.approx(
        sum(2 * (step["seconds"] + step["between"]) for step in document["steps"])
    )
    assert "  Device time until a step that did not end (CPU, 2 x 1.12 s)" in call("explain", folder).out.splitlines()


@pytest.mark.parametrize("finding", ["crash", "stall", "failed", "slow", "learning"])
def test_a_finding_can_end_a_pipeline(call, story, finding):
    """By the exit code, and only what was asked for; `any` stands for all of them."""
    trainer = story.process()
    story.manifest()
    for number in range(1, 9):
        length = 9 if finding == "slow" and number == 5 else 2
        error = {"error__type": "ValueError"} if finding == "failed" and number == 8 else {}
        stories.step(
            trainer,
            number,
            10 * number,
            10 * number + length,
            [("update_actor", 10 * number, 10 * number + length)],
            **error,
        )
        trainer.scalar("verl.training.step", 10 * number + length, number)
        trainer.scalar(
            "verl.actor.grad_norm", 10 * number + length, math.nan if finding == "learning" and number == 8 else 1.0
        )
    folder = story.write()
    if finding in ("crash", "stall"):
        event = {"kind": finding, "time_ns": stories.at(30), "text": "it happened"}
        (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    codes = {
        kind: call("explain", folder, "--fail-if", kind).code
        for kind in ("crash", "stall", "failed", "slow", "learning", "any")
    }
    assert {kind for kind, code in codes.items() if code} == {finding, "any"}
    assert set(codes.values()) == {0, 1}
    assert call("explain", folder).code == 0


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """What is known of a run of two steps."""
    return Run.open(stories.training(tmp_path_factory.mktemp("runs") / "r1", "r1").write()).explanation


@settings(max_examples=20)
@given(st.integers(0, 200), st.text(max_size=3000))
@example(200, "a\n" * 1500)
def test_it_is_bounded_whatever_happened(small_run, count, text):
    events = tuple(Event("stall", 1, text, {}) for _ in range(count))
    run = small_run._replace(events=events, problems=(text,) * count)
    lines = explain.render_brief(make_explain(run, small_run.steps * 40)).split("\n")
    assert len(lines) <= explain.BRIEF_LINES
    assert all(len(line) <= explain.MAX_LINE + 3 for line in lines)


PAGE = Path(__file__).resolve().parents[2] / advice.PAGE


def test_settings_that_the_advice_names_are_settings_of_verl():
    """Each setting in the page exists in the configurations of the installed verl."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("verl is not installed")
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed in this environment")
    verl = Path(spec.submodule_search_locations[0])
    paths = (
        "trainer/config/_generated_ppo_trainer.yaml",
        "experimental/fully_async_policy/config/fully_async_ppo_trainer.yaml",
    )
    settings = [yaml.safe_load((verl / path).read_text("utf-8")) for path in paths]
    names = set(
        re.findall(r"`((?:rollout|actor|trainer|data|reward|async_training)\.[\w.]*\w)", PAGE.read_text("utf-8"))
    )
    assert len(names) > 15
    for name in names:
        path = f"actor_rollout_ref.{name}" if name.startswith(("rollout.", "actor.")) else name
        assert any(_has_setting(each, path.split(".")) for each in settings), name
    sentences = " ".join(ADVICE.values())
    assert set(re.findall(r"\b(?:rollout|trainer|data|reward)\.\w[\w.]*\w", sentences)) <= names


def _has_setting(values, path):
    """Whether nested values have a key."""
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def test_what_can_be_done_is_said_once_for_each_kind_of_cause(call, explained):
    """Each kind of cause has one sentence, however many steps it delayed; the page that it names has a row for it."""
    steps = [
        explanations.step(
            n, explanations.HEALTHY, verdicts=(Verdict(n, 4.4, "trajectory", "u/1", "tool", "python", n, n / 10),)
        )
        for n in range(1, 4)
    ]
    explained(explanations.explanation(steps))
    out = call("explain", "r1").out
    assert out.count("  slow tool: ") == 1
    assert f"What to do (table in https://github.com/verl-otel/verl-otel/blob/main/{advice.PAGE})" in out
    explained(explanations.explanation(explanations.steps(explanations.HEALTHY, 5)))
    assert "What to do" not in call("explain", "r1").out


@pytest.mark.parametrize(
    ("verdict", "key"),
    [
        (Verdict(1, 9, "rank", "rank 3", "worker", "update_actor", 3, 2), "late rank"),
        (Verdict(1, 9, "replica", "llm_server-1", "server", "", 3, 2), "slow replica"),
        (Verdict(1, 9, "tool", "python", "tool", "python", 3, 2), "slow tool"),
        (Verdict(1, 9, "trajectory", "u/1", "trajectory", "", 3, 2), "agent loop"),
        (Verdict(1, 9, "phase", "update_weights", "weight_sync", "", 3, 2), "weight sync"),
        (Verdict(1, 9, "phase", "adv", "phase", "adv", 3, 2), "slow phase"),
        (Verdict(1, 9, "phase", "update_actor", "worker", "update_actor", 3, 2), "slow worker"),
        (Verdict(1, 9, "between", "save_checkpoint", "worker", "save_checkpoint", 3, 2), "checkpoint"),
        (Verdict(1, 9, "phase", "update_weights", "worker", "update_weights", 3, 2), "weight sync"),
        (Verdict(1, 9, "comet", "x", "comet", "", 3, 2), "unknown"),
    ],
)
def test_each_verdict_has_its_advice(verdict, key):
    """What to do follows from who delayed the step, or from the work that took the time."""
    assert advice.find_key(verdict) == key
    assert key in ADVICE


def test_every_kind_of_work_has_advice_and_a_row_in_the_documents():
    """Each kind of segment leads to a sentence, and the table of the page has exactly the rows of the sentences."""
    for kind in WORK:
        assert advice.find_key(Verdict(1, 9, "phase", "gen", kind, "", 3, 2)) in ADVICE
    assert re.findall(r"^\| `([^`]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE) == list(ADVICE)


def test_brief_and_text_have_one_usual_step_and_the_same_parts(call, explained):
    """The start-up is in no usual step, and the amounts of a critical path are those of the text."""
    explained(explanations.explanation(explanations.steps(explanations.HEALTHY, 3)))
    text, brief = call("explain", "r1").out, call("explain", "--brief", "r1").out
    assert "median step 4.40 s, longest 34.40 s" in brief
    parts = brief.partition("it waited for: ")[2].partition("\n")[0].split(", ")
    assert len(parts) == 3
    for part in parts:
        what, number, unit = part.rsplit(" ", 2)
        assert f"{number} {unit}  {what}" in text


def test_brief_advises_on_slow_steps_only(call, tmp_path):
    """A healthy run has nothing to do."""
    assert call("demo", "--keep", tmp_path, "healthy").code == 0
    assert "do (" not in call("explain", "--brief", tmp_path / "healthy").out
