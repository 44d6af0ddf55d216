# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The sentences of ``verl-otel explain``: each kind of verdict has one, savings of phases add up."""

import re

import pytest

from tests.builders import explanations
from verl_otel.analysis import findings
from verl_otel.analysis.model import Part, Trajectory, Verdict
from verl_otel.cli import formatting, wording


def test_long_names_are_cut_and_not_the_sentence(call, explained):
    """Of a tool with a name of 400 characters: what it did and what it cost is whole, and tables stay narrow."""
    name = "search_" + "x" * 400
    verdict = Verdict(2, 4.4, "trajectory", "u/1", "tool", name, 3, 2, instance=f"agent_loop-{'9' * 400}")
    made = explanations.steps({**explanations.HEALTHY, ("tool", name): 2.0}, 3)
    trajectory = Trajectory(7, "u", 1, 2, False, 0, 10**9, None, False, True, (Part("tool", name, 1.0, 1, None),))
    run = explanations.explanation([made[0], made[1]._replace(verdicts=(verdict,)), made[2]])
    explained(run._replace(slowest=(trajectory,)))
    sentence = wording.describe_verdict(verdict)
    assert sentence.endswith(
        " took 3.00 s longer than for its peers. Without that the step would have been 2.00 s shorter."
    )
    assert len(sentence) < 400
    assert max(map(len, call("explain", "r1").out.splitlines())) < 160
    assert max(map(len, call("report", "r1").out.partition("Slowest trajectories")[2].splitlines())) < 120


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (
            Verdict(1, 9, "replica", "llm_server-1", "server", "", 3, 2),
            "Replica llm_server-1 delayed it: its calls took 3.00 s longer than those of the others.",
        ),
        (Verdict(1, 9, "tool", "python", "tool", "python", 3, 2), "Tool python delayed it: 3.00 s longer than usual."),
        (Verdict(1, 9, "reward", "", "reward", "gsm8k", 3, 2), "The reward delayed it: 3.00 s longer than usual."),
        (
            Verdict(1, 9, "phase", "update_weights", "weight_sync", "", 3, 2),
            "Phase update_weights delayed it: 3.00 s longer than in other steps, most of it in the weight sync.",
        ),
        (
            Verdict(1, 9, "phase", "save_checkpoint", "phase", "save_checkpoint", 3, 2),
            "Phase save_checkpoint delayed it: 3.00 s longer than in other steps.",
        ),
        (
            Verdict(1, 9, "rank", "rank 3", "worker", "update_actor", 3, 2, instance="actor-3"),
            "Rank 3 delayed it: the others of its group waited 3.00 s for it in update_actor (on actor-3).",
        ),
        (
            Verdict(1, 9, "comet", "x", "unknown", "", 3, 2),
            "comet x delayed it: unknown: covered by no span took 3.00 s too long.",
        ),
    ],
)
def test_every_kind_of_verdict_reads_well(verdict, text):
    """Each kind has its sentence, and what it cost follows; a kind that is new still makes one."""
    assert wording.describe_verdict(verdict) == f"{text} Without that the step would have been 2.00 s shorter."


@pytest.mark.parametrize(
    ("verdicts", "seconds"),
    [
        ([("phase", "gen", "phase", 1.0), ("tool", "python", "tool", 1.5)], 1.5),
        ([("phase", "gen", "phase", 1.0), ("phase", "update_weights", "weight_sync", 0.2)], 1.2),
        ([("tool", "python", "tool", 1.0), ("rank", "rank 1", "worker", 0.5)], 1.5),
        ([("phase", "update_actor", "worker", 0.7), ("rank", "rank 1", "worker", 0.5)], 0.7),
        ([("phase", "gen", "phase", 9.0), ("phase", "update_weights", "weight_sync", 9.0)], 4.4),
        ([], 0.0),
    ],
)
def test_what_held_different_phases_adds_up(verdicts, seconds):
    """Two verdicts on one phase tell the same wait, those on two phases two; nothing is longer than the step."""
    made = tuple(
        Verdict(1, 4.4, kind, subject, cause, "update_actor" if kind == "rank" else "", saved, saved)
        for kind, subject, cause, saved in verdicts
    )
    step = explanations.step(1, explanations.HEALTHY, verdicts=made)
    path = tuple(each._replace(trace_id=7) if each.kind == "tool" else each for each in step.path)
    assert findings.sum_savings(step._replace(path=path)) == pytest.approx(seconds)


def test_a_number_is_not_divided_from_its_unit():
    """Wherever a line ends."""
    text = "Without that the step would have been 1.50 s shorter, 31 % of it, and 4.0 GiB less."
    for width in range(12, 60):
        lines = formatting.wrap(text, width, first="  ", rest="    ")
        assert " ".join(line.strip() for line in lines) == text
        assert not [line for line in lines if re.search(r"\d$", line)]
        assert max(map(len, lines)) <= width
