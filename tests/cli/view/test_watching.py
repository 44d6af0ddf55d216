# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs that are read for the live page."""

import pytest

from tests.analysis.test_live_run import long_training
from verl_otel.analysis import live_run
from verl_otel.cli.view import watching
from verl_otel.cli.view.watching import Catalogue

pytestmark = pytest.mark.full


def test_the_share_that_was_read_is_that_of_the_answer(runs, monkeypatch):
    """An answer that is some seconds old does not claim to be complete because more was read since."""
    now = 0.0
    monkeypatch.setattr(watching.time, "monotonic", lambda: now)
    monkeypatch.setattr(live_run.LiveRun.read, "__defaults__", (1,))
    monkeypatch.setattr("verl_otel.analysis.live_run.CHUNK_BYTES", 4096)
    folder = long_training(runs / "r1", steps=200).write()
    watcher = watching.Watcher(Catalogue([folder.parent]))
    first, share = watcher.ask("r1")
    assert 0 < share < 1
    live = watcher._runs["r1"].live
    while live.is_behind:
        live.read(1 << 30)
    assert watcher.ask("r1") == (first, share)
    now = watching.LOOK_SECONDS
    complete, share = watcher.ask("r1")
    assert (len(complete.steps), share) == (200, pytest.approx(1.0))
