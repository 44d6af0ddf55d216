# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run by tests as a process: a training that records all the time through the real SDK, while something is broken around it.

Usage: send_steadily.py JOURNAL step|trajectory [PAUSE_SECONDS]    until its standard input ends; then one line of JSON: what it dropped
For each unit there are two spans and one thing counted, and after it a line in the journal, which a killed process leaves behind:
the time of its end in nanoseconds. A line ``jump SECONDS`` on the standard input moves the clock of this process.
"""

import json
import os
import select
import sys
import time

CLOCK = time.time_ns, time.time
jumped = 0.0
time.time_ns = lambda: CLOCK[0]() + int(jumped * 1e9)  # before anybody has taken the function by its name
time.time = lambda: CLOCK[1]() + jumped

import verl_otel
from verl_otel import session
from verl_otel.recording.state import RECORDER

ROLE = {"step": "trainer", "trajectory": "agent_loop"}


def record(kind, number, things):
    """Record one unit: a step with a phase, or a trajectory with a tool call."""
    if kind == "step":
        with verl_otel.step(number), verl_otel.phase("gen"):
            pass
    else:
        with verl_otel.trajectory(f"prompt-{number}", 0, step=1), verl_otel.tool("calculator"):
            pass
    things.add(1)


def main():
    global jumped
    path, kind, pause = sys.argv[1], sys.argv[2], float((*sys.argv[3:], "0.005")[0])
    session.describe_resource(
        {"verl.role": os.environ.get("ROLE", ROLE[kind]), "verl.rank": int(os.environ.get("RANK", "0"))}
    )
    verl_otel.init()
    things = verl_otel.counter("user.things", unit="{thing}").bind(color="red")
    journal = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    number, words = 0, ["go"]
    while words:
        number += 1
        record(kind, number, things)
        os.write(journal, b"%d\n" % CLOCK[0]())
        time.sleep(pause)
        while words and select.select([sys.stdin], [], [], 0)[0]:
            words = sys.stdin.readline().split()
            if words:
                jumped = float(words[1])
    current = session.current_session()
    session.flush(float(os.environ.get("FLUSH_SECONDS", "20")))
    verl_otel.shutdown()
    (exporter,) = current.outputs.exporters
    dropped = {what: exporter.dropped(what) for what in ("spans", "points")}
    if RECORDER.dropped:
        dropped["spans"]["memory"] = sum(RECORDER.dropped.values())
    print(json.dumps({"recorded": number, "dropped": dropped}), flush=True)


if __name__ == "__main__":
    main()
