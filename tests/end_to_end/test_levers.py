# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The plan of ``make test-extra ONLY=levers`` and its page; it trains nothing."""

import pytest

from tests.end_to_end import levers, levers_page
from tests.end_to_end.levers_plan import STEPS, TRAININGS, Pull


def test_a_miss_is_a_miss():
    """The page counts a prediction as right within a tenth of the gain or the noise of equal sections, and shows both numbers."""
    section = {"periods": [4.25, 4.5], "levers": [["tool", "add", 1.0, 0.9, 1.1]], "limits": [["server", "s-0", 2]]}
    results = {
        ("sync", "waits"): section,
        ("sync", "waits again"): {**section, "periods": [4.5, 4.75]},
        ("sync", "faster tool"): {**section, "periods": [3.375]},
    }
    assert levers_page.find_noise(results) == {"waits": 0.25}
    (row,) = levers_page.make_rows(results)
    assert row.measured == 1.0
    assert row.hits(0.0)
    assert not row._replace(predicted=1.2).hits(0.1)
    assert row._replace(predicted=1.2).hits(0.3)
    page = levers_page.make_page(results)
    assert "**1 of 1** predictions" in page
    assert "| `tool` | 0.8 s → 0.4 s | 4.38 | 1.00 | 0.90 to 1.10 | 1.00 | +0.00 | yes |" in page
    assert "| waits | `sync` | `tool` 0.8, " in page
    assert "s-0: 2 (server)" in page
    assert isinstance(row.pull, Pull)
    assert "no prediction has been compared" in levers_page.make_page({})


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_all_steps_of_a_training_are_kept_for_the_prediction(training):
    """No section is older than what `levers` replays."""
    assert training.steps <= 64
    assert len(training.sections) * STEPS < training.steps


@pytest.mark.sources
def test_the_page_was_made_from_the_committed_results():
    """No number on it was written by hand."""
    results = levers.read_results(levers_page.RESULTS)
    assert levers_page.PAGE.read_text("utf-8") == levers_page.make_page(results)
