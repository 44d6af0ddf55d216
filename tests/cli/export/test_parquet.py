# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of a run as Parquet, queried as people query them."""

import pytest

from tests.builders import stories
from verl_otel.analysis import TABLES, Run

polars = pytest.importorskip(
    "polars", reason="the tables are read with polars, which the lowest versions do not install"
)
pytest.importorskip("pyarrow", reason="Parquet is written with pyarrow, which only the environment with verl installs")


@pytest.fixture
def tables(call, tmp_path):
    """The tables of a small training, and its run."""
    folder = stories.training(tmp_path / "r1", "r1").write()
    result = call("export", "parquet", folder, "--output", tmp_path / "tables")
    assert result.code == 0, result.err
    assert "7 tables (steps 2, " in result.out
    return {name: polars.read_parquet(tmp_path / "tables" / f"{name}.parquet") for name in TABLES}, Run.open(folder)


@pytest.mark.full
def test_every_table_holds_what_the_run_says(tables):
    frames, run = tables
    for name in TABLES:
        assert frames[name].to_dict(as_series=False) == run.table(name)


def test_which_steps_were_slow_and_why(tables):
    frames, _ = tables
    answer = frames["steps"].join(frames["verdicts"], on="step").sort("seconds", descending=True)
    assert answer.select("step", "cause").rows() == [(2, "worker")]


def test_the_slowest_trajectory_of_each_step(tables):
    frames, _ = tables
    answer = frames["trajectories"].group_by("step").agg(polars.col("seconds").max()).sort("step")
    assert answer.rows() == [(1, 2.0), (2, 9.0)]


def test_where_gpu_time_went(tables):
    frames, run = tables
    answer = dict(frames["gpu"].group_by("cause").agg(polars.col("seconds").sum()).rows())
    expected = {}
    for step in run.steps():
        for device in step.devices:
            for cause, length in device.nanoseconds.items():
                expected[cause] = expected.get(cause, 0.0) + length / 1e9
    assert answer == pytest.approx(expected)
