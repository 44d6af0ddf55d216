# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the run log: order, rotation, cut-off lines, what verl's own loggers write."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.analysis.io import run_log


def line(time, scope="rollout", **fields):
    return (
        json.dumps({"timestamp": f"2026-11-24T00:00:{time:02d}.000Z", "level": "INFO", "scope": scope, **fields}) + "\n"
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "verl_logs.1.jsonl").write_text(line(1) + line(3))
    (tmp_path / "verl_logs.jsonl").write_text(line(5) + line(7) + line(9)[:20])
    (tmp_path / "verl_logs-agent-n1-1.jsonl").write_text("nonsense\n[1]\n{}\n" + line(4, "sample") + line(8, "sample"))
    return tmp_path


def seconds(records):
    return [int(record["timestamp"][17:19]) for record in records]


def test_all_processes_in_the_order_of_time(folder, tmp_path):
    """Files of all processes are merged, rotated ones first; lines that are damaged or cut off are passed over."""
    assert seconds(run_log.read([folder])) == [1, 3, 4, 5, 7, 8]


def test_two_nodes(folder, tmp_path_factory):
    """A run may have a folder on each node."""
    other = tmp_path_factory.mktemp("node2")
    (other / "verl_logs-agent-n2-1.jsonl").write_text(line(2) + line(6))
    assert seconds(run_log.read([folder, other])) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_file_of_verl(tmp_path):
    """Verl's own file logger has a step and its scalars; they become a record."""
    path = tmp_path / "exp.jsonl"
    path.write_text('{"step": 3, "data": {"actor/pg_loss": 0.5}}\n')
    assert list(run_log.read([path])) == [{"level": "INFO", "scope": "scalars", "step": 3, "actor/pg_loss": 0.5}]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("step:3 - a/b:0.5 - c:-1e-05", {"a/b": 0.5, "c": -1e-05}),
        ("step:3 - a:np.float64(0.5) - b:np.int64(3) - c:True", {"a": 0.5, "b": 3, "c": 1}),
        ("step:3 - a:inf - b:np.float64(-inf)", {"a": math.inf, "b": -math.inf}),
        ("(TaskRunner pid=9) step:3 - val-core/a:b/acc/mean@1:0.5", {"val-core/a:b/acc/mean@1": 0.5}),
        ("step:3 - a:1 (Worker pid=4) x - y - b:two - c:2 - d: - e:3.3(Worker - f:4", {"a": 1, "c": 2, "f": 4}),
    ],
)
def test_a_line_of_the_console_of_verl(text, values):
    """Its step and its numbers; what is no number, or has other output in it, is passed over."""
    record = run_log.parse_console(text.encode())
    assert {key: value for key, value in record.items() if key not in ("scope", "level", "step")} == values
    assert (record["scope"], record["step"]) == ("scalars", 3)


@pytest.mark.parametrize(
    "text",
    [
        "global_step:3 - a:1", "step: 3 - a:1", "step:x - a:1", "step:3", "step:3 - ", "step:3 - a:b", "step:9999999999999999 - a:1",
        "step:3 - " + "a:1:" * 300_000, "step:3 - " + "a" * 100_000, "step:3 - " + "a:" * 100_000, "step:" * 100_000,
    ],
)  # fmt: skip
def test_other_output_is_no_step(text):
    """Also where it looks like one, and however long it is."""
    assert run_log.parse_console(text.encode()) is None


@given(st.binary(max_size=200))
def test_any_output_is_taken(rest):
    """Whatever stands behind a step, its values are numbers."""
    record = run_log.parse_console(b"step:1 - a:1 - " + rest)
    assert record is None or all(
        isinstance(value, float) for key, value in record.items() if key not in ("scope", "level", "step")
    )


def test_a_tail_reads_what_is_appended(tmp_path):
    """Only whole lines are read, each once; a rotated file is read to its end first."""
    path = tmp_path / "verl_logs.jsonl"
    path.write_text(line(1))
    tail, early = run_log.Tail(path, run_log.parse, skip=True), run_log.Tail(path, run_log.parse)
    assert seconds(early.read()) == [1]
    with path.open("a") as file:
        file.write(line(2) + line(3)[:15])
    assert seconds(tail.read()) == [2]
    with path.open("a") as file:
        file.write(line(3)[15:] + line(4))
    path.rename(tmp_path / "verl_logs.1.jsonl")
    path.write_text(line(5))
    assert seconds(tail.read()) == [3, 4, 5]
    assert seconds(tail.read()) == []


def test_a_tail_of_a_file_that_is_not_there_yet(tmp_path):
    """A file may come later."""
    tail = run_log.Tail(tmp_path / "later.jsonl", run_log.parse)
    assert list(tail.read()) == []
    (tmp_path / "later.jsonl").write_text(line(1))
    assert seconds(tail.read()) == [1]
