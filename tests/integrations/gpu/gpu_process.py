# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One process of a run on a node with made-up GPUs. Records, says "ready", and ends with its input; each line of it makes a forked child."""

import os
import sys
import time

from tests.integrations.gpu import fake_nvml

sys.modules["pynvml"] = fake_nvml.FakeNvml(2)

import verl_otel
from verl_otel import session
from verl_otel.integrations.gpu import collector, nvml

nvml.PRESENT[:] = [__file__]
session.describe_resource({"verl.role": "worker", "verl.rank": int(sys.argv[1]), "verl.gpu.ids": (sys.argv[1],)})
collector.install()
verl_otel.init()
with verl_otel.span("work"):
    pass
print("ready", flush=True)
for _ in sys.stdin:  # each line asks for a child that holds what its parent has open, as one of multiprocessing does
    child = os.fork()
    if not child:
        time.sleep(1000)
    print(child, flush=True)
verl_otel.shutdown()
