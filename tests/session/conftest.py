# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whole processes with telemetry."""

import pytest

from tests.builders.processes import environ, files, run, spawn, start

__all__ = ["environ", "files", "run", "run_script", "spawn", "start"]


@pytest.fixture
def written(files, tmp_path):
    """The files of the run that a script writes."""
    return files(tmp_path / "runs" / "r1")


@pytest.fixture
def run_script(run, files, tmp_path):
    """Run a script that must succeed; returns the files of its run."""

    def finish(script, **variables):
        result = run(script, **variables)
        assert result.code == 0, result.err
        assert "Cannot call collect" not in result.err
        return files(tmp_path / "runs" / "r1")

    return finish
