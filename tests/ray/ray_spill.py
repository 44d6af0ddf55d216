# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Objects that do not fit into Ray's store are written to disk and read back, in two steps of a loop of one's own.

Prints ``RESULT`` with the bytes that were put and read again.
"""

import json
import time

import numpy as np
import ray

import verl_otel

SIZE, COUNT = 20 << 20, 16


def main():
    ray.init(
        address="local", num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, configure_logging=False
    )
    with verl_otel.step(1):
        held = [ray.put(np.full(SIZE, index % 256, np.uint8)) for index in range(COUNT)]
        time.sleep(2.5)
    with verl_otel.step(2):
        read = sum(int(ray.get(each).nbytes) for each in held)
        time.sleep(2.5)
    ray.shutdown()
    print("RESULT", json.dumps({"put": SIZE * COUNT, "read": read}))


main()
