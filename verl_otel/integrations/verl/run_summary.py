# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Id, folder, goodput and verdict of the run in the summary of W&B, the tags of MLflow and the texts of TensorBoard.

Off by default.

Only runs that verl's ``Tracking`` has opened are written to, and no module is imported for it. A thread of its own writes, since a tracker
may wait for the network.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.verl import gpu_time
from verl_otel.recording.span import clock
from verl_otel.session import current_session

INTERVAL: Final = 30.0
"""Seconds between two writes while the training runs."""
END_SECONDS: Final = 2.0
"""Seconds that the end of the training may wait for a write."""
Values = dict[str, str | float]
Writer = Callable[[Values], None]


class _Summary:
    """Where the training's trackers keep their summary, and what was written."""

    owner: weakref.ref[Any] | None = None
    """The ``Tracking`` whose trackers these are."""
    writers: tuple[Writer, ...] = ()
    written: Values = {}
    last = 0.0
    """Time of the last write, on the clock of spans."""
    worker: threading.Thread | None = None


def begin_run(tracking: Any) -> None:
    """Find the runs of W&B, MLflow and TensorBoard that a ``Tracking`` has opened, if the setting is on, and write the identity of the run.

    Call it on the thread that opened them: MLflow has one active run for each thread.
    """
    _Summary.writers, _Summary.written, _Summary.last = (), {}, 0.0
    session = current_session()
    if session is None or not session.config.tracker_summary:
        return
    _Summary.owner = weakref.ref(tracking)
    trackers = vars(tracking).get("logger")
    _Summary.writers = tuple(_find_writers(trackers)) if isinstance(trackers, dict) else ()
    follow()


def _find_writers(trackers: dict[str, Any]) -> list[Writer]:
    found: list[Writer] = []
    run = getattr(trackers.get("wandb"), "run", None)
    if run is not None:
        found.append(functools.partial(_write_wandb, run))
    mlflow = sys.modules.get("mlflow") if "mlflow" in trackers else None
    run = None if mlflow is None else mlflow.active_run()
    if mlflow is not None and run is not None:
        found.append(functools.partial(_write_mlflow, mlflow, run.info.run_id))
    writer = getattr(trackers.get("tensorboard"), "writer", None)
    if writer is not None:
        found.append(functools.partial(_write_tensorboard, writer))
    return found


def _write_wandb(run: Any, values: Values) -> None:
    run.summary.update(values)


def _write_mlflow(mlflow: Any, run_id: str, values: Values) -> None:
    client = mlflow.MlflowClient()  # not `mlflow.set_tag`, which would begin a run on this thread
    for key, value in values.items():
        client.set_tag(run_id, key, value)


def _write_tensorboard(writer: Any, values: Values) -> None:
    for key, value in values.items():
        writer.add_text(key, str(value))


def follow() -> None:
    """Write what has changed, unless a write is in progress or was less than ``INTERVAL`` ago. Returns at once."""
    if _Summary.writers and (not _Summary.last or clock() - _Summary.last >= INTERVAL):
        with error_boundary.suppress_errors("run summary"):
            _start_write(_Summary.writers)


def end_run(tracking: Any) -> None:
    """Write everything once more, and wait for it for ``END_SECONDS`` at most. Call it before the trackers are closed."""
    owner, writers = _Summary.owner, _Summary.writers
    if writers and owner is not None and owner() in (tracking, None):  # None: it is called by its destructor
        with error_boundary.suppress_errors("run summary"):
            _Summary.writers, _Summary.written = (), {}
            deadline = clock() + END_SECONDS
            if _Summary.worker is not None:
                _Summary.worker.join(END_SECONDS)
            _start_write(writers)
            if _Summary.worker is not None:
                _Summary.worker.join(max(0.0, deadline - clock()))


def _start_write(writers: tuple[Writer, ...]) -> None:
    if _Summary.worker is not None and _Summary.worker.is_alive():
        return
    values = _describe()
    changed = {key: value for key, value in values.items() if _Summary.written.get(key) != value}
    if changed:
        _Summary.written, _Summary.last = values, clock()
        _Summary.worker = threading.Thread(
            target=_write, args=(writers, changed), name="verl-otel-summary", daemon=True
        )
        _Summary.worker.start()


def _describe() -> Values:
    values: Values = {}
    session = current_session()
    if session is not None:
        values["run_id"] = session.config.run_id
        if "file" in session.config.exporters:
            values["run_folder"] = str(session.config.run_path)
    values |= gpu_time.summarize_verdicts()
    return {f"verl_otel/{key}": value for key, value in values.items()}


def _write(writers: tuple[Writer, ...], values: Values) -> None:
    for write in writers:
        with error_boundary.suppress_errors("run summary"):
            write(values)
