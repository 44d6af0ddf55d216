# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The files of the run log, written by whole processes."""

import errno
import json
import os
import threading
import time

import pytest

from tests.builders.exporting_records import SCOPE
from verl_otel import config
from verl_otel._internal import safe_files
from verl_otel._internal.machine import identify_process
from verl_otel.exporting.base import MetricState
from verl_otel.model import LogRecord, Resource
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs
from verl_otel.session.run_log import LogFile, RunLog, encode

RESOURCE = Resource({attr.ROLE: "trainer", attr.HOST_NAME: "node-1", attr.RANK: 3, attr.GPU_IDS: ("GPU-1",)})
OWN_LOOP = """
import logging, verl_otel
for number in (1, 2):
    with verl_otel.step(number) as step:
        step.set_attribute("loss", 0.5)
        with verl_otel.phase("gen"):
            verl_otel.log("system", tps=3.5)
            logging.getLogger("mine").warning("queue of %d", 3)
            logging.getLogger("mine").warning(f"prompt {number}")
        with verl_otel.trajectory(f"u{number}", 0):
            pass
"""


def read(folder):
    """Return every record of a folder, by file."""
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("verl_logs*")
    }


def run_loop(run, tmp_path, **variables):
    """Run the loop and return its records. Those before the end of the first step may be in a file of the process, which sorts first."""
    run(OWN_LOOP, **variables)
    files = read(tmp_path / "runs" / "r1")
    assert not files or "verl_logs.jsonl" in files
    return [line for name in sorted(files) for line in files[name]]


@pytest.mark.full
def test_the_run_log_of_an_own_loop(run, tmp_path):
    """Each step, each call and each warning is a line; a message is there if it is a constant of the code."""
    records = run_loop(run, tmp_path)
    steps = [record for record in records if record["scope"] == "training"]
    assert [(record["step"], record["loss"], record["level"]) for record in steps] == [
        (1, 0.5, "INFO"),
        (2, 0.5, "INFO"),
    ]
    assert [record["tps"] for record in records if record["scope"] == "system"] == [3.5, 3.5]
    warnings = [record for record in records if record["scope"] == "log"]
    assert [record.get("message") for record in warnings] == ["queue of %d", None] * 2
    assert {(record["phase"], record["logger"], record["level"]) for record in warnings} == {("gen", "mine", "WARNING")}
    assert {record["trace_id"] for record in records if record["step"] == 1} == {steps[0]["trace_id"]}


@pytest.mark.full
def test_samples_at_debug(run, tmp_path):
    """At the level DEBUG each trajectory is a line with the ids of its trace."""
    records = run_loop(run, tmp_path, VERL_OTEL_LOG_LEVEL="debug")
    samples = [record for record in records if record["scope"] == "sample"]
    assert [(record["sample"], record["index"], record["level"]) for record in samples] == [
        ("u1", 0, "DEBUG"),
        ("u2", 0, "DEBUG"),
    ]
    assert all(len(record["trace_id"]) == 32 for record in samples)


@pytest.mark.full
@pytest.mark.parametrize("variables", [{"VERL_OTEL_LOG_LEVEL": "off"}, {"VERL_OTEL_EXPORTERS": "console"}])
def test_off_means_off(run, tmp_path, variables):
    """Without the log, or without files, nothing is written."""
    assert run_loop(run, tmp_path, **variables) == []


@pytest.mark.full
def test_the_messages_with_content(run, tmp_path):
    """With the user's consent to content, messages are there as they were logged."""
    records = run_loop(run, tmp_path, VERL_OTEL_CAPTURE_CONTENT="1")
    messages = [record["message"] for record in records if record["scope"] == "log"]
    assert messages == ["queue of 3", "prompt 1", "queue of 3", "prompt 2"]


def record(scope="rollout", level=logs.INFO, **fields):
    return LogRecord(1_700_000_000_123_456_789, level, scope, 4, fields, 0xAB, 0xCD)


def test_a_line():
    """A line begins with time, level, scope and step; numbers that are not finite are text; DEBUG names the GPUs."""
    line = json.loads(encode(record(kl=float("nan"), items=(1.0, float("inf"))), {"role": "trainer"}, ("GPU-1",)))
    assert list(line.items())[:4] == [
        ("timestamp", "2023-11-14T22:13:20.123Z"), ("level", "INFO"), ("scope", "rollout"), ("step", 4),
    ]  # fmt: skip
    assert (line["kl"], line["items"], line["role"]) == ("nan", [1.0, "inf"], "trainer")
    assert (line["trace_id"], line["span_id"]) == (f"{0xAB:032x}", f"{0xCD:016x}")
    assert "gpus" not in line
    assert json.loads(encode(record(level=logs.DEBUG), {}, ("GPU-1",)))["gpus"] == ["GPU-1"]


def test_one_process_has_the_file_of_the_run(tmp_path):
    """Of two processes that train, as in asynchronous training, the first has `verl_logs.jsonl`, and a later one after its end."""
    first, second, third = (LogFile(tmp_path, RESOURCE, 1 << 20, 2) for _ in range(3))
    for file in (first, second, third):
        file.has_steps = True
    for file in (first, second):
        file.write([record(reward=1)], RESOURCE)
    assert sorted(read(tmp_path)) == [
        f"verl_logs-trainer-node-1-{identify_process()}-{os.getpid()}.jsonl",
        "verl_logs.jsonl",
    ]
    first.close()
    third.write([record(reward=2)], RESOURCE)
    second.close()
    third.close()
    assert [line["reward"] for line in read(tmp_path)["verl_logs.jsonl"]] == [1, 2]
    assert read(tmp_path)["verl_logs.jsonl"][0]["rank"] == 3


def test_threads_that_write_lose_nothing(tmp_path):
    """The drain thread and a caller that flushes write at the same time: every record is in the file once."""
    written = RunLog(config.load_config({}, exporters="file", run_dir=tmp_path, run_id="r1"))
    written.open(RESOURCE, SCOPE, MetricState())

    def drain():
        for _ in range(300):
            written.poll()

    threads = [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(300):
        written.consume_logs([record(number=number)])
        written.flush(time.monotonic() + 60)
    for thread in threads:
        thread.join(60)
    written.close(time.monotonic() + 60)
    numbers = sorted(line["number"] for lines in read(tmp_path / "r1").values() for line in lines)
    assert numbers == list(range(300))


def test_a_claim_that_failed_is_repeated(tmp_path, monkeypatch):
    """A disk that is full when the file of the run is claimed costs the records of that moment, not the file."""
    file = LogFile(tmp_path, RESOURCE, 1 << 20, 2)
    file.has_steps = True
    with monkeypatch.context() as patch:
        patch.setattr(safe_files, "make_folder", full_disk)
        with pytest.raises(OSError, match="full"):
            file.write([record(number=1)], RESOURCE)
    file.write([record(number=2)], RESOURCE)
    file.close()
    assert [line["number"] for line in read(tmp_path)["verl_logs.jsonl"]] == [2]


def full_disk(*_):
    raise OSError(errno.ENOSPC, "full")
