# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Twenty steps of a training-like loop; prints how long they took and what telemetry says of itself.

Usage: training_loop.py   (settings by environment, as for a training)
"""

import errno
import json
import os
import time

import verl_otel
from verl_otel import config, session

STEPS, TRAJECTORIES = 20, 16


def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))


def fill_the_disk():
    """Have every write to a file of telemetry fail as on a full disk."""
    real_open, real_write, handles = os.open, os.write, set()

    def fake_open(path, flags, *rest, **options):
        handle = real_open(path, flags, *rest, **options)
        (handles.add if str(path).endswith(".jsonl") else handles.discard)(handle)
        return handle

    def fake_write(handle, data):
        if handle in handles:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(handle, data)

    os.open, os.write = fake_open, fake_write


def main():
    if config.is_enabled():
        verl_otel.init()
    if "VERL_OTEL_TEST_FULL_DISK" in os.environ:
        fill_the_disk()
    current = session.current_session()
    begin = time.perf_counter()
    for number in range(STEPS):
        with verl_otel.step(number), verl_otel.phase("gen"):
            for index in range(TRAJECTORIES):
                with verl_otel.trajectory(f"uid-{number}", index), verl_otel.turn(), verl_otel.llm("tiny"):
                    work(0.001)
        with verl_otel.phase("update_actor"):
            work(0.01)
        time.sleep(0.02)
    loop = time.perf_counter() - begin
    begin = time.perf_counter()
    verl_otel.shutdown()
    closing = time.perf_counter() - begin
    exporters = current.outputs.exporters if current is not None else []
    dropped = sum(sum(exporter.dropped("spans").values()) for exporter in exporters)
    print("RESULT " + json.dumps({"loop": loop, "closing": closing, "dropped": dropped}), flush=True)


if __name__ == "__main__":
    main()
