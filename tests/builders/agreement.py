# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""All commands and pages give the same causes, seconds and shares for the same run."""

import json
import re

import pytest

from verl_otel._internal.printable import seconds
from verl_otel.analysis import reader
from verl_otel.cli.page import data


def check(folder, call):
    """Compare what commands and pages say of a run.

    Args:
        folder: Its folder.
        call: Calls a command with some words and returns what it prints.
    """
    explained = json.loads(call("explain", folder, "--steps", 1000, "--json"))
    text = call("explain", folder, "--steps", 1000)
    check_steps(folder, call, explained, text)
    check_causes(folder, call, explained, text)


def check_steps(folder, call, explained, text):
    """The number of steps that were held, what each lost, and the sum; the share is of the time of all steps."""
    reported = json.loads(call("report", folder, "--json"))["steps"]
    held = {identify(step): step["longer"] + step["next_late"] for step in explained["steps"] if step["verdicts"]}
    compared = json.loads(call("compare", folder, folder, "--json"))["held"]["a"]
    longer = sum(step["longer"] > 0 for step in explained["steps"])
    assert (compared["steps"], compared["of"]) == (longer, len(reported))
    assert compared["seconds"] == pytest.approx(sum(held.values()))
    columns = data.list_steps(reader.read([folder])[0])
    saved = [(identify(reported[cause["index"]]), cause["saved"]) for cause in columns["held"]]
    causes = [(identify(step), cause["saved"]) for step in explained["steps"] for cause in step["verdicts"]]
    assert sorted(saved) == [(step, pytest.approx(value, abs=0.01)) for step, value in sorted(causes)]
    for step in (step for step in explained["steps"] if step["verdicts"]):
        title = next(line for line in text.splitlines() if re.match(rf"Step {step['number']}\b", line))
        for key, words in (
            ("longer", "(longer than usual|less)"),
            ("unexplained", "are not explained"),
            ("next_late", "late"),
        ):
            assert not step[key] or re.search(rf"{re.escape(seconds(step[key]))} {words}", title)
    if held:
        assert f"{compared['text']}." in text
        assert compared["text"] in call("explain", folder, "--brief")
        share = sum(held.values()) / sum(step["seconds"] + step["between"] for step in reported)
        assert f"{seconds(sum(held.values()))} " in text
        assert f"({share:.0%} of the time of all steps and between them)" in text


def check_causes(folder, call, explained, text):
    """The step that lost most comes first, and of each step the largest cause."""
    held = sorted((step for step in explained["steps"] if step["verdicts"]), key=lambda step: -step["longer"])
    lines = [line["text"] for line in data.describe_run(reader.read([folder])[0])["findings"]]
    causes = [line for line in lines if re.match(r"Step \S+ \(", line)]
    report, brief = call("report", folder), call("explain", folder, "--steps", 1000, "--brief")
    for line in lines:
        assert line in report
    verdicts = [line for line in causes if "it waited up to " not in line]
    for line in verdicts:
        sentence = line.partition("): ")[2][1:]
        assert sentence in flatten(text)
        assert sentence in flatten(brief)
    if causes and not explained["counts"]["unexplained"]:
        assert causes[0].partition("): ")[2][1:] in flatten(text)
    numbers = [step["number"] for step in held for _ in step["verdicts"]]
    assert [int(re.match(r"Step (\d+)", line)[1]) for line in verdicts] == numbers[: len(verdicts)]
    for step in held:
        saved = [cause["saved"] for cause in step["verdicts"]]
        assert saved == sorted(saved, reverse=True)


def identify(step):
    """What tells a step from others."""
    return step["attempt"], step["number"]


def flatten(text):
    """A text with one space in place of each space and line break."""
    return " ".join(text.split())
