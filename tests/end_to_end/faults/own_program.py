# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A training loop of one's own in which faults are planted. Its trajectories are tasks of an event loop, threads, or calls of two actors of Ray.

Usage: own_program.py asyncio|threads|ray OUT STEPS    (``CPU_BED_PLANT`` has the faults, as `cpu_plant` reads them; telemetry by environment)

Places, in step n: ``llm``, ``own``, ``tool`` and ``reward`` of one trajectory; ``server`` and ``score``, of all of them; ``pool``, before they are
submitted; ``step``, ``data``, ``advantage``, ``sync``, ``checkpoint``, ``log`` of the trainer; ``rank``, one or all of two workers of the update.
"""

import asyncio
import contextlib
import fcntl
import functools
import http.server
import json
import multiprocessing
import os
import queue
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import cpu_actions
import cpu_log
import cpu_plant

import verl_otel

PROMPTS, GROUP, THREADS = 2, 4, 8
CHOSEN = ("1", 2)
"""Prompt and sample of the trajectory in which faults are planted."""
SECONDS = 0.03
"""Of each call."""
WORK = 20_000_000
"""Turns of a loop that takes a third of a second of CPU time, where other programs are to take the CPU."""
BACK_OFF = (1 / 7, 2 / 7, 4 / 7)
"""Shares of the pauses before three more tries."""


# -- What a fault does, beside `cpu_actions`. The names are those that a verdict has to know --


def sync_http(seconds):
    """Wait for a server that is slow."""
    urllib.request.urlopen(f"http://127.0.0.1:{_start_server()}/{seconds}").read()


@functools.cache
def _start_server():
    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            time.sleep(float(self.path[1:]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def parse(seconds):
    """Compute in Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def dump_json(seconds):
    """Serialize a large object, in one call into C that keeps the interpreter lock."""
    begin = time.perf_counter()
    json.dumps([0.1] * 200_000)
    json.dumps([0.1] * round(200_000 * seconds / (time.perf_counter() - begin)))


def run_child(seconds):
    """Wait for another program."""
    subprocess.run(["sleep", str(seconds)], check=True)


def held_lock(seconds):
    """Wait for a lock that another thread holds."""
    lock = threading.Lock()
    lock.acquire()
    threading.Timer(seconds, lock.release).start()
    with lock:
        pass


def file_lock(seconds):
    """Wait for the lock of a file that another program holds."""
    path = f"{os.environ[cpu_log.FOLDER]}/lock"
    with (
        subprocess.Popen(["flock", path, "sh", "-c", f"echo; sleep {seconds}"], stdout=subprocess.PIPE) as holder,
        Path(path).open("w") as file,
    ):
        holder.stdout.readline()
        fcntl.flock(file, fcntl.LOCK_EX)


def sqlite_lock(seconds):
    """Wait for the lock of a database that another connection holds."""
    connect = functools.partial(
        sqlite3.connect, f"{os.environ[cpu_log.FOLDER]}/db", isolation_level=None, check_same_thread=False
    )
    holder, own = connect(), connect(timeout=60)
    holder.execute("begin immediate")
    threading.Timer(seconds, holder.rollback).start()
    own.execute("begin immediate")
    own.rollback()


def full_queue(seconds):
    """Wait for room in a queue whose reader is slow."""
    rows = queue.Queue(1)
    rows.put(0)
    threading.Timer(seconds, rows.get).start()
    rows.put(1)


def empty_queue(seconds):
    """Wait for a queue whose writer is slow."""
    rows = queue.Queue()
    threading.Timer(seconds, rows.put, (0,)).start()
    rows.get()


def refuse(seconds):
    """Raise what a server raises that wants to be asked again later."""
    raise ConnectionError(seconds)


def no_memory(seconds):
    """Raise what the interpreter raises without memory."""
    del seconds
    raise MemoryError("cannot allocate (on purpose)")


def back_off(seconds):
    """Wait before the next try."""
    time.sleep(seconds)


def reach(place, step, which=0):
    """Do what is planted here."""
    for action, seconds in cpu_plant.find(place, step, which):
        for share in BACK_OFF if action == "busy" else (1,):
            act = back_off if action == "busy" else globals().get(action) or getattr(cpu_actions, action or "sleep")
            act(share * seconds)


async def reach_async(place, step):
    """Do what is planted here. The event loop goes on while it waits, unless the action blocks it."""
    for action, seconds in cpu_plant.find(place, step):
        if action in ("", "busy"):
            for share in BACK_OFF if action else (1,):
                await asyncio.sleep(share * seconds)
        elif action == "async_lock":
            lock = asyncio.Lock()
            await lock.acquire()
            asyncio.get_running_loop().call_later(seconds, lock.release)
            await lock.acquire()
        else:
            (globals().get(action) or getattr(cpu_actions, action))(seconds)


# -- The loop --


class Agent:
    """Runs trajectories in threads."""

    def __init__(self):
        for place in ("llm", "own", "tool", "reward"):
            cpu_plant.prepare(place)

    @verl_otel.llm("toy")
    def generate(self, step, wait):
        reach("llm", step)
        time.sleep(SECONDS + wait)
        return {"usage": {"prompt_tokens": 12, "completion_tokens": 5}}

    @verl_otel.tool("search")
    def search(self, step):
        reach("tool", step)
        time.sleep(SECONDS)

    @verl_otel.reward("math")
    def score(self, step, index, equal):
        reach("reward", step)
        time.sleep(SECONDS)
        return 1.0 if equal else float(index % 2)

    @verl_otel.trajectory
    def roll_out(self, uid, index, step, wait, equal):
        chosen = step if (uid.rpartition("-")[2], index) == CHOSEN else 0
        for turn in range(2):
            with verl_otel.turn(turn):
                self.generate(chosen, wait)
                reach("own", chosen)
                try:
                    self.search(chosen)
                except ConnectionError as error:
                    back_off(error.args[0])
                    self.search(chosen)
                except RuntimeError:
                    pass  # the model sees the error
        self.score(chosen, index, equal)
        return {"prompt_ids": [1] * 12, "response_ids": [2] * 10, "response_mask": [1] * 10}


class AsyncAgent(Agent):
    """Runs trajectories in the event loop, and rewards in the threads of its executor."""

    @verl_otel.llm("toy")
    async def generate(self, step, wait):
        await reach_async("llm", step)
        await asyncio.sleep(SECONDS + wait)
        return {"usage": {"prompt_tokens": 12, "completion_tokens": 5}}

    @verl_otel.tool("search")
    async def search(self, step):
        await reach_async("tool", step)
        await asyncio.sleep(SECONDS)

    @verl_otel.trajectory
    async def roll_out(self, uid, index, step, wait, equal):
        chosen = step if (uid.rpartition("-")[2], index) == CHOSEN else 0
        for turn in range(2):
            with verl_otel.turn(turn):
                await self.generate(chosen, wait)
                await reach_async("own", chosen)
                try:
                    await self.search(chosen)
                except ConnectionError as error:
                    await asyncio.sleep(error.args[0])
                    await self.search(chosen)
                except RuntimeError:
                    pass  # the model sees the error
        await asyncio.to_thread(self.score, chosen, index, equal)
        return {"prompt_ids": [1] * 12, "response_ids": [2] * 10, "response_mask": [1] * 10}


class Rank:
    """One of two workers of the update."""

    def __init__(self, rank):
        self.rank = rank

    @verl_otel.update("actor")
    def update(self, step):
        reach("rank", step, self.rank)
        time.sleep(2 * SECONDS)


def serve_rank(rank, pipe):
    """Run the updates of a process."""
    worker = Rank(rank)
    while step := pipe.recv():
        worker.update(step)
        pipe.send(step)


@contextlib.contextmanager
def start_ranks():
    """Start two processes, and yield what runs an update on both."""
    context, pipes = multiprocessing.get_context("fork"), []
    for rank in range(2):
        own, other = context.Pipe()
        context.Process(target=serve_rank, args=(rank, other), daemon=True).start()
        other.close()
        pipes.append(own)

    def update(step):
        for pipe in pipes:
            pipe.send(step)
        for pipe in pipes:
            pipe.recv()

    yield update
    for pipe in pipes:
        pipe.send(0)


def compute_advantage(step):
    reach("advantage", step)
    if "!hog" in os.environ.get(cpu_plant.PLANT, ""):
        for _ in range(WORK):
            pass


def train(roll_out, fill, update, steps):
    """Train.

    Args:
        roll_out: Runs trajectories, given as the arguments of `Agent.roll_out`, to their end.
        fill: Keeps busy for some seconds what runs them.
        update: Runs the update of a step on all workers.
        steps: Number of steps.
    """
    cpu_plant.prepare("advantage")
    for step in range(1, steps + 1):
        with verl_otel.step(step), cpu_log.stamped("step", step=step):
            reach("step", step)
            with verl_otel.phase("data"):
                reach("data", step)
                time.sleep(SECONDS)
            with verl_otel.phase("gen"):
                wait = sum(seconds for _, seconds in cpu_plant.find("server", step))
                equal = any(True for _ in cpu_plant.find("score", step))
                for _, seconds in cpu_plant.find("pool", step):
                    fill(seconds)
                roll_out(
                    [(f"{step}-{uid}", index, step, wait, equal) for uid in range(PROMPTS) for index in range(GROUP)]
                )
            with verl_otel.phase("advantage"):
                compute_advantage(step)
            with verl_otel.phase("update_actor"):
                update(step)
            with verl_otel.phase("sync_weights"):
                reach("sync", step)
                time.sleep(SECONDS)
            with verl_otel.phase("save_checkpoint"):
                reach("checkpoint", step)
                time.sleep(SECONDS)
        log_metrics(step)


def log_metrics(step):
    """What a tracker does after a step."""
    reach("log", step)
    time.sleep(SECONDS)


def with_asyncio(steps):
    agent, to_fill = AsyncAgent(), []

    async def together(samples):
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS))
        for seconds in [to_fill.pop()] * THREADS if to_fill else ():
            loop.run_in_executor(None, time.sleep, seconds)
        await asyncio.gather(*(agent.roll_out(*sample) for sample in samples))

    with start_ranks() as update:
        train(lambda samples: asyncio.run(together(samples)), to_fill.append, update, steps)


def with_threads(steps):
    agent = Agent()
    with ThreadPoolExecutor(THREADS) as threads, start_ranks() as update:

        def roll_out(samples):
            for future in [threads.submit(copy_context().run, agent.roll_out, *sample) for sample in samples]:
                future.result()

        def fill(seconds):
            for _ in range(THREADS):
                threads.submit(time.sleep, seconds)

        train(roll_out, fill, update, steps)


def with_ray(steps):
    import ray

    ray.init("local", num_cpus=4, include_dashboard=False)
    options = {"max_concurrency": THREADS}
    agents = [ray.remote(RayAgent).options(**options).remote() for _ in range(2)]
    ranks = [ray.remote(Rank).remote(rank) for rank in range(2)]

    def roll_out(samples):
        ray.get([agents[sample[1] % 2].roll_out.remote(*sample) for sample in samples])

    def fill(seconds):
        for _ in range(THREADS):
            agents[0].sleep.remote(seconds)

    train(roll_out, fill, lambda step: ray.get([rank.update.remote(step) for rank in ranks]), steps)
    ray.shutdown()


class RayAgent(Agent):
    """Runs trajectories in the threads of an actor."""

    def sleep(self, seconds):
        time.sleep(seconds)


def main():
    mode, _, steps = sys.argv[1:]
    {"asyncio": with_asyncio, "threads": with_threads, "ray": with_ray}[mode](int(steps))


if __name__ == "__main__":
    from tests.end_to_end.faults import own_program  # noqa: PLW0406 - so that workers find its classes

    own_program.main()
