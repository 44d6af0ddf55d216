# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Results: from what processes found to JSON and back."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import results as module
from benchmarks.case import Case, Operation, Target, Variant
from benchmarks.processes import Measured
from tests.benchmarks.benchmarks_found import case, measured, results


def test_processes_are_summarized():
    """Overheads over the baseline in the unit of the case, ratios by round, one figure of each process."""
    found = module.summarize(case(), [measured(100, 1000), measured(110, 1000), measured(120, 1200)])
    assert found.overheads["verl_otel"].values == (100, 110, 120)
    assert found.overheads["baseline"].values == (20, 20, 20)
    overhead, ratio = found.verdicts
    assert (overhead.outcome, ratio.outcome) == ("met", "not significant")
    assert ratio.values == (10, pytest.approx(1000 / 110, rel=1e-4), 10)
    assert ratio.estimate.value == 10


def test_who_is_missing_is_said():
    """A peer that is not installed is no failure: its reason stands in the table, and its promise is not met."""
    without = Measured({"baseline": [2e-8], "verl_otel": [1.2e-7]}, {"peer": "peer is not installed"})
    found = module.summarize(case(), [without, without, without], ["exit code 1"])
    assert found.overheads["peer"].missing == "peer is not installed"
    assert [each.outcome for each in found.verdicts] == ["met", "not measured"]
    assert found.failures == ("exit code 1",)


@given(st.lists(st.tuples(st.floats(1, 1e5), st.floats(1, 1e5)), min_size=1, max_size=12), st.text(max_size=20))
def test_a_file_holds_all_of_it(tmp_path_factory, pairs, commit):
    """Written and read it is the same, for any figures."""
    path = tmp_path_factory.mktemp("results") / "found.json"
    written = results([measured(*pair) for pair in pairs], machine={"commit": commit})
    module.write(written, path)
    assert module.read(path) == written


def test_a_file_can_be_read_without_us(tmp_path):
    """Medians, intervals and verdicts are in it, too."""
    path = tmp_path / "found.json"
    module.write(results([measured(100, 1200)] * 9), path)
    said = json.loads(path.read_text())
    assert said["schema"] == 1
    assert said["cases"][0]["overheads"]["verl_otel"]["estimate"]["value"] == 100
    assert said["cases"][0]["verdicts"][1] == {
        "title": "a call",
        "ours": "verl_otel",
        "against": "peer",
        "bound": 10,
        "values": [12] * 9,
        "figure": "",
        "decides": True,
        "estimate": {"value": 12, "low": 12, "high": 12, "confidence": pytest.approx(0.961, abs=1e-3), "processes": 9},
        "verdict": "met",
    }


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1}', "no JSON"])
def test_another_file_is_refused(tmp_path, text):
    """With its name and what is wrong, not with a traceback."""
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json"):
        module.read(path)


def paired(shares, figure=0.05):
    """Processes in which two of the same are as far apart as ``shares`` say, and ours always takes a twentieth longer."""
    return [
        Measured(
            {"baseline": [1.0], "again": [1.0 + share], "verl_otel": [1.05]}, figures={"verl_otel": {"share": [figure]}}
        )
        for share in shares
    ]


def trained(found):
    """A case with a null test and a promise of a figure."""
    variants = tuple(Variant(name, "as it is", lambda: Operation(float)) for name in ("baseline", "again", "verl_otel"))
    made = Case(
        "training",
        "a step",
        variants,
        (Target("its share", 0.1, figure="share"),),
        figures={"share": "%"},
        null="again",
    )
    return module.summarize(made, found)


def test_a_promise_of_a_figure_is_judged_by_it():
    """Not by the overhead, which is in other units and beside the point."""
    (kept,) = trained(paired([0.0] * 9)).verdicts
    assert (kept.outcome, kept.values) == ("met", (0.05,) * 9)
    (broken,) = trained(paired([0.0] * 9, figure=0.2)).verdicts
    assert broken.outcome == "not met"
    (nothing,) = trained([Measured({"baseline": [1.0], "verl_otel": [1.0]})]).verdicts
    assert nothing.outcome == "not measured"


def test_pairs_and_figures_are_in_the_file(tmp_path):
    """Read back they are the same; somebody without us finds the bound that they give."""
    path = tmp_path / "found.json"
    made = trained(paired([-0.01, 0.01, 0.0, 0.0, 0.002, -0.002, 0.001, -0.001, 0.003]))
    module.write(replace(results([measured(1, 1)]), cases=(made,)), path)
    (found,) = module.read(path).cases
    assert found == made
    (said,) = json.loads(path.read_text())["cases"]
    assert said["pairs"]["verl_otel"]["most"] == pytest.approx(0.05)
    assert said["figures"]["share"]["estimates"]["verl_otel"]["value"] == 0.05
