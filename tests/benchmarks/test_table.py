# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The tables: what they say, and that those of the documents are those of the committed file."""

from dataclasses import replace

import pytest

from benchmarks import table
from benchmarks.case import Case, Operation, Variant, load_cases
from benchmarks.processes import Measured
from benchmarks.results import HEADLINE, read, summarize
from tests.benchmarks.benchmarks_found import measured, results


def row(found):
    return table.headline(results(found)).splitlines()[2]


def test_a_time_does_not_break_what_a_ratio_keeps():
    """Times are a machine's: where a ratio is promised, too, it decides."""
    assert row([measured(200, 2400)] * 3) == (
        "| a call | 200 ns [200..200] | ≤ 150 ns: not met | peer: 12x [12..12], promised 10x: met | met |"
    )


def test_the_gravest_verdict_is_the_row_s():
    """One broken promise of a row breaks it; one that nobody measured does not pass for a kept one."""
    assert row([measured(100, 500)] * 3).endswith("| not met |")
    assert row([measured(100, 1000), measured(120, 1000)]).endswith("| not significant |")
    assert row([Measured({"baseline": [1e-8], "verl_otel": [2e-8]}, {"peer": "none"})]).endswith("| not measured |")


def test_the_details_show_everybody():
    """Who was not measured, too, and why."""
    text = table.details(results([Measured({"baseline": [1e-8], "verl_otel": [2e-8]}, {"peer": "is away"})]))
    assert "| peer | not measured | - | is away |" in text
    assert "| verl_otel | 10 ns [10..10] | 10 ns | verl_otel, as it is |" in text


def trained(shares, count=9, seconds=1.05):
    """The details of a case with a null test; ours takes a twentieth longer than the baseline."""
    variants = tuple(Variant(name, "as it is", lambda: Operation(float)) for name in ("baseline", "again", "verl_otel"))
    case = Case("training", "a step", variants, unit="s", figures={"its CPU": "%"}, null="again")
    found = [
        Measured(
            {"baseline": [1.0], "again": [1.0 + share], "verl_otel": [seconds]},
            figures={"verl_otel": {"its CPU": [0.25]}},
        )
        for share in shares[:count]
    ]
    return table.details(replace(results([measured(1, 1)]), cases=(summarize(case, found),)))


NOISE = (-0.1, 0.1, 0.0, 0.0, 0.02, -0.02, 0.01, -0.01, 0.03)


def test_a_bound_stands_beside_what_could_be_seen():
    """Never a point: the truth may be nothing."""
    assert (
        "verl_otel: slower by 5.00% at most, and by 5.00% at least (9 pairs, 95 %). "
        "Two runs without telemetry differ by up to 3.00%: nothing smaller can be seen here."
    ) in trained(NOISE)
    assert "slower by 0.00% at most (" in trained(NOISE, seconds=0.99)


def test_where_pairs_say_nothing_nothing_is_said():
    """Too few of them, or an order that shows."""
    assert "4 pairs are too few for a bound" in trained(NOISE, count=4)
    assert "no result" in trained([0.2 + each for each in NOISE])


def test_only_what_stands_between_the_markers_is_replaced():
    """A second time the same comes out; without the markers it is refused."""
    page = f"before\n{table.begin('headline')}\nold\n{table.END}\nafter\n"
    new = table.replace(page, "headline", "new")
    assert new == f"before\n{table.begin('headline')}\nnew\n{table.END}\nafter\n"
    assert table.replace(new, "headline", "new") == new
    with pytest.raises(ValueError, match="no markers"):
        table.replace("before\nafter\n", "headline", "new")


@pytest.mark.sources
@pytest.mark.parametrize(("path", "name", "make"), table.PAGES, ids=lambda each: getattr(each, "name", None))
def test_the_documents_say_what_was_measured(path, name, make):
    """The tables of README.md and the guide are those of the committed result file; ``make bench SUITE=table`` writes them."""
    text = path.read_text("utf-8")
    assert table.replace(text, name, make(read(HEADLINE))) == text, f"{path.name}: run make bench SUITE=table"


@pytest.mark.sources
def test_the_committed_figures_are_those_of_a_full_run():
    """Every promise, nine processes of every variant that is not missing, none that failed, and of which commit."""
    found, known = read(HEADLINE), load_cases()
    assert not found.quick
    assert found.machine["commit"] != "unknown"
    promised = {name for name, case in known.items() if case.suite == "hot" and case.targets}
    assert promised <= {case.name for case in found.cases}
    for case in found.cases:
        assert not case.failures, case.name
        assert all(len(each.values) >= 9 for each in case.overheads.values() if not each.missing), case.name
