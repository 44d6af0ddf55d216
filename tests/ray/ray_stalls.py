# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer that waits for two agent loops, one of which is killed, as an actor of a Ray of its own.

Usage: ray_stalls.py   (settings by environment)
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from verl_otel.watchdog.overdue import read_rows


class AgentLoopWorker:
    """Works on two trajectories at a time that never end."""

    def pid(self):
        return os.getpid()

    def work(self, number):
        import verl_otel

        with verl_otel.trajectory(f"uid-{number}", 0), verl_otel.trajectory(f"uid-{number}", 1), verl_otel.turn():
            time.sleep(600)


class Trainer:
    """Waits for both, as verl's does: it asks again and again, and is never told."""

    def fit(self, actors):
        import ray

        import verl_otel

        with verl_otel.step(1), verl_otel.phase("gen"):
            waiting = [actor.work.remote(number) for number, actor in enumerate(actors)]
            time.sleep(600)
            ray.get(waiting)


def wait_for_open_work(pid):
    """Wait until both trajectories of a process and the phase of the trainer stand in the files of what is open."""
    run = Path(os.environ["VERL_OTEL_RUN_DIR"], os.environ["VERL_OTEL_RUN_ID"])
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        rows = [row for path in run.glob("open-*.jsonl") for row in read_rows(path, path.stem)]
        mine = [row for row in rows if row.process_name.endswith(f"-{pid}") and "verl.rollout.index" in row.attributes]
        if len(mine) == 2 and any(row.name == "verl.phase.gen" for row in rows):
            return
        time.sleep(0.1)
    raise TimeoutError("the work has not begun")


class RecordingStream:
    """A stream that also keeps what was written to it."""

    texts = []

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        self.texts.append(text)
        return self._stream.write(text)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def main():
    sys.stdout, sys.stderr = RecordingStream(sys.stdout), RecordingStream(sys.stderr)
    from verl_otel import plugin

    plugin.load()
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False)
    actors = [ray.remote(AgentLoopWorker).options(name=f"agent_loop_worker_{number}").remote() for number in range(2)]
    trainer = ray.remote(Trainer).remote()
    pids = ray.get([actor.pid.remote() for actor in actors])
    trainer.fit.remote(actors)
    wait_for_open_work(pids[1])
    os.kill(pids[1], signal.SIGKILL)
    killed = time.time()
    events = Path(os.environ["VERL_OTEL_RUN_DIR"], os.environ["VERL_OTEL_RUN_ID"], "events.jsonl")
    deadline = time.monotonic() + 240
    found = []
    while not found and time.monotonic() < deadline:
        time.sleep(0.2)
        if events.exists():
            found = [json.loads(line) for line in events.read_text("utf-8").rpartition("\n")[0].splitlines()]
    while "verl-otel: CRASH" not in "".join(RecordingStream.texts) and time.monotonic() < deadline:
        time.sleep(0.2)  # Ray brings the line of the log
    print("RESULT " + json.dumps({"killed": killed, "pid": pids[1], "events": found}), flush=True)


if __name__ == "__main__":
    main()
