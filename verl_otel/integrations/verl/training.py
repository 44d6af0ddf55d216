# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run that this process trains: what the hooks keep of it from its ``Tracking`` to that of the next run."""

from __future__ import annotations

import threading
import time
from typing import Any
from weakref import WeakKeyDictionary

from verl_otel.guards.decisions import Guards, Stop
from verl_otel.health.recent_past import StepFollower
from verl_otel.model import AttributeValue
from verl_otel.recording import run_log
from verl_otel.semconv.run_state import RunState


class Training:
    """State of one run in the process that trains it.

    Args:
        gpu_share: Share of the run's GPUs that verl divides its throughput by.
    """

    def __init__(self, gpu_share: float = 1.0) -> None:
        self.begun = time.monotonic()
        """Monotonic time of the start of its attempt."""
        self.gpu_share = gpu_share
        self.state: RunState | None = None
        """The state that was recorded last."""
        self.follower = StepFollower()
        self.has_logged_step = False
        self.guards: Guards | None = None
        self.stopped: Stop | None = None
        self.scores: dict[str, AttributeValue] = {}
        """Fields about the trajectories of the current step."""
        self.own_means: dict[str, float] = {}
        """Mean, minimum and maximum of their scores, if those of verl are of other trajectories."""
        self.components: dict[str, dict[str, float]] = {}
        """Those of the rewards of the current step; see `measure_components`."""
        self.undecided: dict[int, float] = {}
        """Steps of which it is not known whether their checkpoints are the best, with the value of the scalar."""
        self.best_worker: threading.Thread | None = None
        self.has_described_best = False
        """Whether a line of the log has named what an earlier run kept."""
        self.loaded_rows: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
        """Hashes of the rows that each iterator over the data has returned; see `repeated_prompts`."""
        self.has_reported_repeats = False


current = Training()


def begin(gpu_share: float = 1.0) -> None:
    """Begin a run in the process that trains it; see `Training`."""
    global current  # replaced as a whole: threads of the run before keep theirs
    current = Training(gpu_share)
    run_log.begin_run()
