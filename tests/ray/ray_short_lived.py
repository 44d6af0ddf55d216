# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's script: actors that judge one answer and end in order, and an actor that checks its answers in forked processes.

Usage: ray_short_lived.py FOLDER
"""

import atexit
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import ray

import verl_otel

FOLDER = Path(sys.argv[1])


def register_exit_handler():
    """Before telemetry registers its own in the worker, so that it runs after that."""
    atexit.register((FOLDER / str(os.getpid())).touch)


@ray.remote
class Judge:
    def get_pid(self):
        return os.getpid()

    @verl_otel.reward("math")
    def score(self, answer):
        return float(answer == "42")

    def leave(self):
        ray.actor.exit_actor()


@verl_otel.tool("check")
def check(answer):
    return answer == "42"


def answer_to(answer, out):
    out.put(check(answer))


@ray.remote
class Grader:
    def grade(self, answer):
        context = multiprocessing.get_context("fork")
        out = context.Queue()
        process = context.Process(target=answer_to, args=(answer, out))
        process.start()
        out.get(timeout=60)
        process.join(60)
        return process.exitcode


def end(judge, way):
    """End an actor in order."""
    if way == "exit_actor":
        judge.leave.remote()
    if way == "terminate":
        judge.__ray_terminate__.remote()


def main():
    setup = {"worker_process_setup_hook": register_exit_handler}
    ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env=setup)
    ways, pids = ("scope", "exit_actor", "terminate"), {}
    for way in ways:
        with verl_otel.step(ways.index(way)), verl_otel.trajectory("p", way):
            judge = Judge.options(name=f"judge_{ways.index(way)}_ab12").remote()
            pids[way] = ray.get(judge.get_pid.remote())
            ray.get(judge.score.remote("42"))
            end(judge, way)
            del judge
    grader = Grader.remote()
    with verl_otel.step(len(ways)):
        codes = [ray.get(grader.grade.remote("42")) for _ in range(2)]
    deadline = time.monotonic() + 60
    handled = {way: FOLDER / str(pid) for way, pid in pids.items()}
    while time.monotonic() < deadline and not all(path.exists() for path in handled.values()):
        time.sleep(0.1)
    ended = [way for way, path in handled.items() if path.exists()]
    ray.shutdown()
    verl_otel.shutdown()
    print("RESULT " + json.dumps({"codes": codes, "ended": ended}), flush=True)


if __name__ == "__main__":
    main()
