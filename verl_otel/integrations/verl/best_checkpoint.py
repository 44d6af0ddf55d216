# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the best of the checkpoints that verl saves: as hard links below ``best/``, where verl neither rotates nor resumes.

verl saves a checkpoint before it logs the scalars of its step, or some steps later if it saves asynchronously; it then
names the step in ``latest_checkpointed_iteration.txt``. Only checkpoints that verl has completed are compared and
linked, so that keeping the best one saves nothing additionally and takes no space until verl deletes its own copy.
`VALUES` has the value of what is kept, so that a run that goes on compares with it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary, safe_files
from verl_otel.guards.decisions import BestMetric
from verl_otel.integrations.verl import training

FOLDER: Final = "best"
VALUES: Final = "value.json"
"""File in `FOLDER`: direction and key of a scalar, as ``max:KEY``, to ``step`` and ``value`` of its best checkpoint."""
TRACKER: Final = "latest_checkpointed_iteration.txt"
MAX_WAITING: Final = 1000
"""Steps with a value whose checkpoint may still be completed."""

Values = dict[str, dict[str, Any]]


def follow(folder: Path, metric: BestMetric, step: int, value: float | None) -> None:
    """Link the best checkpoint as soon as it is complete. Returns at once.

    Args:
        folder: ``trainer.default_local_dir``.
        metric: The scalar that says which checkpoint is best.
        step: Number of the step that was logged.
        value: Its value of the scalar; None if it has none.
    """
    run = training.current
    if value is not None:
        run.undecided[step] = value
        while len(run.undecided) > MAX_WAITING:
            del run.undecided[min(run.undecided)]
    if run.undecided and (run.best_worker is None or not run.best_worker.is_alive()):
        arguments = (folder, metric, run.undecided, dict(run.undecided))
        run.best_worker = threading.Thread(target=_decide, args=arguments, name="verl-otel-best", daemon=True)
        run.best_worker.start()


def wait(seconds: float) -> None:
    """Wait for a link that is being made: the training ends."""
    if training.current.best_worker is not None:
        training.current.best_worker.join(seconds)


def _decide(folder: Path, metric: BestMetric, waiting: dict[int, float], values: dict[int, float]) -> None:
    """Decide among the checkpoints that are complete.

    Args:
        folder: ``trainer.default_local_dir``.
        metric: The scalar that says which checkpoint is best.
        waiting: Steps that are not decided; those that are get removed.
        values: The same at the start of this thread.
    """
    with error_boundary.suppress_errors("best checkpoint"):
        try:
            completed = int((folder / TRACKER).read_text().strip())
        except (OSError, ValueError):
            return
        decided = [step for step in values if step <= completed]
        saved = {step: values[step] for step in decided if (folder / f"global_step_{step}").is_dir()}
        step = metric.choose(saved)
        if step is not None:
            try:
                _keep_if_better(folder, metric, step, saved[step])
            except OSError as error:
                error_boundary.warn_once(
                    "best checkpoint", "verl-otel: the best checkpoint cannot be kept: %s", error.strerror or error
                )
                return
        for done in decided:
            waiting.pop(done, None)


def _keep_if_better(folder: Path, metric: BestMetric, step: int, value: float) -> None:
    """Keep a checkpoint if it is better than the one that is kept, and remove that one.

    A run that goes on, or another one in the same folder, compares with what was kept. Checkpoints that were best by another scalar stay.
    """
    kept = read_values(folder)
    before = kept.get(metric.name)
    _describe(folder, metric, kept)
    if before is not None and not metric.is_better(value, before["value"]):
        return
    link_checkpoint(folder, step)
    kept[metric.name] = {"step": step, "value": value}
    safe_files.write_atomically(folder / FOLDER / VALUES, json.dumps(kept, indent=1) + "\n", private=False)
    if before is not None and before["step"] not in {one["step"] for one in kept.values()}:
        shutil.rmtree(folder / FOLDER / f"global_step_{before['step']}", ignore_errors=True)


def read_values(folder: Path) -> Values:
    """Return the steps and values of the checkpoints that are kept, those that are still there, by direction and key of the scalar."""
    best = folder / FOLDER
    try:
        document = safe_files.read_json(best / VALUES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        error_boundary.warn_once("best values", "verl-otel: %s cannot be read: %s", best / VALUES, error)
        return {}
    return {
        name: {"step": one["step"], "value": float(one["value"])}
        for name, one in (document.items() if isinstance(document, dict) else ())
        if _is_entry(one) and (best / f"global_step_{one['step']}").is_dir()
    }


def _is_entry(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and type(one.get("step")) is int
        and type(one.get("value")) in (int, float)
        and math.isfinite(one["value"])
    )


def _describe(folder: Path, metric: BestMetric, kept: Values) -> None:
    """Log once what an earlier run has left in the folder."""
    if training.current.has_described_best:
        return
    training.current.has_described_best = True
    before = kept.get(metric.name)
    if before is not None:
        text = "verl-otel: the best checkpoint of an earlier run has %s %.4g at step %d; it stays until there is a better one"
        error_boundary.warn_once(f"best of {folder}", text, metric.name, before["value"], before["step"])
    used = {f"global_step_{before['step']}"} if before is not None else set()
    others = sorted({path.name for path in (folder / FOLDER).glob("global_step_*")} - used)
    if others:
        text = "verl-otel: %s has checkpoints that are not compared by %s and are not deleted: %s"
        error_boundary.warn_once(f"others in {folder}", text, folder / FOLDER, metric.name, ", ".join(others))


def link_checkpoint(folder: Path, step: int) -> Path:
    """Link the checkpoint of a step below `FOLDER`.

    Raises:
        OSError: The folder cannot be written, or its file system has no hard links.
    """
    best = folder / FOLDER
    target = best / f"global_step_{step}"
    unfinished = best / f".global_step_{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    best.mkdir(exist_ok=True)
    shutil.copytree(folder / f"global_step_{step}", unfinished, copy_function=os.link)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    return target
