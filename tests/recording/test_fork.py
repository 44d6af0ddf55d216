# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

pytestmark = pytest.mark.full

BEGIN = """
    import json, os, signal, sys, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads is what is tested
    import verl_otel
    from verl_otel.recording import context, collection
    from verl_otel.recording.state import RECORDER

    def switch_on():
        context.context_access()
        RECORDER.on = True

    def drained():
        return {point.instrument.name: point.value for point in collection.collect(wait=10).points}

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


def test_a_fork_while_another_thread_folds_does_not_stop_the_child(forking):
    """A child can drain although the fold lock was held in its parent when it was born."""
    child = forking("""
    switch_on()
    done = verl_otel.counter("done")
    child = []
    done._find({}).lock.run(lambda: child.append(in_child(lambda: [done.add(1), drained()][1])))
    print(json.dumps(child[0]))
    """)
    assert child == {"done": 1}
