# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the best of the checkpoints that verl saves: as hard links below ``best/``, where verl neither rotates nor resumes.

verl saves a checkpoint before it logs the scalars of its step, or some steps later if it saves asynchronously; it then names the step in
``latest_checkpointed_iteration.txt``. Only checkpoints that verl has completed are linked, so that keeping the best one saves nothing additionally and
takes no space until verl deletes its own copy.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Final

from verl_otel._internal import error_boundary

FOLDER: Final = "best"
TRACKER: Final = "latest_checkpointed_iteration.txt"
MAX_WAITING: Final = 100
"""Steps whose value was a best one and whose checkpoint may still be completed."""


class _Best:
    """The best values whose checkpoints are awaited, and the work in progress."""

    waiting: dict[int, float] = {}
    worker: threading.Thread | None = None


def follow(folder: Path, step: int, best: float | None) -> None:
    """Link the checkpoint of a step with a new best value as soon as it is complete. Returns at once.

    Args:
        folder: ``trainer.default_local_dir``.
        step: Number of the step that was logged.
        best: Its value, if it is the best so far.
    """
    if best is not None:
        _Best.waiting[step] = best
        while len(_Best.waiting) > MAX_WAITING:
            del _Best.waiting[min(_Best.waiting)]
    if _Best.waiting and (_Best.worker is None or not _Best.worker.is_alive()):
        waiting = dict(_Best.waiting)
        _Best.worker = threading.Thread(target=_link_newest, args=(folder, waiting), name="verl-otel-best", daemon=True)
        _Best.worker.start()


def wait(seconds: float) -> None:
    """Wait for a link that is being made: the training ends."""
    if _Best.worker is not None:
        _Best.worker.join(seconds)


def _link_newest(folder: Path, waiting: dict[int, float]) -> None:
    with error_boundary.suppress_errors("best checkpoint"):
        try:
            completed = int((folder / TRACKER).read_text().strip())
        except (OSError, ValueError):
            return
        steps = [step for step in waiting if step <= completed and (folder / f"global_step_{step}").is_dir()]
        if not steps:
            return
        step = max(steps)  # each value is better than all before it
        try:
            link_checkpoint(folder, step)
        except OSError as error:
            error_boundary.warn_once(
                "best checkpoint", "verl-otel: the best checkpoint cannot be kept: %s", error.strerror or error
            )
            return
        for done in [one for one in _Best.waiting if one <= step]:
            _Best.waiting.pop(done, None)


def link_checkpoint(folder: Path, step: int) -> Path:
    """Keep the checkpoint of a step as the best one, and remove the one before.

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
    for other in best.glob("global_step_*"):
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return target
