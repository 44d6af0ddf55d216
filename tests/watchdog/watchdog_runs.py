# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A process of a small run that works, stalls or dies on command, for the tests of the watchdog.

Usage: watchdog_runs.py ROLE NUMBER WHAT   (settings by environment)

Waiting times are a fifth of the real ones. Prints ``ready`` when its peers are done, and waits for a line; then it does WHAT.
"""

import asyncio
import os
import re
import sys
import threading
import time

import verl_otel
from verl_otel import session
from verl_otel.watchdog import heartbeat, monitor, overdue, process_table

WARM_UP_STEPS = 12
FAST = (
    (heartbeat, {"HEARTBEAT_SECONDS": 0.15, "ELECTION_SECONDS": 0.3}),
    (process_table, {"STOPPED_SECONDS": 1.0}),
    (
        overdue,
        {
            "SLACK": float(os.environ.get("WATCHDOG_SLACK", "2")),
            "QUIET": 1.5,
            "HEARTBEAT_TIMEOUT": float(os.environ.get("WATCHDOG_SILENT", "3")),
            "HEARTBEAT_SLACK": 1.0,
        },
    ),
    (
        monitor,
        {
            "POLL_SECONDS": 0.2,
            "RECHECK_SECONDS": 0.3,
            "REPORTED_RECHECK_SECONDS": 0.3,
            "CONFIRM_SECONDS": 0.8,
            "STACK_WAIT_SECONDS": 60.0,
        },
    ),
)


def hang_here():
    threading.Event().wait()


def hold_the_interpreter():
    re.match(r"(a+)+$", "a" * 60 + "b")


async def block_the_loop():
    """Three trajectories of one event loop, the first of which blocks it."""

    async def one(index):
        with verl_otel.trajectory("uid", index), verl_otel.turn():
            if index == 0:
                await asyncio.sleep(1.5)
                with verl_otel.tool("python"):
                    hang_here()
            with verl_otel.llm("tiny"):
                await asyncio.Event().wait()

    await asyncio.gather(*(one(index) for index in range(3)))


def wait_for_start():
    print("ready", flush=True)
    sys.stdin.readline()


def work(seconds):
    with verl_otel.trajectory("uid", 0), verl_otel.turn(), verl_otel.llm("tiny"), verl_otel.tool("python"):
        time.sleep(seconds)


def roll_out(what, number):
    for _ in range(WARM_UP_STEPS):
        work(0.02)
    wait_for_start()
    if what == "block":
        asyncio.run(block_the_loop())
    with verl_otel.trajectory(f"uid-{number}", 7), verl_otel.turn(), verl_otel.tool("python"):
        {"hang": hang_here, "hold": hold_the_interpreter, "wait": hang_here}[what]()


def train(what):
    for number in range(1, WARM_UP_STEPS):
        with verl_otel.step(number), verl_otel.phase("gen"):
            time.sleep(0.02)
    wait_for_start()
    with verl_otel.step(WARM_UP_STEPS), verl_otel.phase("gen"):
        for line in sys.stdin:
            if line.strip() == "fork_busy" and not os.fork():
                work(600)
            elif line.strip() == "fork" and not os.fork():
                time.sleep(600)


def main():
    for module, values in FAST:
        for name, value in values.items():
            assert hasattr(module, name)
            setattr(module, name, value)
    role, number, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    session.describe_resource({"verl.role": role, "verl.index": number})
    verl_otel.init()
    train(what) if role == "trainer" else roll_out(what, number)


if __name__ == "__main__":
    main()
