# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Forked children: each has totals, files, ids and a name of its own; the parent goes on as if nothing had happened."""

import collections

import pytest

FORK = """
import os, sys, threading, urllib.request
import verl_otel
from verl_otel import session
{before}
verl_otel.init({settings})

def record(count):
    for number in range(count):
        with verl_otel.step(number), verl_otel.phase("gen"):
            pass

{work}
"""


def script(work, settings="", before=""):
    return FORK.format(work=work, settings=settings, before=before)


def per_process(points):
    """The latest value of each process, by process id."""
    return {point.resource["process.pid"]: point.value for point in points}


@pytest.mark.smoke
def test_totals_are_right_in_parent_and_child(run, written):
    """A fork in the middle of recording gives each process exactly what it recorded itself, and no line twice."""
    work = """
threads = [threading.Thread(target=record, args=(500,)) for _ in range(4)]
for thread in threads:
    thread.start()
record(50)
child = os.fork()
if not child:
    record(30)
    sys.exit(0)
record(50)
for thread in threads:
    thread.join()
print(os.getpid(), child, os.waitpid(child, 0)[1])
"""
    result = run(script(work))
    parent, child, status = map(int, result.out.split())
    assert (result.code, status) == (0, 0), result.err
    assert per_process(written.points("verl.training.steps")) == {parent: 2100, child: 30}
    spans = written.spans()
    counts = collections.Counter((span.resource["process.pid"], span.name) for span in spans)
    assert counts[(parent, "verl.step")] == counts[(parent, "verl.phase.gen")] == 2100
    assert counts[(child, "verl.step")] == counts[(child, "verl.phase.gen")] == 30
    assert len({span.id for span in spans}) == len(spans)
    assert {span.path.stem.rpartition("-")[2] for span in spans if span.resource["process.pid"] == child} == {
        str(child)
    }


@pytest.mark.smoke
def test_what_waits_for_the_drain_belongs_to_the_parent(run, written):
    """Records that nobody has drained yet at the fork are written once, by the parent."""
    work = "record(10)\nchild = os.fork()\nif child:\n    os.waitpid(child, 0)\nsys.exit(0)"
    assert run(script(work, "drain_interval=60")).code == 0
    assert written.names().count("verl.step") == 10
    assert len(per_process(written.points("verl.training.steps"))) == 1


@pytest.mark.full
def test_work_in_the_child_hangs_below_what_was_open_at_the_fork(run, written):
    """A span of the child has the parent's open step as its parent, in the same trace."""
    work = """
with verl_otel.step(1):
    if not os.fork():
        with verl_otel.span("in the child"):
            pass
        session.flush()
        os._exit(0)
    os.wait()
"""
    assert run(script(work)).code == 0
    (step,) = [span for span in written.spans() if span.name == "verl.step"]
    (below,) = [span for span in written.spans() if span.name == "in the child"]
    assert below.resource["process.pid"] != step.resource["process.pid"]
    assert (below.trace, below.parent) == (step.trace, step.id)


@pytest.mark.full
def test_a_span_that_is_open_at_the_fork_is_the_parents_alone(run, written):
    """A step around a fork is written and counted once, although both processes leave it."""
    work = """
with verl_otel.step(1):
    child = os.fork()
if child:
    os.waitpid(child, 0)
"""
    assert run(script(work)).code == 0
    assert written.names() == ["verl.step"]
    assert written.last("verl.training.steps") == 1


@pytest.mark.full
def test_a_child_does_not_hang_in_the_fork(run):
    """A fork returns in the child, also where thread pools are first used after telemetry began."""
    work = "record(1)\nsession.flush()\nimport concurrent.futures.thread\nif not os.fork():\n    os._exit(0)\nos.wait()"
    assert run(script(work)).code == 0


@pytest.mark.full
def test_the_parent_goes_on_serving_metrics(run):
    """The parent's /metrics answers while a child lives and after it, with the parent's totals; the child has its own."""
    work = """
def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return [line for line in answer.read().decode().splitlines() if line.startswith("verl_training_steps_total")]

record(5)
session.flush()
port = session.current_session().outputs.exporters[0].port
reader, writer = os.pipe()
child = os.fork()
if not child:
    record(3)
    session.flush()
    own = session.current_session().outputs.exporters[0].port
    os.write(writer, f"{own != port} {scrape(own)}".encode())
    os.read(0, 1)
    os._exit(0)
print(os.read(reader, 1000).decode())
print(scrape(port))
os.kill(child, 9)
os.waitpid(child, 0)
record(1)
session.flush()
print(scrape(port))
"""
    result = run(script(work, "exporters='prometheus'"))
    assert result.out.splitlines() == [
        "True ['verl_training_steps_total 3.0']",
        "['verl_training_steps_total 5.0']",
        "['verl_training_steps_total 6.0']",
    ], result.err


@pytest.mark.full
def test_a_child_that_records_nothing_leaves_nothing(run, written):
    """A child without a record makes no files, and its end does not touch the parent's."""
    work = "record(2)\nsession.flush()\nif not os.fork():\n    sys.exit(0)\nos.wait()\nrecord(1)"
    assert run(script(work)).code == 0
    assert len(written.paths("traces")) == len(written.paths("metrics")) == 1
    assert written.last("verl.training.steps") == 3


@pytest.mark.full
def test_a_fork_after_shutdown_stays_off(run, written):
    """A child of a process whose telemetry was stopped records nothing."""
    work = """
record(2)
verl_otel.shutdown()
if not os.fork():
    record(5)
    sys.exit(session.current_session() is not None)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert run(script(work)).code == 0
    assert list(per_process(written.points("verl.training.steps")).values()) == [2]


@pytest.mark.full
def test_a_fork_while_the_users_instruments_are_collected_does_not_hang_the_child(run):
    """OpenTelemetry's locks that a collection of the parent holds are new in the child: it can make and use instruments."""
    work = """
import signal
from opentelemetry import metrics
inside, done = threading.Event(), threading.Event()
def ask(options):
    inside.set()
    done.wait(30)
    return [metrics.Observation(1)]
meter = metrics.get_meter("mine")
meter.create_observable_gauge("slow", [ask])
session.flush(1)
inside.wait(30)
child = os.fork()
if not child:
    signal.alarm(60)
    meter.create_observable_gauge("other", [lambda _: [metrics.Observation(2)]])
    meter.create_counter("counter").add(1)
    record(1)
    session.flush(1)
    os._exit(0)
done.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0)
"""
    assert run(script(work), VERL_OTEL_METRIC_INTERVAL="1").code == 0
