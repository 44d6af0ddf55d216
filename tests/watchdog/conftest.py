# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whole processes with telemetry."""

import pytest

import verl_otel
from tests.builders.processes import environ, files, run, spawn, start
from verl_otel.watchdog import event_loops

__all__ = ["environ", "files", "run", "spawn", "start"]


@pytest.fixture
def watcher(recorded):
    """A watcher of this process, which has something to do."""
    with verl_otel.span("training"):
        watcher = event_loops.watch()
        yield watcher
        watcher.stop(10)
