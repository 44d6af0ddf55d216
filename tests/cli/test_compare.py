# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel compare``: what is slower and why, what is only noise, and an exit code for the CI."""

import json
import re

import pytest

from tests.builders import explanations
from tests.cli.conftest import NO_READER
from verl_otel.analysis import reader
from verl_otel.analysis.model import Event, Series, Verdict

TOOL = ("tool", "python")


@pytest.fixture
def pair(monkeypatch):
    """Let the command find two runs named a and b: healthy ones, or what is given; ``scale`` plants a difference into b."""

    def use(*, count=8, scale=None, **given):
        made = {
            "a": explanations.explanation(
                explanations.steps(explanations.HEALTHY, count, spread=0.04, seed=1), run_id="a"
            ),
            "b": explanations.explanation(
                explanations.steps(explanations.HEALTHY, count, spread=0.04, seed=2, scale=scale), run_id="b"
            ),
        } | given
        monkeypatch.setattr(reader, "read", lambda folders, **_: (made[folders[0].name], NO_READER))
        return made

    return use


def test_a_slow_tool_is_named_with_its_share(call, pair):
    """B's tool takes 65 % more: the first lines say by how much B is slower, which points of that are the tool's, and from what to what."""
    pair(scale={TOOL: 1.65})
    result = call("compare", "a", "b")
    first, second, third, *_ = result.out.splitlines()
    assert result.code == 0
    assert first == "A a (7 steps) · B b (7 steps)"
    assert re.fullmatch(
        r"A step of B takes (2|3)\d% more time: a typical one took 4\.\d\d s in A, 5\.\d\d s in B \(assuming .*\)\.",
        second,
    )
    assert "that runs alike differ by 2%; on a shared machine measure it: --noise" in second
    assert "percentage points: tool latency (tool python: " in third
    assert 24 < float(third.split()[0]) < 33
    assert "everything else on the critical path" in result.out


def test_the_points_add_up_to_the_percentage(call, pair):
    """The points of the explanation sum up to B's change."""
    pair(scale={TOOL: 1.8, ("worker", "update_actor"): 0.7})
    lines = call("compare", "a", "b").out.splitlines()
    points = sum(float(line.split()[0]) for line in lines if " percentage points: " in line)
    change = next(float(line.split("%")[0].split()[-1]) for line in lines if line.startswith("  step "))
    assert points == pytest.approx(change, abs=0.3)


def test_only_significant_parts_explain_a_difference(call, pair):
    """The workers vary so much that their part of a large difference is chance: it is in the rest, which keeps the sum."""
    steady, made = explanations.steps(explanations.HEALTHY, 9, spread=0.01, seed=1), []
    for number, step in enumerate(explanations.steps(explanations.HEALTHY, 9, spread=0.01, seed=2, scale={TOOL: 2.0})):
        parts = {(kind, name): length / 1e9 for kind, name, length in step.groups}
        parts["worker", "update_actor"] += (0, 0.05, 2.2, 0.1, 2.0, 0, 1.9, 0.05, 0)[number]
        made.append(explanations.step(step.number, parts))
    pair(a=explanations.explanation(steady, run_id="a"), b=explanations.explanation(made, run_id="b"))
    answer = json.loads(call("compare", "a", "b", "--json").out)
    parts = {part["kind"]: part for part in answer["explanation"]}
    assert parts["worker"]["seconds"] > 0.1 * sum(part["seconds"] for part in answer["explanation"])
    assert (parts["tool"]["significant"], parts["worker"]["significant"]) == (True, False)
    head = call("compare", "a", "b").out.partition("\n\n")[0]
    assert "tool latency" in head
    assert "workers" not in head


def test_how_a_run_ended_is_noted(call, pair):
    """B is no slower, and it crashed after a stall: the notes have it."""
    made = pair()
    event = Event("stall", explanations.T0, "no step for 60 s", {})
    pair(b=made["b"]._replace(state="crashed", events=(event, event, event._replace(kind="crash"))))
    notes = call("compare", "a", "b").out.partition("Take note\n")[2]
    assert [line.strip() for line in notes.splitlines()[:3]] == [
        "B is not whole: crashed", "1 crash in B", "2 stalls in B"
    ]  # fmt: skip


def test_what_is_shown_is_what_is_tested(call, pair):
    """The headline, the row and its change have the same values of a step, one slow step of A included."""
    made = pair(scale={TOOL: 1.65})
    slow = made["a"].steps[3]
    steps = [step._replace(end_ns=step.end_ns + 60 * 10**9) if step is slow else step for step in made["a"].steps]
    pair(a=made["a"]._replace(steps=tuple(steps)), b=made["b"])
    _, second, *lines = call("compare", "a", "b").out.splitlines()
    a, b = map(float, re.findall(r"([\d.]+) s in [AB]", second))
    row = next(line for line in lines if line.startswith("  step "))
    assert [float(shown) for shown in re.findall(r"([\d.]+) s \(", row)] == [a, b]
    assert float(row.split("%")[0].split()[-1]) == pytest.approx(100 * (b / a - 1), abs=0.3)


def test_steps_that_something_held_are_counted(call, pair):
    """One slow step changes no typical one: it is named with its run, which the next command explains first."""
    made = pair()
    verdict = Verdict(4, 9.0, "rank", "rank 1", "worker", "update_actor", 2.0, 2.0)
    steps = [step._replace(verdicts=(verdict,)) if step.number == 4 else step for step in made["a"].steps]
    pair(a=made["a"]._replace(steps=tuple(steps)), b=made["b"])
    out = call("compare", "a", "b").out
    assert (
        "  A: 1 of 8 steps was delayed, by 2.00 s in all (3% of the time of all steps and between them). Step 4 (9.00 s): rank 1 delayed it: "
        in out
    )
    assert "  B: nothing delayed any of 8 steps noticeably" in out
    assert out.endswith("Next: verl-otel explain /runs/a\n")
    document = json.loads(call("compare", "--json", "a", "b").out)
    assert (document["held"]["a"]["steps"], document["held"]["a"]["seconds"], document["held"]["b"]["steps"]) == (
        1,
        2.0,
        0,
    )
    assert document["held"]["a"]["verdict"].startswith("Step 4 (9.00 s): rank 1 delayed it")


def test_healthy_runs_are_not_significant(call, pair):
    """Two runs of the same thing: not significant, and what would have been noticed."""
    pair()
    out = call("compare", "a", "b").out
    assert out.splitlines()[1].startswith("Not significant: a typical step took 4.")
    assert "would have been noticed" in out
    assert "significant (p" not in out


def with_gpus(made, gpus, utilization):
    """Return a run with so many GPUs, their utilisation and memory."""
    times = tuple(step.start_ns + 1 for step in made.steps)
    series = tuple(
        Series(name, (("hw.id", f"GPU-{index}"),), times, (value,) * len(times))
        for index in range(gpus)
        for name, value in (("hw.gpu.utilization", utilization), ("hw.gpu.memory.usage", 64.0 * (1 << 30)))
    )
    return made._replace(series=series, manifest={**made.manifest, "verl.nodes": "1", "verl.gpus": str(gpus)})


@pytest.mark.parametrize("form", [(), ("--md",)])
def test_runs_of_different_size_have_a_scaling_efficiency(call, pair, form):
    """Sixteen GPUs in place of eight, with the same steps: half of linear. Utilisation and memory are shown beside it."""
    made = pair()
    pair(a=with_gpus(made["a"], 8, 0.8), b=with_gpus(made["a"]._replace(run_id="b"), 16, 0.4))
    lines = [" ".join(line.replace("|", " ").split()) for line in call("compare", "a", "b", *form).out.splitlines()]
    assert "GPUs 8 16 +100.0%" in lines
    assert "GPU utilisation 80% 40% -50.0%" in lines
    assert "memory of a GPU, mean 64 GiB 64 GiB +0.0%" in lines
    assert any(line.startswith("trained tokens, per second of a step ") for line in lines)
    assert (
        "Scaling efficiency from 8 to 16 GPUs, tokens per second and GPU: 50% for trained tokens (100% is linear)."
        in lines
    )


def test_rates_say_which_tokens_they_are_of_and_what_they_are_divided_by(call, pair):
    """A token of a rate may be one that was generated or trained on, and a second one of a step or of the run."""
    pair()
    out = " ".join(call("compare", "a", "b").out.split())
    assert " tokens/s (" in out
    assert " ms/token (" in out
    assert "Tokens: those that the model wrote and that were trained on, per second of their step" in out


def test_too_few_steps_have_no_scaling_efficiency(call, pair):
    """After the sentence that there are too few steps to compare no efficiency follows."""
    made = pair(count=2)
    pair(a=with_gpus(made["a"], 8, 0.8), b=with_gpus(made["a"]._replace(run_id="b"), 16, 0.4))
    out = call("compare", "a", "b").out
    assert "Too few steps to tell anything" in out
    assert "efficiency" not in out


def test_too_few_steps(call, pair):
    """Of runs with two steps nothing is said, there is no table, and a condition fails the CI: nobody knows whether it holds."""
    pair(count=2, scale={TOOL: 9.0})
    result = call("compare", "a", "b", "--fail-if", "step>+5%")
    assert result.code == 3
    assert result.err == "verl-otel: --fail-if 'step>+5%' could not be judged: too few steps to tell\n"
    assert "Too few steps to tell anything: 1 in the shorter run after the first step, 4 are needed" in result.out
    assert "step>+5%: could not be judged, too few steps to tell" in result.out
    assert "tokens_per_second" not in result.out


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("step>+5%", 1),
        (" step > + 5%", 1),
        ("step>5%", 1),
        ("step>+50%", 0),
        ("step<-5%", 0),
        ("phase gen>+5%", 1),
        ("gen>+5%", 1),
        ("update_actor>+5%", 0),
        ("tokens_per_second<-10%", 1),
        ("gpu tool_wait>+20%", 1),
        ("gpu idle>+0%", 1),
        ("path tool python>+30%", 1),
    ],
)
def test_conditions_decide_the_exit_code(call, pair, condition, code):
    """1 exactly where the change is significant and beyond the limit; the page says why."""
    pair(scale={TOOL: 1.65})
    result = call("compare", "a", "b", "--fail-if", condition)
    assert result.code == code
    assert ("HOLDS" in result.out) == bool(code)


def test_a_condition_beyond_the_limit_but_within_the_noise_does_not_hold(call, pair):
    """Noise of half a step hides 20 %: the condition does not hold, and it says so."""
    noisy = {
        name: explanations.explanation(
            explanations.steps(explanations.HEALTHY, 5, spread=0.5, seed=seed, level=level), run_id=name
        )
        for name, seed, level in (("a", 1, 1.0), ("b", 2, 2.0))
    }
    pair(**noisy)
    result = call("compare", "a", "b", "--fail-if", "step>+1%")
    assert result.code == 0
    assert "is not significant" in result.out.partition("Conditions")[2]


def test_a_crashed_run_cannot_be_judged(call, pair):
    """Without a whole step, whatever the row's name; a run without GPU time does not hide that the other one has it."""
    pair(b=explanations.explanation([], run_id="b"))
    assert call("compare", "a", "b", "--fail-if", "gen>+5%").code == 3
    pair(a=explanations.explanation([], run_id="a"), b=explanations.explanation([], run_id="b"))
    assert call("compare", "a", "b", "--fail-if", "gen>+5%").code == 3
    bare = [each._replace(devices=()) for each in explanations.steps(explanations.HEALTHY, 8)]
    pair(b=explanations.explanation(bare, run_id="b"))
    assert call("compare", "a", "b", "--fail-if", "gpu tool_wait>+5%").code == 3
    answer = json.loads(call("compare", "--json", "a", "b", "--fail-if", "gpu tool_wait>+5%").out)
    assert (answer["conditions"][0]["holds"], answer["conditions"][0]["judged"]) == (False, False)


def test_what_neither_run_has_does_not_hold(call, pair):
    """Enough steps and none of it in either: that is an answer. What only B has is said in words."""
    pair()
    result = call("compare", "a", "b", "--fail-if", "gpu reward_wait>+5%")
    assert (result.code, result.err) == (0, "")
    assert "does not hold, neither run has any" in result.out


def test_what_only_b_has_is_said_in_words(call, pair):
    """A change from nothing has no percentage."""
    made = pair()
    parts = {key: seconds for key, seconds in explanations.HEALTHY.items() if key[0] != "weight_sync"}
    pair(a=explanations.explanation(explanations.steps(parts, 8, spread=0.04), run_id="a"), b=made["b"])
    result = call("compare", "a", "b", "--fail-if", "update_weights>+5%")
    assert result.code == 1
    assert "a value that A lacks is significant" in result.out
    assert "inf" not in result.out


def test_all_numbers_of_a_row_have_one_unit(call, pair):
    """Below a second in one run and above it in the other: both are shown in seconds; both below: in milliseconds."""
    pair(scale={("worker", "update_actor"): 0.5})
    lines = {line.split()[0]: line for line in call("compare", "a", "b").out.splitlines() if line.startswith("  ")}
    first, second = re.findall(r"([0-9.]+) s \(([0-9.]+)-([0-9.]+)\)", lines["update_actor"])
    assert float(second[1]) <= float(second[0]) <= float(second[2]) < 0.6 < float(first[0])
    (cells,) = {tuple(re.findall(r" ms \(", lines["update_weights"]))}
    assert len(cells) == 2
    assert all(float(number) > 300 for number in re.findall(r"([0-9.]+) ms", lines["update_weights"]))


def test_runs_without_gpus_have_devices(call, pair):
    """Two runs on CPUs have no seconds of a GPU; the names of the rows stay."""
    made = pair()
    assert "seconds of one GPU until the next step" in call("compare", "a", "b").out
    pair(**{name: run._replace(has_gpu=False) for name, run in made.items()})
    out = call("compare", "a", "b").out
    assert "gpu rows: seconds of one device (CPU) until the next step" in out
    assert " device ms/token " in out
    assert "GPU" not in out
    assert "  gpu idle" in out


def test_runs_without_device_time_have_no_legend_for_it(call, pair):
    """Own loops in which no process says what it ran on: there are no rows of devices, and no words about them."""
    made = pair()
    bare = {
        name: run._replace(steps=tuple(step._replace(devices=(), cost=None) for step in run.steps))
        for name, run in made.items()
    }
    pair(**bare)
    assert "gpu" not in call("compare", "a", "b").out


@pytest.mark.parametrize(
    "text", ["step", "step<5%", "step>+5", ">+5%", "step>-5%", "step<+5%", "step=+5%", "step>+x%", ""]
)
def test_wrong_conditions_are_refused_in_plain_words(call, pair, text):
    """Exit code 2, the condition, and how one is written."""
    pair()
    result = call("compare", "a", "b", "--fail-if", text)
    assert result.code == 2
    assert "write NAME>+PERCENT%" in result.err


def test_an_unknown_row_is_refused_with_the_known_ones(call, pair):
    """Exit code 2 and the names of the rows."""
    pair()
    result = call("compare", "a", "b", "--fail-if", "stp>+5%")
    assert (result.code, result.out) == (2, "")
    assert "there is no row 'stp'; the rows are step, tokens_per_second" in result.err


@pytest.mark.full
def test_options_reach_the_comparison(call, pair):
    """More assumed noise makes nothing significant; more skipped steps are left out."""
    pair(scale={TOOL: 1.65})
    out = call("compare", "a", "b", "--noise", "40%").out
    assert "Not significant" in out
    assert "(assuming that runs alike differ by 40%)" in out
    assert "A a (5 steps)" in call("compare", "a", "b", "--skip", "3").out
    assert "after the first 3 steps" in call("compare", "a", "b", "--skip", "3").out


def test_json(call, pair):
    """The same as data; a row that is new has no relative change: null."""
    made = pair(scale={TOOL: 1.65})
    parts = {key: seconds for key, seconds in explanations.HEALTHY.items() if key[0] != "weight_sync"}
    pair(a=explanations.explanation(explanations.steps(parts, 8, spread=0.04), run_id="a"), b=made["b"])
    answer = json.loads(call("compare", "--json", "a", "b", "--fail-if", "step>+5%").out)
    rows = {row["name"]: row for row in answer["rows"]}
    assert rows["update_weights"]["change"] is None
    assert rows["step"]["significant"]
    assert rows["step"]["a"]["median"] == pytest.approx(4.0, rel=0.1)
    assert answer["conditions"][0]["holds"]
    assert {each["kind"] for each in answer["explanation"]} >= {"tool", "weight_sync"}


def test_markdown(call, pair):
    """A heading and a table that GitHub understands: every line has as many cells."""
    pair(scale={TOOL: 1.65})
    out = call("compare", "--md", "a", "b").out
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert out.startswith("### A a")
    assert table[1] == "|---|---:|---:|---:|---|"
    assert {line.count("|") for line in table} == {6}
