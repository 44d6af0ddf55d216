# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""All commands and pages give the same causes, seconds and shares for the same run."""

import json
import re

import pytest

from tests.analysis.test_process_pauses import add_causes
from tests.builders import stories
from verl_otel._internal.printable import seconds
from verl_otel.analysis import summary
from verl_otel.cli.demo.command import RECORDED, RECORDINGS
from verl_otel.cli.page import data
from verl_otel.cli.view import site

TWO = "two-causes"
"""A run with a slow tool and a pause in one step, and a slow tool in another one."""


@pytest.fixture(params=[*RECORDINGS, TWO])
def folder(request, runs):
    """A recorded run of verl, or one with several causes in a step."""
    if request.param != TWO:
        return RECORDED / request.param
    return add_causes(stories.Story(runs / TWO, TWO), ("search", 1.9), pause=1.5).write()


@pytest.fixture
def printed(folder, call):
    """What the commands print of the run: JSON of explain and report, and their texts without line breaks."""
    explained = json.loads(call("explain", folder, "--steps", 1000, "--json").out)
    reported = json.loads(call("report", folder, "--json").out)
    return explained, reported, call("explain", folder, "--steps", 1000).out, call("report", folder).out


def flatten(text):
    """A text with one space in place of each space and line break."""
    return " ".join(text.split())


def test_steps_that_were_held_are_the_same_everywhere(folder, call, printed):
    """Their number, what each lost, and the sum; the share is of the time of all steps."""
    explained, reported, text, _ = printed
    held = {step["number"]: step["longer"] for step in explained["steps"] if step["verdicts"]}
    lengths = {step["number"]: step["seconds"] for step in reported["steps"]}
    compared = json.loads(call("compare", folder, folder, "--json").out)["held"]["a"]
    assert (compared["steps"], compared["of"]) == (len(held), len(lengths))
    assert compared["seconds"] == pytest.approx(sum(held.values()))
    run = summary.explain([folder])
    columns = data.build(run)["steps"]
    saved = dict(zip([step.number for step in run.steps], columns["saved"], strict=True))
    assert {number: value / columns["unit"] for number, value in saved.items() if value} == pytest.approx(
        held, abs=0.01
    )
    for number, longer in held.items():
        assert re.search(rf"Step {number}\b[^\n]*, {re.escape(seconds(longer))} longer than usual", text)
    if held:
        share = sum(held.values()) / sum(lengths.values())
        total = f"{len(held)} of {len(lengths)} steps took longer than usual, by {seconds(sum(held.values()))} in all"
        assert f"{total} ({share:.0%} of the time of all steps)" in text


def test_causes_are_the_same_everywhere_and_in_one_order(folder, call, printed):
    """The step that lost most comes first, and of each step the largest cause."""
    explained, _, text, report = printed
    held = sorted((step for step in explained["steps"] if step["verdicts"]), key=lambda step: -step["longer"])
    run = summary.explain([folder])
    lines = [line["text"] for line in site.describe_run(run)["findings"]]
    causes = [line for line in lines if " delayed it: " in line or " blocked the " in line or " was paused " in line]
    assert [int(re.match(r"Step (\d+)", line)[1]) for line in causes] == [
        step["number"] for step in held for _ in step["verdicts"]
    ][: len(causes)]
    assert bool(causes) == bool(held)
    for line in lines:
        assert line in report
    sentences = [sentence for line in causes if (sentence := line.partition("): ")[2])]
    brief = flatten(call("explain", folder, "--steps", 1000, "--brief").out)
    for sentence in sentences:
        assert sentence[1:] in flatten(text)
        assert sentence[1:] in brief
    for step in held:
        assert [cause["saved"] for cause in step["verdicts"]] == sorted(
            (cause["saved"] for cause in step["verdicts"]), reverse=True
        )
