# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

pytestmark = pytest.mark.full

BEGIN = """
    import json, os, signal, sys, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads is what is tested
    import verl_otel
    from verl_otel.model import HistogramValue
    from verl_otel.recording import context, collection, span
    from verl_otel.recording.state import RECORDER

    def switch_on():
        context.context_access()
        RECORDER.on = True

    def drained():
        batch = collection.collect(wait=10)
        values = {p.instrument.name: p.value.samples if isinstance(p.value, HistogramValue) else p.value
                  for p in batch.points}
        spans = [[s.name, s.trace_id, s.span_id, s.parent_id] for s in batch.spans]
        return {"values": values, "spans": spans, "open": [o.span.name for o in batch.open_spans]}

    def in_child(work):
        '''Fork; return what `work` returned in the child, or the signal that ended it.'''
        sys.stdout.flush()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(20)
            try:
                os.write(writer, json.dumps(work()).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        return json.loads(said or b'"killed"')
"""


@pytest.fixture
def forking(run_python):
    """Run a script that forks and return what it printed as JSON."""
    return lambda script: json.loads(run_python(BEGIN + script))


def test_children_have_ids_of_their_own(forking):
    """Forked children and their parent never make the same ids."""
    made = forking("""
    context.make_trace_id()
    make = lambda: [str(context.make_trace_id()), str(context.make_span_id())]
    print(json.dumps([*in_child(make), *in_child(make), *make()]))
    """)
    assert len(set(made)) == 6


def test_a_child_goes_on_recording(forking):
    """Functions decorated before the fork record in the child, in series that begin there."""
    child, parent = forking("""
    switch_on()
    timed = verl_otel.timed("timed")(lambda: None)
    traced = verl_otel.tool("traced")(lambda: None)
    timed(), traced()

    def work():
        timed(), traced(), traced()
        return drained()

    print(json.dumps([in_child(work), drained()]))
    """)
    assert child["values"] == {"timed": 1, "verl.tool.call.duration": 2}
    assert parent["values"] == {"timed": 1, "verl.tool.call.duration": 1}
    assert len(child["spans"]) == 2
    assert not {span[2] for span in child["spans"]} & {span[2] for span in parent["spans"]}


def test_a_fork_while_another_thread_folds_does_not_stop_the_child(forking):
    """A child can drain although the fold lock was held in its parent when it was born."""
    child = forking("""
    switch_on()
    done = verl_otel.counter("done")
    child = []
    done._find({}).lock.run(lambda: child.append(in_child(lambda: [done.add(1), drained()][1])))
    print(json.dumps(child[0]))
    """)
    assert child["values"] == {"done": 1}
