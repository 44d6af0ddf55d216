# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The live page of a run that is training: what its process takes of a core."""

from __future__ import annotations

from typing import Final

from benchmarks.case import OURS, Case, Operation, Target, Variant
from benchmarks.cases.run_log import PROCESSES
from benchmarks.jobs import module


def _view(viewers: int, seconds: int) -> Operation:
    arguments = ["benchmarks.live_page", "--viewers", str(viewers), "--seconds", str(seconds)]
    return module(arguments, 1, (), lambda output: (output["cpu"], ()))


CASES: Final = (
    Case(
        "view-idle",
        "`verl-otel view` beside a running training, no page is open: CPU of its process, a second",
        (Variant(OURS, "the files of the run grow, no page is open", lambda: _view(0, 5)),),
        (Target("live page, of a second without viewers", 0.5),),
        unit="ms",
        clock="cpu",
        steady=False,
        rounds=1,
        processes=PROCESSES,
        quick=False,
    ),
    Case(
        "view-one-viewer",
        "`verl-otel view` beside a running training, one page is open: CPU of its process, a second",
        (Variant(OURS, "a step a second with eight trajectories; requests every five seconds", lambda: _view(1, 10)),),
        (Target("live page, of a second with one viewer of a running training", 10),),
        unit="ms",
        clock="cpu",
        steady=False,
        rounds=1,
        processes=PROCESSES,
        quick=False,
    ),
)
