# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bed's tool, with a call that can be made slow, to be found again in the report."""

import asyncio
import itertools
import os

import cpu_log
from verl.tools.function_tool import function_tool

SLOW = "CPU_BED_SLOW_TOOL"
"""``<seconds>:<n>``: the n-th call of the tool in its process takes that long."""
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
        if next(_calls) == int(number):
            await asyncio.sleep(float(seconds))
        return str(int(a) + int(b))
