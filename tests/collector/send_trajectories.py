# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run by tests as a process: a step, and trajectories over three processes, through the real SDK, of which it is known which are worth keeping.

Usage: send_trajectories.py COUNT SLOW_SECONDS    prints one line of JSON: the trace ids of each kind
This process is the agent loop and holds the roots; two children, a server and a tool, record below them. The roots of a batch end after
the children have sent what they recorded, those of the slow ones last of all: SLOW_SECONDS after the others.
"""

import asyncio
import contextlib
import json
import subprocess
import sys

from opentelemetry import context, propagate, trace

import verl_otel
from verl_otel import session

BATCH = 100
FAILED, MARKED, SLOW = 50, 40, 200
"""Every how manieth trajectory is of this kind."""


def find_kind(number):
    """Return what becomes of a trajectory."""
    if number % SLOW == 11:
        return "slow"
    if number % FAILED == 7:
        return "failed"
    return "marked" if number % MARKED == 3 else "plain"


def work(role):
    """Record below every context that comes; a line without contexts asks to send what there is."""
    session.describe_resource({"verl.role": role, "verl.rank": 0})
    verl_otel.init()
    for line in sys.stdin:
        for carrier, kind in json.loads(line):
            token = context.attach(propagate.extract(carrier))
            with contextlib.suppress(ValueError), verl_otel.turn(0), verl_otel.tool("calculator"):
                if kind == "failed" and role == "reward":
                    raise ValueError("planted")
            context.detach(token)
        session.flush(30)
        print("done", flush=True)
    verl_otel.shutdown()


class Worker:
    """One of the other two processes."""

    def __init__(self, role):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--role", role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, carriers):
        self.process.stdin.write(json.dumps(carriers) + "\n")
        self.process.stdin.flush()

    def wait(self):
        assert self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


async def main(count, slow_seconds):
    session.describe_resource({"verl.role": "agent_loop", "verl.rank": 0})
    verl_otel.init()
    workers = [Worker("llm_server"), Worker("reward")]
    found = {kind: [] for kind in ("plain", "marked", "failed", "slow")}
    last, slow = asyncio.Event(), []
    with verl_otel.step(1), verl_otel.phase("gen"):
        await asyncio.sleep(0)
    for first in range(0, count, BATCH):
        carriers, ends, tasks = [], asyncio.Event(), []
        for number in range(first, min(first + BATCH, count)):
            kind = find_kind(number)
            task = asyncio.create_task(run(number, kind, last if kind == "slow" else ends, carriers, found))
            (slow if kind == "slow" else tasks).append(task)
        await asyncio.sleep(0)  # every task runs to where it waits
        for worker in workers:
            worker.do(carriers)
        for worker in workers:
            worker.wait()
        session.flush(30)
        ends.set()
        await asyncio.gather(*tasks)
    await asyncio.sleep(slow_seconds)  # this is what makes them slow, the last of them, too
    last.set()
    await asyncio.gather(*slow)
    for worker in workers:
        worker.end()
    verl_otel.shutdown()
    print(json.dumps(found), flush=True)


async def run(number, kind, end, carriers, found):
    """One trajectory, whose root ends when its batch has been worked on."""
    with verl_otel.trajectory(f"prompt-{number}", 0, step=1, agent="toy"):
        carrier = {}
        propagate.inject(carrier)
        carriers.append((carrier, kind))
        span = trace.get_current_span()
        found[kind].append(f"{span.get_span_context().trace_id:032x}")
        with verl_otel.llm("toy"):
            await end.wait()
        if kind == "marked":
            span.set_attribute("verl.sampling.keep", True)


if __name__ == "__main__":
    if sys.argv[1] == "--role":
        work(sys.argv[2])
    else:
        asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
