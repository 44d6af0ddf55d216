# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a process that rests tells the monitor: a span that has become old meanwhile is listed at once, not with the next drain."""

import os
import time
from types import SimpleNamespace

import pytest

from verl_otel.model import OpenSpan, SpanRecord
from verl_otel.watchdog import heartbeat, overdue


@pytest.fixture
def resting(tmp_path, monkeypatch):
    """The heartbeat of a process in which nothing happens, with the number of reports that it has written while resting."""
    made = heartbeat.Heartbeat(SimpleNamespace(run_path=tmp_path, stall_seconds=1800.0), 0.0)
    made._process_name = "process"
    made._folder.mkdir()
    made._open_heartbeat_file()
    made._request_path = tmp_path / "request"
    made._next_election = time.monotonic()
    made.polls = []
    monkeypatch.setattr(made, "poll", lambda: made.polls.append(time.time_ns()))
    yield made
    os.close(made._heartbeat_file)


def test_a_descriptor_that_was_closed_and_reused_is_not_written_to(resting, tmp_path, monkeypatch):
    """Code that closes all descriptors of its process gets the number for a file of its own, whose beginning stays."""
    resting._next_election = float("inf")
    monkeypatch.setattr(resting, "_write_report", lambda: None)
    number = resting._heartbeat_file
    os.close(number)
    theirs = os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
    assert theirs == number
    os.write(theirs, b"weights")
    resting._write_heartbeat(time.monotonic())
    assert os.pread(theirs, 100, 0) == b"weights"
    assert os.fstat(resting._heartbeat_file).st_size
    os.utime(theirs, (1, 1))
    os.dup2(theirs, resting._heartbeat_file)
    resting._next_heartbeat = 0.0
    resting.rest()
    assert os.fstat(theirs).st_mtime == 1  # the heartbeat is that of a new file
    os.close(theirs)


MONOTONIC = time.perf_counter() - time.time()


def open_span(now_ns, age, span_id=7, parent=0):
    """An open span without peers, that was read when it was so many seconds old."""
    span = SpanRecord(1, span_id, parent, "work", 1, now_ns - round(age * 1e9), now_ns, {}, (), (), 0, "", 1, "")
    return OpenSpan(span, heartbeat.clock() - age, "", "span")


def rest(resting, monkeypatch, now_ns):
    """Rest at a time, when the next heartbeat is due. Return whether a report was written."""
    resting._next_heartbeat, before = 0.0, len(resting.polls)
    monkeypatch.setattr(heartbeat.time, "time_ns", lambda: now_ns)
    monkeypatch.setattr(heartbeat, "clock", lambda: now_ns / 1e9 + MONOTONIC)
    resting.rest()
    return len(resting.polls) > before


def test_a_span_is_listed_when_it_has_become_old(resting, monkeypatch):
    """Not before, and once: it is known then."""
    now = time.time_ns()
    resting._open = (open_span(now, 1.0),)
    assert not list(resting._find_suspects({}))
    due = now + round((overdue.QUIET - 0.999) * 1e9)
    assert not rest(resting, monkeypatch, due - 100_000_000)
    assert rest(resting, monkeypatch, due)
    assert [suspect.name for suspect in resting._find_suspects({})] == ["work"]
    assert not rest(resting, monkeypatch, due + 10**10)


def test_work_that_ended_right_after_a_heartbeat_is_counted_at_once(resting, monkeypatch):
    """The last drain of a process that begins to rest: a process that leaves now held nothing."""
    resting._next_heartbeat = float("inf")
    resting.rest()
    assert not resting.polls
    monkeypatch.setattr(heartbeat.RECORDER, "ended_count", heartbeat.RECORDER.ended_count + 1)
    resting.rest()
    assert len(resting.polls) == 1


def test_a_span_with_open_children_is_not_waited_for(resting, monkeypatch):
    """What is inside of it is listed."""
    now = time.time_ns()
    resting._open = (open_span(now, 9.9, 7), open_span(now, 1.0, 8, parent=7))
    assert not list(resting._find_suspects({}))
    assert not rest(resting, monkeypatch, now + 10**9)


def test_progress_before_a_span_was_listed_counts(resting, monkeypatch):
    """A span that is listed late does not look as if nothing had ended below it; `QUIET` seconds later it does."""
    now = time.time_ns()
    resting._progress = {7: now}
    assert not list(resting._find_suspects({}))
    for later, names in ((2.0, []), (overdue.QUIET + 1.0, ["work"])):
        resting._open = (open_span(now, overdue.QUIET),)
        monkeypatch.setattr(heartbeat.time, "time_ns", lambda later=later: now + round(later * 1e9))
        assert [suspect.name for suspect in resting._find_suspects({})] == names


def test_a_clock_that_is_set_back_does_not_end_the_search(resting, monkeypatch):
    """By an hour: a span that began after that is listed when it is old, and not an hour later."""
    written = []
    monkeypatch.setattr(heartbeat.process_reports, "write", lambda _, report: written.append(report.suspects))
    monkeypatch.setattr(
        resting,
        "_describe",
        lambda peers, suspects: SimpleNamespace(peers=peers, suspects=suspects, drain_thread=resting._drain_thread),
    )
    now = time.time_ns()
    resting._write_report()
    monkeypatch.setattr(heartbeat.time, "time_ns", lambda: now - 3600 * 10**9)
    resting._open = (open_span(now - 3600 * 10**9, overdue.QUIET + 1.0),)
    resting._write_report()
    assert [len(suspects) for suspects in written] == [0, 1]


def test_without_open_spans_nothing_is_waited_for(resting, monkeypatch):
    """However long it rests."""
    assert not list(resting._find_suspects({}))
    assert not rest(resting, monkeypatch, time.time_ns() + 10**12)


def test_a_process_that_rests_takes_over_the_watch(resting, monkeypatch):
    """It looks every ten seconds whether the node has a monitor."""
    now = time.time_ns()
    resting._next_election -= heartbeat.IDLE_ELECTION_SECONDS - heartbeat.ELECTION_SECONDS - 1
    assert not rest(resting, monkeypatch, now)
    resting._next_election -= 1
    assert rest(resting, monkeypatch, now)
