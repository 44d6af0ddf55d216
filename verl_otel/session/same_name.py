# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Several jobs under one name: whether a run that has begun is continued, or its name is used again.

``torchrun --rdzv-id=100`` stands in scripts that start one job after the other, and several at once. A run whose
processes were killed, or that has failed, is continued: this is another attempt. One that has finished, or that goes
on, is another job.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import error_boundary, ranks
from verl_otel._internal.machine import identify_machine, identify_process
from verl_otel.session import run_manifest
from verl_otel.watchdog import process_reports

DIGITS: Final = 6
FRESH_SECONDS: Final = 5.0
"""Age of a heartbeat, written each second, up to which a run on another node goes on."""


def name_job(launcher: str, environ: Mapping[str, str]) -> str:
    """Return what all ranks of this job have in common, and no other job has; empty if that is not known.

    Args:
        launcher: What identifies the process that has started this one; empty: unknown. On several nodes there are several.
        environ: The environment.
    """
    size = environ.get("LOCAL_WORLD_SIZE")
    is_of_one_node = size is not None and size == environ.get("WORLD_SIZE")
    job = environ.get("SLURM_JOB_ID", "") or (launcher if is_of_one_node else "")
    return hashlib.sha256(job.encode("utf-8", "replace")).hexdigest()[:DIGITS] if job else ""


def keep_apart(run_dir: Path, run_id: str, job: str) -> str:
    """Return the run id of a job whose launcher has named it: another one if the run of this name is that of another job.

    Args:
        run_dir: The folder of all runs.
        run_id: The id by the launcher's name.
        job: See `name_job`.
    """
    folder = run_dir / run_id
    last = _find_last(folder)
    if not last or not job or last.get("job") == job:
        return run_id
    goes_on, has_finished = _goes_on(folder, last), _has_finished(folder, last)
    if not goes_on and not has_finished:
        return run_id
    apart = f"{run_id}-{job}"
    if not ranks.find_rank(os.environ):
        error_boundary.warn_once(
            "same name",
            "verl-otel: run %s is another job, which %s: this one is run %s. VERL_OTEL_RUN_ID names a run, also one that is continued",
            run_id, "goes on" if goes_on else "has finished", apart,
        )  # fmt: skip
    return apart


def warn_of_other(folder: Path) -> None:
    """Log, before an attempt begins, that the run here has finished or goes on: two jobs of one name are mixed."""
    last = _find_last(folder)
    state = (
        "goes on" if last and _goes_on(folder, last) else "has finished" if last and _has_finished(folder, last) else ""
    )
    if state:
        error_boundary.warn_once(
            "same name",
            "verl-otel: run %s %s, and this program is another attempt of it. If it is another job, give it a VERL_OTEL_RUN_ID of its own",
            folder.name, state,
        )  # fmt: skip


def _find_last(folder: Path) -> Mapping[str, Any]:
    """Return the last attempt of a run; empty if it has none, or if this process began it."""
    attempts = run_manifest.read(folder).get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts else None
    return last if isinstance(last, dict) and last.get("process") != identify_process() else {}


def _has_finished(folder: Path, attempt: Mapping[str, Any]) -> bool:
    """Return whether an attempt has come to its end, neither by a failure nor by Ctrl-C."""
    end = process_reports.read_run_end(folder / process_reports.FOLDER)
    return "ended" in attempt and (end is None or end.state == process_reports.FINISHED)


def _goes_on(folder: Path, attempt: Mapping[str, Any]) -> bool:
    """Return whether the process that began an attempt lives; for one of another machine, whether the run has heartbeats."""
    if "ended" in attempt:
        return False
    process, pid = attempt.get("process"), attempt.get("pid")
    if isinstance(pid, int) and process == identify_process(pid):
        return True
    return attempt.get("machine") != identify_machine() and _has_heartbeat(folder / process_reports.FOLDER)


def _has_heartbeat(folder: Path) -> bool:
    """Return whether a process of a run has written a heartbeat a moment ago."""
    try:
        with os.scandir(folder) as entries:
            beats = [
                entry.stat().st_mtime for entry in entries if entry.name.startswith(process_reports.HEARTBEAT_PREFIX)
            ]
    except OSError:
        return False
    return time.time() - max(beats, default=0.0) < FRESH_SECONDS
