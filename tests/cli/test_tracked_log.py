# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel explain`` of a log of verl's own file logger: time, learning, what is not known, and logs that are odd.

``file_logger.jsonl`` is the log of a real training of a tiny model on a CPU (verl 0.9.1, trainer ``sync``, 36 steps), reduced to the keys that are
needed and to five digits. Planted were a weight sync of 4 s in step 17, and 1.2 s in each computation of advantages from step 24 on.
"""

import json
import math
import random
from pathlib import Path
from statistics import fmean, median

import pytest

from tests.builders import stories

RECORDED = Path(__file__).with_name("file_logger.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-a-report.md"
START_UP = 1
"""The step that contains the start of the workers."""


@pytest.fixture(scope="module")
def recorded():
    """The values of the real training, by step."""
    return {line["step"]: line["data"] for line in map(json.loads, RECORDED.read_text().splitlines())}


@pytest.fixture
def write(tmp_path):
    """Write a log, a line for each pair of step and values."""

    def make(lines, name="log.jsonl", end=""):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in lines) + end)
        return path

    return make


@pytest.fixture
def explain(call):
    """Return the JSON about some files."""

    def run(*paths):
        result = call("explain", *paths, "--json")
        assert result.code == 0, result.err
        return json.loads(result.out)

    return run


def train(steps=30, seconds=10.0, first=1, **values):
    """Lines of a training in which every step is the same; a value may be a function of the step."""
    for step in range(first, first + steps):
        own = {key: value(step) if callable(value) else value for key, value in values.items()}
        gen = own.pop("timing_s/gen", seconds * 0.8)
        update = seconds * 0.2
        yield step, {"timing_s/gen": gen, "timing_s/update_actor": update, "timing_s/step": gen + update, **own}


# -- The real training --


def test_the_time_of_each_phase_is_that_of_the_log(explain, recorded):
    """Sums, shares, medians and longest times, computed here in another way; validation is after the step, a checkpoint in it."""
    document = explain(RECORDED)
    later = {step: data for step, data in recorded.items() if step != START_UP}
    tested = sum(data.get("timing_s/testing", 0) for data in recorded.values())
    whole = sum(data["timing_s/step"] for data in later.values()) + tested
    assert document["seconds"] == pytest.approx(sum(data["timing_s/step"] for data in recorded.values()) + tested)
    assert document["median"] == pytest.approx(median(data["timing_s/step"] for data in recorded.values()))
    assert document["counts"] == {"steps": 36, "attempts": 1, "repeated": 0, "held": 1, "unexplained": 0}
    found = {phase.pop("name"): phase for phase in document["phases"]}
    rest = found.pop("no phase")
    for name, phase in found.items():
        values = {step: data[f"timing_s/{name}"] for step, data in later.items() if f"timing_s/{name}" in data}
        longest = max(values, key=values.get)
        assert phase == {
            "seconds": pytest.approx(sum(values.values())), "share": pytest.approx(sum(values.values()) / whole),
            "median": pytest.approx(median(values.values())), "longest": values[longest], "longest_step": longest,
            "steps": len(values), "outside": name == "testing",
        }  # fmt: skip
    assert set(found) == {key.partition("/")[2] for data in later.values() for key in data if key.startswith("timing_s/")} - {"step"}  # fmt: skip
    assert rest["seconds"] + sum(phase["seconds"] for phase in found.values()) == pytest.approx(whole)
    assert [phase["seconds"] for phase in document["phases"]] == sorted((phase["seconds"] for phase in document["phases"]), reverse=True)  # fmt: skip


def test_what_was_planted_is_what_is_found(explain, recorded):
    """The lasting change with its first step, and the one slow step with its phase; steps after the change are not slow ones."""
    document = explain(RECORDED)
    changes = {change["name"]: change for change in document["changes"]}
    assert set(changes) == {"step", "adv"}
    for name, change in changes.items():
        times = {step: data[f"timing_s/{name}"] for step, data in recorded.items()}
        assert change == {
            "name": name, "step": 24, "last_step": 36, "sudden": True,
            "before": pytest.approx(median(times[step] for step in range(4, 24))),
            "after": pytest.approx(median(times[step] for step in range(24, 37))),
            "tokens": {"key": "perf/total_num_tokens", "before": 192, "after": 192},
        }  # fmt: skip
    (step,) = document["steps"]
    (verdict,) = step["verdicts"]
    others = [data["timing_s/update_weights"] for number, data in recorded.items() if number not in (START_UP, 17)]
    # The first other step does not count: what occurs for the first time is slower.
    excess = pytest.approx(recorded[17]["timing_s/update_weights"] - median(others[1:]))
    assert (step["number"], step["seconds"]) == (17, recorded[17]["timing_s/step"])
    assert step["phases"] == {key[9:]: value for key, value in recorded[17].items() if key[9:] != "step" and key.startswith("timing_s/")}  # fmt: skip
    assert (verdict["kind"], verdict["subject"], verdict["cause"]) == ("phase", "update_weights", "weight_sync")
    assert (verdict["seconds"], verdict["saved"], verdict["step_seconds"]) == (excess, excess, step["seconds"])


def test_each_signal_is_that_of_the_log(explain, recorded):
    """Means of the first and last third, extremes with their steps, and the trend by counting pairs; every signal of verl is there."""
    document = explain(RECORDED)
    assert {signal["name"] for signal in document["signals"]} == {
        "reward_mean", "kl_div", "kl_reference", "entropy", "policy_loss", "grad_norm", "clip_ratio", "response_length_mean",
        "response_clip_ratio", "tokens", "tokens_per_second_per_gpu", "host_memory_gib",
    }  # fmt: skip
    for signal in document["signals"]:
        values = [recorded[step][signal["key"]] for step in sorted(recorded)]
        parts = [fmean(values[36 * part // 20 : 36 * (part + 1) // 20]) for part in range(20)]
        signs = [math.copysign(late != early, late - early) for at, late in enumerate(parts) for early in parts[:at]]
        assert signal["begin"] == pytest.approx(fmean(values[:12]))
        assert signal["end"] == pytest.approx(fmean(values[24:]))
        assert (signal["low"], signal["low_step"]) == (min(values), values.index(min(values)) + 1)
        assert (signal["high"], signal["high_step"]) == (max(values), values.index(max(values)) + 1)
        assert signal["trend"] == pytest.approx(sum(signs) / 190)
        assert signal["not_finite"] == 0
    rewards = [recorded[step]["critic/rewards/mean"] for step in sorted(recorded)]
    means = {last: fmean(rewards[last - 5 : last]) for last in range(5, 37)}
    best = max(means, key=means.get)
    assert f"ended at step {best}, {36 - best} steps before the last one" in document["progress"]
    assert document["findings"] == []


def test_the_text_is_that_of_the_documentation(call):
    """Time, change, slow step, learning, what is not known, and what to do next: all lines."""
    result = call("explain", RECORDED)
    assert result.code == 0
    assert result.out.replace(str(RECORDED), "bed/plain.jsonl") in PAGE.read_text("utf-8")


def test_one_step(call, recorded):
    """All its phases and values next to the usual ones; a step that the log lacks is refused."""
    result = call("explain", RECORDED, "--step", "17")
    usual = median(data["timing_s/gen"] for step, data in recorded.items() if step not in (START_UP, 17))
    assert f"       423 ms  gen (others: median {usual * 1000:.0f} ms)" in result.out
    assert f"        5.734  entropy (median of all steps {median(data['actor/entropy'] for data in recorded.values()):.4g})" in result.out  # fmt: skip
    assert "Time in phases" not in result.out
    missing = call("explain", RECORDED, "--step", "40")
    assert (missing.code, missing.err) == (2, "verl-otel: step 40 is not in the log: it has 1 to 36\n")


def test_brief_is_brief(call):
    """At most 40 lines, as for a recorded run."""
    lines = call("explain", RECORDED, "--brief").out.splitlines()
    assert len(lines) <= 40
    assert all(lines)


def print_step(step, data):
    """A line as verl's console logger prints it, some of whose values are of numpy."""
    values = [f"np.float64({value!r})" if place % 3 else f"{value!r}" for place, value in enumerate(data.values())]
    return " - ".join([f"step:{step}", *(f"{key}:{value}" for key, value in zip(data, values, strict=True))])


def test_what_verl_printed_says_the_same_as_its_file(call, explain, recorded, tmp_path):
    """Between other output, after what Ray and a progress bar write before a line, and with what stands behind it."""
    frames = (
        "{}",
        "\x1b[36m(TaskRunner pid=1234, ip=10.0.0.1)\x1b[0m {}",
        "Training Progress:   3%|3  | 1/36 [00:05<02:35,  5.3s/it]{} \x1b[32m [repeated 2x across cluster]\x1b[0m",
        "\r{}\r",
    )
    path = tmp_path / "console.log"
    lines = ["(TaskRunner pid=1) global_step:7 - loading: 3"] * 200
    for step, data in recorded.items():
        lines += [frames[step % len(frames)].format(print_step(step, data)), "(WorkerDict pid=9) x - y:3", "step:"]
    path.write_text("\n".join(lines))
    found, expected = explain(path), explain(RECORDED)
    for key in set(found) - {"run_id", "folders", "next"}:
        assert found[key] == expected[key], key
    assert call("explain", path).out.startswith(
        f"Log {path} of verl's console logger: a run without verl-otel\n36 steps"
    )
    assert (
        f"is a log of verl's console logger, and no run: verl-otel explain {path} reads it" in call("report", path).err
    )


# -- Why it got slow --


def test_growth_over_a_run_comes_with_the_tokens_that_explain_it(explain, call, write):
    """Generation that grows step by step with its responses is one gradual change, and no step is slow."""
    grown = {"timing_s/gen": lambda step: 8 + 0.2 * step, "response_length/mean": lambda step: 100.0 + 10 * step}
    path = write(train(90, **grown))
    document = explain(path)
    change = next(change for change in document["changes"] if change["name"] == "gen")
    assert (change["sudden"], change["step"], change["last_step"]) == (False, 1, 90)
    assert (change["before"], change["after"]) == (pytest.approx(8 + 0.2 * 10.5), pytest.approx(8 + 0.2 * 80.5))
    assert change["tokens"] == {"key": "response_length/mean", "before": 205, "after": 905}
    assert document["counts"]["held"] == 0
    assert (
        "From step 1 to 90 gen grew from 10.10 s to 24.10 s; response_length/mean went from 205 to 905"
        in call("explain", path).out
    )


def test_several_changes_of_a_phase(explain, write):
    """A phase that was slow for some time has two changes: when it became slow and when it no longer was."""
    path = write(train(120, **{"timing_s/gen": lambda step: 20.0 if 40 < step <= 80 else 8.0}))
    changes = [change for change in explain(path)["changes"] if change["name"] == "gen"]
    assert sorted((change["step"], change["before"], change["after"]) for change in changes) == [
        (41, 8, 20),
        (81, 20, 8),
    ]


def test_noise_is_no_change(explain, write):
    """Steps that differ by a tenth, and steps of two lengths in any order, have no change."""
    for seed in range(10):
        choose = random.Random(seed)
        noisy = [(step, {**data, "timing_s/gen": choose.gauss(8, 0.8)}) for step, data in train(100)]
        mixed = [(step, {**data, "timing_s/gen": choose.choice((8, 14))}) for step, data in train(100)]
        assert [explain(write(lines))["changes"] for lines in (noisy, mixed)] == [[], []]


def test_a_slow_generation_is_that_of_its_slowest_trajectory(call, explain, write):
    """Trainers that log their agent loops say whether model, tool or reward took the time."""
    slow = {"timing_s/gen": lambda step: 30.0 if step == 20 else 8.0, "timing_s/agent_loop/slowest/tool_calls": lambda step: 23.0 if step == 20 else 1.0}  # fmt: skip
    path = write(train(30, **slow, **{"timing_s/agent_loop/slowest/generate_sequences": 6.0}))
    (verdict,) = explain(path)["steps"][0]["verdicts"]
    assert (verdict["step"], verdict["subject"], verdict["cause"], verdict["seconds"]) == (20, "gen", "tool", 22)
    assert "most of it in tool" in call("explain", path).out
    assert "To do: give the tool a time-out" in call("explain", path).out
    alone = write(train(30, **{"timing_s/gen": slow["timing_s/gen"]}))
    assert (
        "To do: train again with VERL_OTEL_ENABLED=1, which records what the step waits for in gen"
        in call("explain", alone).out
    )
    assert {phase["name"] for phase in explain(path)["phases"]} == {"gen", "update_actor", "no phase"}


def test_a_slow_validation_delays_the_next_step(explain, write):
    """A phase after the step is judged, too; its steps are not longer by it."""
    lines = [(step, {**data, **({"timing_s/testing": 90.0 if step == 20 else 15.0} if step % 5 == 0 else {})}) for step, data in train(40)]  # fmt: skip
    document = explain(write(lines))
    (verdict,) = document["steps"][0]["verdicts"]
    assert (verdict["kind"], verdict["cause"], verdict["seconds"]) == ("between", "validation", 75)
    assert document["steps"][0]["seconds"] == 10


# -- Why the reward stopped --


def test_what_was_wrong_with_the_learning(explain, call, write):
    """It is listed with its step and with what to do."""
    path = write(train(40, **{"actor/ppo_kl": lambda step: 0.3 if step >= 20 else 0.01}))
    (finding,) = explain(path)["findings"]
    assert (finding["kind"], finding["step"], finding["last_step"], finding["times"]) == ("kl", 24, 40, 1)
    assert finding["text"] == "actor/ppo_kl 0.3 is above 0.2, for 5 steps (noticed at step 24, lasted until step 40)"
    assert f"  Step 20: {finding['text']}. To do: lower" in call("explain", path).out


def test_a_value_of_the_learning_is_that_of_the_step_at_which_it_was_noticed(explain, write):
    """Which may be later than it began; what went away and came back has the value of the first time."""

    def diverge(step):
        return step / 10 if 11 <= step <= 17 or step >= 31 else 0.01

    path = write(train(37, **{"actor/ppo_kl": diverge, "critic/score/min": 1, "critic/score/max": lambda step: 1 + (step not in (3, 9))}))  # fmt: skip
    texts = {finding["kind"]: finding["text"] for finding in explain(path)["findings"]}
    assert texts == {
        "kl": "actor/ppo_kl 1.5 is above 0.2, for 5 steps (noticed at step 15, the first of 2 times, the last at step 37)",
        "equal_scores": "all scores of the step were 1 (the first of 2 times, the last at step 9)",
    }


def test_thresholds_are_those_of_the_setting(explain, write, monkeypatch):
    """The log itself has none."""
    path = write(train(40, **{"response_length/clip_ratio": 0.6}))
    assert explain(path)["findings"] == []
    monkeypatch.setenv("VERL_OTEL_HEALTH_PROFILE", "math")
    (finding,) = explain(path)["findings"]
    assert (finding["kind"], finding["step"]) == ("truncated", 10)
    assert explain(path)["profile"] == "math"


def test_null_is_nan(explain, call, write):
    """The logger of verl writes null for NaN and infinity: such values are counted, and in no mean."""
    path = write(train(30, **{"critic/rewards/mean": lambda step: None if step in (5, 6) else 0.5}))
    (signal,) = explain(path)["signals"]
    assert (signal["not_finite"], signal["begin"], signal["low"]) == (2, 0.5, 0.5)
    assert "NaN in 2 steps" in call("explain", path).out


# -- Logs that are odd --


def test_several_lines_of_one_step(explain, write):
    """As fully asynchronous training and validation before the training write them: one step each, with the values of all lines."""
    lines = [(0, {"val-core/math/acc/mean@1": 0.1})]
    for step, data in train(20):
        lines += [
            (step, {"timing_s/rollouter/active_time": 5.0, "fully_async/rollouter/idle_ratio": 0.2}),
            (step, {**data, "timing_s/timing_s/param_sync": 0.1, "fully_async/count/stale_samples_processed": step, "timing_per_token_ms/gen": 1}),
            (step, {"val-core/math/acc/mean@1": step / 20}),
        ]  # fmt: skip
    document = explain(write(lines))
    assert document["counts"]["steps"] == 21
    assert document["counts"]["attempts"] == 1
    assert {phase["name"] for phase in document["phases"]} == {"gen", "update_actor", "param_sync", "no phase"}
    signals = {signal["name"]: signal for signal in document["signals"]}
    assert signals["stale_samples"]["high"] == 20
    assert (signals["val-core/math/acc/mean@1"]["low"], signals["val-core/math/acc/mean@1"]["high"]) == (0.05, 1)


def test_a_resumed_run(explain, call, write):
    """Steps that were trained again count for the time and not for the learning; parts may be in files of their own."""
    first = list(train(20, **{"critic/rewards/mean": 1.0}))
    again = list(train(20, first=16, **{"critic/rewards/mean": 3.0}))
    one = write([*first, *again])
    parts = write(first, "first.jsonl"), write(again, "again.jsonl")
    for paths in ((one,), parts):
        document = explain(*paths)
        assert document["counts"] == {"steps": 35, "attempts": 2, "repeated": 5, "held": 0, "unexplained": 0}
        assert document["seconds"] == 400
        (signal,) = document["signals"]
        assert (signal["low_step"], signal["high_step"], signal["end"]) == (1, 16, 3)
    assert "in 2 attempts (5 steps trained again, which took 50.00 s before)" in call("explain", one).out
    assert explain(write([*first, first[-1]]))["counts"]["attempts"] == 2


def test_a_run_that_was_started_again(explain):
    """The start-up of each attempt is no slow step, and what changed in both is found in both."""
    document = explain(RECORDED, RECORDED)
    assert (document["counts"]["steps"], document["counts"]["repeated"], document["counts"]["held"]) == (36, 36, 2)
    assert {(step["number"], step["verdicts"][0]["subject"]) for step in document["steps"]} == {(17, "update_weights")}
    shifts = [(change["step"], change["after"] > 1) for change in document["changes"] if change["name"] == "adv"]
    assert sorted(shifts) == [(2, False), (24, True), (24, True)]


def test_lines_that_cannot_be_read(explain, write):
    """A last line that is cut off, lines of something else, and a step without a number are skipped and counted in the output."""
    path = write(train(5), end='not JSON\n{"step": null, "data": {}}\n{"step": 6, "data": {"timing_s/st')
    document = explain(path)
    assert document["counts"]["steps"] == 5
    assert document["missing"][0].startswith("2 lines that could not be read")


def test_what_is_missing_is_said(explain, call, write):
    """A log with few keys has what can be known: a sentence for each thing that it lacks."""
    path = write([(step, {"loss": 1.0, "critic/rewards/mean": 0.5, "text": "x", "list": [1]}) for step in range(1, 6)])
    document = explain(path)
    assert (document["phases"], document["steps"], document["median"]) == ([], [], None)
    assert [text.partition(":")[0] for text in document["missing"]] == ["the time of steps", "the policy KL", "the gradient norm"]  # fmt: skip
    assert "5 steps, 1 to 5, without their lengths" in call("explain", path).out
    alone = explain(write([(step, {"perf/time_per_step": 2.0}) for step in (1, 2, 3)]))
    assert (alone["seconds"], alone["median"]) == (6, 2)
    assert "the time of phases: no timing_s/gen or another timer of a phase" in alone["missing"]


def test_a_file_without_a_step(call, tmp_path):
    """An empty log has nothing to explain; a file of something else is wrong usage, and a file of a run names its folder."""
    (tmp_path / "empty.jsonl").touch()
    empty = call("explain", tmp_path / "empty.jsonl")
    assert (empty.code, empty.out) == (1, "")
    assert "has no step yet" in empty.err
    (tmp_path / "other.jsonl").write_text('{"prompt": "x"}\n')
    other = call("explain", tmp_path / "other.jsonl")
    assert (other.code, other.out) == (2, "")
    assert "is no log of verl's file logger" in other.err
    folder = stories.training(tmp_path / "runs" / "r1").write()
    of_run = next(folder.glob("traces-trainer-*.jsonl"))
    assert f"is a file of a run: give the folder: verl-otel explain {folder}" in call("explain", of_run).err
    assert f"verl-otel explain {RECORDED} and verl-otel logs {RECORDED} read it" in call("report", RECORDED).err


def test_numbers_beyond_all_measure(explain, call, write):
    """Numbers that nothing can be computed with are no numbers."""
    odd = {"timing_s/gen": 1e305, "timing_s/ref": 1e12, "actor/grad_norm": 10**400, "critic/rewards/mean": 1e308}
    path = write([*train(5), (10**400, odd), (6, odd), (-1, odd), (7, {"timing_s/step": -1, "timing_s/gen": "fast"})])
    assert call("explain", path).code == 0
    assert explain(path)["seconds"] == 50


def test_names_from_outside_are_escaped(call, write):
    """Keys with control characters do not reach the terminal, and a log with many keys has few lines."""
    values = {f"timing_s/\x1b[31m{number}": 0.1 for number in range(300)}
    values |= {f"val-core/\x1b]0;{number}/acc/mean@1": 0.1 for number in range(300)}
    out = call("explain", write(train(30, **values))).out
    assert "\x1b" not in out
    assert len(out.splitlines()) <= 80


@pytest.mark.full
def test_a_log_of_ten_thousand_steps(call, write, recorded):
    """What is shown of it has as many lines as of a short one."""
    noise = random.Random(1)
    lines = [(step, {key: value * noise.gauss(1, 0.05) for key, value in recorded[2 + step % 20].items()}) for step in range(1, 10_001)]  # fmt: skip
    result = call("explain", write(lines))
    assert "10,000 steps, 1 to 10000" in result.out
    assert len(result.out.splitlines()) <= 80
