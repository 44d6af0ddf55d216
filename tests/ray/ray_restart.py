# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's script: an actor dies, Ray makes another one in its place, and both are decorated. A second actor lives on."""

import json
import os
import threading
import time

import ray

import verl_otel
from verl_otel import session


@ray.remote(max_restarts=1, max_task_retries=1)
class Mortal:
    def __init__(self):
        import verl_otel.plugin  # noqa: F401 - as `import verl` does in every process

    @verl_otel.update("actor")
    def update(self):
        return os.getpid()

    def die(self, pid):
        if os.getpid() == pid:  # not its successor, of whom Ray asks the same again
            os._exit(1)

    def end(self):
        session.flush()
        while any(thread.name == "verl-otel-restart" for thread in threading.enumerate()):
            time.sleep(0.01)  # Ray's head has not answered yet
        verl_otel.shutdown()  # Ray kills its workers: what was recorded in the last second would be gone


def main():
    ray.init(address="local", num_cpus=4, include_dashboard=False)
    actor, other = Mortal.remote(), Mortal.remote()
    first, lives = ray.get([actor.update.remote(), other.update.remote()])
    ray.get(actor.die.remote(first))
    second = ray.get(actor.update.remote())
    ray.get([actor.end.remote(), other.end.remote()])
    print("RESULT " + json.dumps({"first": first, "second": second, "other": lives}), flush=True)


if __name__ == "__main__":
    main()
