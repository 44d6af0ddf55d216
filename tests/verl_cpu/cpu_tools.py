# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bed's tool, with calls that can be made slow, to raise or to hang, to be found again in the report."""

import asyncio
import itertools
import os

import cpu_log
import cpu_plant
from verl.tools.function_tool import function_tool

SLOW = "CPU_BED_SLOW_TOOL"
"""``<seconds>:<n>``: the n-th call of the tool in its process takes that long."""
BAD = "CPU_BED_BAD_TOOLS"
"""``raise:<n>,hang:<m>``: the n-th call raises, the m-th waits for something that never comes until its time-out."""
TIMEOUT = 1.5
_calls = itertools.count(1)


@function_tool
async def add(a: int, b: int) -> str:
    """Add two integers.

    Args:
        a: first number
        b: second number
    """
    with cpu_log.stamped("tool", name="add"):
        seconds, _, number = os.environ.get(SLOW, "0:0").partition(":")
        bad = os.environ.get(BAD, "").split(",")
        call = next(_calls)
        await cpu_plant.reach_async("tool", call)
        cpu_plant.reach("block", call)  # as users do by mistake
        if call == int(number):
            await asyncio.sleep(float(seconds))
        kind = next((each.partition(":")[0] for each in bad if each.endswith(f":{call}")), "")
        if kind == "raise":
            raise ValueError("broken on purpose")
        if kind == "hang":
            await asyncio.wait_for(asyncio.Event().wait(), TIMEOUT)
        return str(int(a) + int(b))
