# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A call of an actor in Ray with the trace's context on board, and without: the caller's time, the callee's, how many go through."""

from __future__ import annotations

import importlib
from typing import Final

from benchmarks.case import BASELINE, OURS, Case, Operation, Variant
from benchmarks.jobs import module

FIGURES: Final = {"CPU of the actor's process": "us", "calls that go through": "/s"}


def calls(kind: str) -> Operation:
    """Return the operation of calling an actor, in a process with a Ray of its own.

    Args:
        kind: One of `benchmarks.ray_calls.KINDS`.
    """
    importlib.import_module("ray")  # raises what is taken for "not installed"
    return module(
        ["benchmarks.ray_calls", kind],
        1,
        FIGURES,
        lambda output: (output["caller"], (output["callee"] * 1e6, 1 / output["message"])),
    )


CASES: Final = (
    Case(
        "ray-carrier",
        "a call of an actor's method without arguments, until the caller has its reference",
        (
            Variant(BASELINE, "plain Ray", lambda: calls("none")),
            Variant(OURS, "inside a trajectory: its context goes with the call", lambda: calls("carrying")),
            Variant(f"{OURS}, no span", "the plug-in loaded, no span open", lambda: calls("idle")),
        ),
        unit="us",
        steady=False,
        rounds=1,
        suite="ray",
        seconds=600,
        figures=FIGURES,
    ),
)
