# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run of a Ray job: its settings in Ray's store, where processes find them that were started without our environment.

The setup hook of ``ray.init`` reaches workers only if telemetry was started first. The driver therefore publishes the run, whenever it starts
telemetry, and a worker that uses verl-otel joins it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any, Final

from verl_otel._internal import error_boundary, process_state
from verl_otel._internal.call_timeout import CallTimeout
from verl_otel._internal.safe_files import parse_json
from verl_otel.config import is_enabled
from verl_otel.integrations import cluster_store
from verl_otel.resource import make_run_id

PREFIX: Final = "run"
PUT_TIMEOUT: Final = 1.0
"""Seconds that a driver waits for the store, which may block for minutes."""
RETRY_SECONDS: Final = 5.0
"""Seconds after which a worker that found no run looks again."""
VARIABLE: Final = "VERL_OTEL_RUN_ID"
ATTEMPT: Final = "VERL_OTEL_RUN_ATTEMPT"


class _LastLook:
    """When this process looked for a run and found none, by `time.monotonic`."""

    time = float("-inf")


def publish(settings: dict[str, str]) -> None:
    """Store the settings of the run of this job, waiting for at most `PUT_TIMEOUT` seconds. Does nothing without a cluster."""
    _call_bounded(lambda: cluster_store.put(_key(), json.dumps(settings).encode()))


def remove() -> None:
    """Remove the run of this job from the store: the job ends. Waits for at most `PUT_TIMEOUT` seconds."""
    _call_bounded(lambda: cluster_store.delete(_key()))


@error_boundary.never_raises("ray job")
def _call_bounded(call: Callable[[], None]) -> None:
    if cluster_store.is_connected():
        with contextlib.suppress(TimeoutError):
            CallTimeout(PUT_TIMEOUT, "verl-otel-job").call("job", call)


def join() -> bool:
    """Take the settings of the run of this job into the environment, where it has none. Returns whether they switch verl-otel on.

    Without a run, a worker that is switched on itself stores one, so that all of them have the same. Nothing happens in a process whose
    environment names a run.
    """
    if os.environ.get(VARIABLE) or time.monotonic() - _LastLook.time < RETRY_SECONDS:
        return False
    stored = cluster_store.read(_key())
    if stored is None and is_enabled() and _is_worker():
        cluster_store.put(_key(), json.dumps({VARIABLE: make_run_id(), ATTEMPT: "1"}).encode(), overwrite=False)
        stored = cluster_store.read(_key())
    if stored is None:
        _LastLook.time = time.monotonic()
        return False
    settings = parse_json(stored)
    if not isinstance(settings, dict):
        return False
    for name, value in settings.items():
        if str(name).startswith(("VERL_OTEL_", "OTEL_")) and isinstance(value, str):
            os.environ.setdefault(name, value)
    return is_enabled()


def _key() -> bytes:
    return f"{PREFIX}/{cluster_store.runtime_context().get_job_id()}".encode()


def _is_worker() -> bool:
    import ray

    worker: Any = ray._private.worker
    return bool(worker.global_worker.mode == worker.WORKER_MODE)


def _reset() -> None:
    _LastLook.time = float("-inf")


process_state.register(reset=_reset)
