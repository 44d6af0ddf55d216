# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A long run is explained in memory that does not grow with it, and everything in it is found."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from verl_otel.analysis import reader
from verl_otel.analysis.model import Counts

pytestmark = pytest.mark.full

TOP = Path(__file__).resolve().parents[2]
PEAK = """
import json, resource, sys
from pathlib import Path
from verl_otel.analysis import reader
reader.PIECE_BYTES = 1 << 20  # a run of seconds is read in as many pieces as one of hours
run = reader.read([Path(sys.argv[1])], keep_after=float("inf"))[0]
print(json.dumps([len(run.steps), run.counts.spans, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


@pytest.fixture(scope="module")
def write(clean_python, tmp_path_factory):
    """Write a long run in a process of its own."""

    def made(steps, trajectories, *more, seconds=180):
        folder = tmp_path_factory.mktemp("big") / f"run-{steps}"
        clean_python(
            "-m", "tests.analysis.big_run", folder, "--steps", steps, "--trajectories", trajectories, *more, cwd=TOP, seconds=seconds,
        )  # fmt: skip
        return folder

    return made


def count(folder):
    """The spans of a folder by name, found by their text."""
    return Counter(
        part.partition('"')[0]
        for path in folder.glob("traces-*")
        for part in path.read_text().replace('"name":"verl_otel"', "").split('"name":"')[1:]
    )


@pytest.fixture(scope="module")
def run_and_counts(write):
    """A run of some steps with two that are slow, and what its files hold."""
    folder = write(100, 8)
    return reader.read([folder], keep_after=math.inf)[0], count(folder)


def test_everything_in_it_is_counted(run_and_counts):
    """Every span of every file was read once, and each kind is as many as its files say."""
    run, counts = run_and_counts
    assert run.counts == Counts(
        spans=sum(counts.values()),
        trajectories=counts["verl.trajectory"],
        trained=counts["verl.trajectory"],
        llm_calls=counts["chat qwen"],
        tool_calls=counts["execute_tool search"],
        rewards=counts["verl.reward"],
        processes=14,
    )
    assert len(run.steps) == counts["verl.step"] == 100
    assert run.completeness == ((), (), 0)
    assert run.problems == ()


def test_its_slow_steps_are_named(run_and_counts):
    """The two steps that waited for one tool have their verdict, and the waits are the slowest trajectories."""
    run, _ = run_and_counts
    found = {step.number: step.verdicts[0] for step in run.steps if step.verdicts}
    held = {number: verdict for number, verdict in found.items() if verdict.saved > 10}
    assert {
        number: (verdict.kind, verdict.cause, verdict.cause_name) for number, verdict in held.items()
    } == dict.fromkeys((49, 99), ("trajectory", "tool", "search"))
    assert all(19 < verdict.seconds < 21 for verdict in held.values())
    assert {each.step for each in run.slowest[:2]} == {49, 99}


def test_its_gpu_time_sums_up(run_and_counts):
    """Every GPU is accounted for to the nanosecond."""
    run, _ = run_and_counts
    assert [sum(device.nanoseconds.values()) for device in run.devices] == [run.end_ns - run.start_ns] * 4


def test_memory_does_not_grow_with_the_run(write, clean_python):
    """Four times as many steps take about the same memory."""
    peaks = {}
    for steps in (200, 800):
        done = clean_python("-c", PEAK, write(steps, 16), seconds=300)
        found, spans, peaks[steps] = json.loads(done.stdout)
        assert (found, spans) == (steps, steps * (16 * 8 + 22))
    assert peaks[800] < 1.5 * peaks[200]


# -- A week on 1,024 GPUs in small: as many ranks, and two million spans --

ASKED = """
import json, resource, sys, time
from pathlib import Path
from verl_otel.analysis import reader
from verl_otel.analysis.scalars import find_rewards
folder, found, cpu, peaks = [Path(sys.argv[1])], [], [], []
for steps in (None, None, frozenset({81})):
    begin = time.process_time()
    found.append(reader.read(folder, steps=steps, keep_after=0.0)[0])
    cpu.append(time.process_time() - begin)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
whole, again, one = found
held = {step.number: [verdict.cause_name for verdict in step.verdicts][:1] for step in whole.steps if step.number % 50 == 49}
print(json.dumps({
    "spans": whole.counts.spans, "processes": whole.counts.processes, "steps": len(whole.steps), "problems": whole.problems,
    "held": held, "again": again == whole, "rewards": list(find_rewards(whole.series)),
    "detail": [step.number for step in one.steps if step.path and step.number == 81],
    "cpu": cpu, "peak_kib": peaks[0],
}))
"""
STEPS, TRAJECTORIES, RANKS = 178, 1024, 1024


@pytest.fixture(scope="module")
def asked(write, clean_python, tmp_path_factory):
    """The explanations of such a run: the first, a second, and one with the detail of a step."""
    folder = write(STEPS, TRAJECTORIES, "--ranks", RANKS, "--hosts", 128, seconds=600)
    cache = tmp_path_factory.mktemp("cache")
    return json.loads(clean_python("-c", ASKED, folder, seconds=1200, XDG_CACHE_HOME=str(cache)).stdout)


def test_two_million_spans_of_a_thousand_ranks_are_all_read(asked):
    """Every span and every process is counted, the scalars of the trainer are there, and the slow steps are named."""
    spans = STEPS * (TRAJECTORIES * 8 + TRAJECTORIES // 128 + 9 + 3 * RANKS)
    assert spans > 2_000_000
    assert (asked["spans"], asked["processes"], asked["steps"]) == (spans, RANKS + 10, STEPS)
    assert asked["rewards"] == list(range(1, STEPS + 1))
    assert asked["held"] == {"49": ["search"], "99": ["search"], "149": ["search"]}
    (left_out,) = asked["problems"]  # no host's clock is unknown, no trace was given up
    assert "more series than are kept" in left_out


def test_it_is_read_once(asked):
    """The second answer is the same, and it and the detail of a step take a twentieth of the first one's CPU."""
    first, again, one = asked["cpu"]
    assert asked["again"]
    assert asked["detail"] == [81]
    assert again < first / 20
    assert one < first / 20
    assert asked["peak_kib"] < 1 << 20
