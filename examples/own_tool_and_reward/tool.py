# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A tool with telemetry. It needs neither verl nor a running session: without telemetry the decorator passes calls through."""

import asyncio
from collections.abc import Mapping
from typing import Any

import verl_otel

LARGEST = 1000
"""Largest number that the tool accepts."""

REJECTED = verl_otel.counter("calculator.rejected", unit="{call}", description="Calls with numbers that are too large.")


def read_digits(arguments: Mapping[str, Any], result: str) -> dict[str, Any]:
    """Return the attributes of one span: what the call was like, without its content."""
    return {"calculator.digits": len(str(result))}


@verl_otel.tool("add", extract=read_digits)
async def add(a: int, b: int) -> str:
    """Add two integers.

    Args:
        a: first number
        b: second number
    """
    if max(abs(a), abs(b)) > LARGEST:
        # Labels have few values. The numbers themselves would make one series each.
        REJECTED.add(reason="too_large")
        raise ValueError("a number is too large")
    await asyncio.sleep(0.01)  # stands for the work of the tool
    return str(a + b)
