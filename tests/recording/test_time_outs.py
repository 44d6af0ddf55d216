# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Time-outs of graders by real signals, thousands of them, wherever they arrive."""

import json

LOOP = """
    import json, signal, sys, time
    import verl_otel
    from verl_otel.recording import context, collection, wrapping
    from verl_otel.recording.state import RECORDER

    access = context.context_access()
    RECORDER.on = True
    wrapping.switch(on=True)

    class TimeOut(Exception):
        pass

    fired = 0

    def handle(number, frame):
        global fired
        fired += 1
        raise TimeOut

    @verl_otel.reward("math", extract=lambda arguments, result: {"score": result})
    def grade(answer):
        return float(answer == 5)

    @verl_otel.timed("parse")
    def parse(text):
        return int(text)

    def work():
        while True:
            with verl_otel.span("question"), verl_otel.tool("python"):
                grade(parse("5"))

    signal.signal(signal.SIGALRM, handle)
    outside = access.get()
    caught, left, open_spans = 0, 0, 0
    deadline = time.monotonic() + 30
    while caught < 1000 and time.monotonic() < deadline:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + caught % 97 * 1e-6)
            work()
        except TimeOut:
            caught += 1
        collection.collect()
        left += access.get() is not outside
        open_spans += len(RECORDER.opened)
    print(json.dumps({"fired": fired, "caught": caught, "left": left, "open": open_spans}))
"""


def test_every_time_out_reaches_its_caller(run_python):
    """A grader that is timed out a thousand times inside of spans gets each exception; no context and no span is left."""
    found = json.loads(run_python(LOOP))
    assert found["caught"] == found["fired"] >= 200
    assert (found["left"], found["open"]) == (0, 0)
