# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rows that are loaded again before the end of their epoch."""

import pytest

from verl_otel.integrations.verl import repeated_prompts, training


class Epoch:
    """An iterator over the data."""


@pytest.fixture
def find(monkeypatch):
    """Return what is reported of some epochs, each a list of batches of rows."""
    texts = []
    monkeypatch.setattr(repeated_prompts.alerts, "report", lambda _config, _step, text: texts.append(text))
    training.begin()

    def find(*epochs, column="raw_prompt"):
        for batches in epochs:
            epoch = Epoch()
            for rows in batches:
                prompts = [[{"role": "user", "content": "solve it"}] for _ in rows]
                repeated_prompts.note(epoch, {column: prompts, "extra_info": [{"index": row} for row in rows]})
        return texts

    return find


def test_a_batch_that_comes_again_is_reported_once(find):
    """With how much of it."""
    assert find([range(8), range(8, 16), range(4, 12), range(8)]) == [
        "8 of 8 prompts of a batch were loaded before in the same epoch: does the sampler or the data set repeat them?"
    ]


def test_the_next_run_of_the_process_is_reported_on_its_own(find):
    """A process may train several runs one after the other."""
    find([range(8), range(8)])
    training.begin()
    assert len(find([range(8), range(8)])) == 2


@pytest.mark.parametrize(
    "epochs",
    [
        ([range(8), range(8, 16)], [range(8)]),
        ([range(8), range(6, 14)],),
        ([range(3), range(3)],),
    ],
    ids=["the next epoch", "a few that are in the data twice", "a batch of few"],
)
def test_what_is_planned_is_not_reported(find, epochs):
    """Tasks that share their prompt are distinguished by what belongs to it."""
    assert find(*epochs) == []


def test_an_iterator_may_go_through_several_epochs(find):
    """With workers that stay."""
    epoch, rows = Epoch(), {"raw_prompt": list(range(8))}
    for _ in range(2):
        repeated_prompts.note(epoch, rows)
        repeated_prompts.forget(epoch)
    assert find() == []


def test_batches_of_another_kind_are_left_alone(find):
    """Those of other trainers."""
    assert find([range(8), range(8)], column="input_ids") == []
    repeated_prompts.note(Epoch(), [1, 2])
