# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's script: a worker class of his own on two ranks, by verl's real worker group, decorated and not.

The class stands in ``__main__``: Ray ships it to the workers by value.
"""

import json

import ray
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray.base import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

import verl_otel


class MyWorker(Worker):
    def __init__(self):
        super().__init__()
        self.calls = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @verl_otel.update("actor")
    def update_actor(self, batch):
        return {"loss": float(len(batch)), "grad_norm": 0.5}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def plain(self, batch):
        self.calls += 1
        return self.calls

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def later(self):
        return "later"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fails(self):
        raise KeyError("of the user")


def main():
    ray.init(address="local", num_cpus=32, include_dashboard=False)
    pool = RayResourcePool([2], use_gpu=False)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(ray.remote(MyWorker)), device_name="cpu")
    found = {}
    with verl_otel.step(1):
        found["update"] = group.update_actor([1, 2, 3])
        found["plain"] = group.plain([1])
        found["later"] = ray.get(group.later())
        try:
            group.fails()
        except KeyError:
            found["error"] = "KeyError"
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
