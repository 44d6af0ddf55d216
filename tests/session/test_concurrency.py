# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Many writers, readers and flushers at once: the totals at the end are exact, and no line is written twice."""

import collections
import os
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

import verl_otel
from verl_otel import session
from verl_otel.exporting import line_file
from verl_otel.model import SpanRecord

pytestmark = pytest.mark.full

WRITERS, STEPS = 8, 250


def record(count):
    """Steps with a phase, and a counter of the user's own."""
    counter = verl_otel.counter("my.samples")
    for number in range(count):
        with verl_otel.step(number), verl_otel.phase("gen"):
            counter.add(2, kind="x")


def run_all(threads):
    """Run functions in threads to their end; what one raises is raised here."""
    failures = []

    def guard(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=guard, args=(function,)) for function in threads]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in started)


def scrape(port):
    """The samples of /metrics by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in values, f"{key} twice in one scrape"
            values[key] = sample.value
    return values


def test_totals_are_exact_with_scrapers_and_flushers_under_writers(start):
    """With 8 writers, 4 scrapers and a flusher, files and /metrics say exactly what was recorded."""
    files = start(exporters="file,prometheus", trajectories_per_step=0, stalls=False)  # no spans of pauses
    port = session.current_session().outputs.exporters[1].port
    finished = threading.Event()
    seen = collections.defaultdict(list)

    def scraper(index):
        while not finished.is_set():
            seen[index].append(scrape(port).get(("verl_training_steps_total", ()), 0.0))

    def flusher():
        while not finished.is_set():
            session.flush(1.0)

    def writers():
        run_all([lambda: record(STEPS)] * WRITERS)
        finished.set()

    run_all([writers, flusher, *(lambda index=index: scraper(index) for index in range(4))])
    session.flush()
    last = scrape(port)
    verl_otel.shutdown()
    total = WRITERS * STEPS
    assert last[("verl_training_steps_total", ())] == last[("verl_step_duration_seconds_count", ())] == total
    assert last[("my_samples_total", (("kind", "x"),))] == 2 * total
    assert files.last("verl.training.steps") == files.last("verl.step.duration") == total
    assert files.last("my.samples", kind="x") == 2 * total
    assert collections.Counter(files.names()) == {"verl.step": total, "verl.phase.gen": total}
    assert len({span.id for span in files.spans()}) == 2 * total
    assert all(values == sorted(values) for values in seen.values()), "a counter went down between two scrapes"


def test_two_flushes_at_once_write_no_line_twice(start, monkeypatch):
    """While one thread writes to a slow disk, another one's flush waits for it, or leaves its lines to it."""
    files = start(drain_interval=60)
    record(3)
    slow, other_done = threading.Event(), threading.Event()
    write = os.write

    def slow_write(handle, data):
        if not slow.is_set() and b"resourceMetrics" in data:
            slow.set()
            other_done.wait(1)
        return write(handle, data)

    monkeypatch.setattr(line_file.os, "write", slow_write)
    first = threading.Thread(target=session.flush)
    first.start()
    assert slow.wait(10)
    second = threading.Thread(target=session.flush)
    second.start()
    second.join(2)
    other_done.set()
    first.join(10)
    second.join(10)
    times = [(point.time, point.value) for point in files.points("my.samples")]
    assert len(times) == len(set(times))


def test_a_span_that_comes_while_others_are_taken_is_kept(start):
    """A span of the user that a thread puts down just when a drain takes those before is in the files after the next."""
    files = start(drain_interval=60)
    waiting = session.current_session().user_spans  # what a thread holds that is between looking it up and adding to it
    record = SpanRecord(1, 2, 0, "late", 1, 3, 4, {}, (), (), 0, "", 1, "")
    waiting.append(record._replace(name="early"))
    session.flush()
    waiting.append(record)
    session.flush()
    assert files.names() == ["early", "late"]


def test_shutdown_from_several_threads_is_one_shutdown(start):
    """Shutdowns at the same time end once, raise nothing and lose nothing."""
    files = start(drain_interval=60)
    record(10)
    run_all([verl_otel.shutdown] * 8)
    assert files.last("verl.training.steps") == 10
    assert session.current_session() is None


def test_writers_go_on_while_telemetry_stops_and_starts(start):
    """Recording while another thread stops and starts telemetry never raises, and the last session is whole."""
    stop = threading.Event()

    def writer():
        while not stop.is_set():
            record(1)

    def switch():
        for _ in range(3):
            start()
            verl_otel.shutdown()
        stop.set()

    run_all([switch, *[writer] * 4])
    files = start(run_id="r2")
    for number in range(1000, 1007):
        with verl_otel.step(number):
            pass
    verl_otel.shutdown()
    numbers = [span.attributes["verl.step.number"] for span in files.spans() if span.name == "verl.step"]
    assert [number for number in numbers if number >= 1000] == [*range(1000, 1007)]
