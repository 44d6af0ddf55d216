# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a run, ``run.json`` in its folder: its attempts, when they started and ended, its state, and facts about the run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from verl_otel import resource
from verl_otel._internal import error_boundary, process_state, ranks, safe_files
from verl_otel._internal.machine import identify_machine, identify_process
from verl_otel._internal.masking import mask_text, mask_url
from verl_otel._version import __version__
from verl_otel.session import children

NAME: Final = "run.json"
STATUS: Final = "status"
"""Key of what the processes with a training loop say of it."""
DESTINATION: Final = "destination.json"
"""In the folder of a run that writes no files: its exporters and the endpoint."""
MAX_TRAININGS: Final = 32
"""Records of processes with a training loop that are kept, one for each attempt as a rule. Of older ones only the
number of steps is kept."""
LOCK_SECONDS: Final = 0.5
"""Seconds that a change of the manifest waits for another one, whose process may be stopped."""


def is_first_process() -> bool:
    """Return whether this process starts a run: it is no rank but the first, no child, and its environment names no run."""
    return _has_no_parent() and not os.environ.get("VERL_OTEL_RUN_ID", "").strip()


def may_resume() -> bool:
    """Return whether this process starts, or starts again, the run that its environment names, if it has a training loop of its own.

    Programs beside that loop may have the same name in their environment. Workers have a number of the attempt besides.
    """
    is_first = all(os.environ.get(name, "0") == "0" for name in ranks.RANKS)
    return is_first and _has_no_parent() and bool(os.environ.get("VERL_OTEL_RUN_ID", "").strip())


def _has_no_parent() -> bool:
    return (
        os.environ.get("RANK", "0") == "0"
        and not ranks.find_rank(os.environ)
        and not os.environ.get("VERL_OTEL_RUN_ATTEMPT", "").strip()
        and not children.is_child()
        and not resource.is_forked()
    )


def can_write(folder: Path) -> bool:
    """Return whether the folder of a run can be made. The file exporter logs it if it cannot."""
    try:
        safe_files.make_folder(folder)
    except OSError:
        return False
    return True


def _name_program() -> list[str]:
    """Return the interpreter, and the module or the script that it runs: arguments may be secrets."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return [sys.executable, "-m", spec.name.removesuffix(".__main__")]
    script = sys.argv[0] if sys.argv else ""
    return [sys.executable] if script in ("", "-", "-c") else [sys.executable, mask_text(script)]


def begin_attempt(folder: Path, started: float = 0.0, job: str = "") -> int:
    """Record the start of a run and return the number of the attempt: 1, or one more than the last with this id.

    Args:
        folder: The folder of the run.
        started: Unix time at which this process began to record; 0: now.
        job: What tells the job from others whose launcher has given them the same name; empty: unknown.
    """
    begun = {
        "started": started or time.time(),
        "command": _name_program(),
        "pid": os.getpid(),
        "process": identify_process(),
        "machine": identify_machine(),
        **({"job": job} if job else {}),
    }
    with _alone(folder):
        manifest = read(folder)
        attempts = manifest.get("attempts", [])
        attempts = attempts if isinstance(attempts, list) else []
        attempt = len(attempts) + 1
        attempts.append({"attempt": attempt, **begun})
        _write(folder, {**manifest, "run_id": folder.name, "verl_otel": __version__, "attempts": attempts})
    return attempt


def _list_trainings(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of processes with a training loop, without those that are damaged."""
    status = manifest.get(STATUS)
    listed = status.get("trainings") if isinstance(status, dict) else None
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def find_saved(folder: Path, attempt: int) -> int | None:
    """Return the step of the last checkpoint that earlier attempts of a run have saved; None: none is known.

    Args:
        folder: The folder of the run.
        attempt: The attempt of this process.
    """
    trainings = _list_trainings(read(folder))
    earlier = [each for each in trainings if isinstance(each.get("attempt"), int) and each["attempt"] < attempt]
    saved = [each["checkpoint"] for each in earlier if isinstance(each.get("checkpoint"), int)]
    return saved[-1] if saved else None


def has_training(folder: Path, since: float) -> bool:
    """Return whether a process with a training loop has written its record that began at a time or later, in seconds since 1970."""
    return any(
        isinstance(each.get("began"), float) and each["began"] >= since for each in _list_trainings(read(folder))
    )


def end_attempt(folder: Path) -> None:
    """Record that this process, which has started an attempt, exits normally, whether or not the training succeeded."""
    with _alone(folder):
        manifest = read(folder)
        attempts = manifest.get("attempts")
        if isinstance(attempts, list):
            own = [each for each in attempts if isinstance(each, dict) and each.get("process") == identify_process()]
            if own:
                own[-1]["ended"] = time.time()
                _write(folder, manifest)


def update(folder: Path, facts: Mapping[str, object]) -> None:
    """Add facts about the run, such as project, experiment and algorithm."""
    with _alone(folder):
        _write(folder, {**read(folder), **facts})


def record_training(folder: Path, record: Mapping[str, Any]) -> bool:
    """Add the record of a process with a training loop, or replace its earlier one. A folder that was deleted stays deleted.

    Args:
        folder: The folder of the run.
        record: As `verl_otel.analysis.io.run_status.Training`.

    Returns:
        Whether it is written.
    """
    with _alone(folder):
        try:
            manifest = safe_files.read_json(folder / NAME)
        except (FileNotFoundError, ValueError):
            manifest = {}
        except OSError:  # another node has just replaced the file: what it says must not be lost
            return False
        manifest = manifest if isinstance(manifest, dict) else {}
        return _replace(folder, {**manifest, STATUS: _merge(manifest.get(STATUS), record)})


def _merge(status: object, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a run with another record. It is of the same process as one that began at the same time."""
    trainings = _list_trainings({STATUS: status})
    earlier = status.get("earlier_steps") if isinstance(status, dict) else None
    for place, each in enumerate(trainings):
        if (each.get("process"), each.get("began")) == (record["process"], record["began"]):
            trainings[place] = dict(record)
            break
    else:
        trainings.append(dict(record))
    counts = [earlier, *(each.get("steps") for each in trainings[:-MAX_TRAININGS])]
    total = sum(count for count in counts if type(count) is int)
    return {"trainings": trainings[-MAX_TRAININGS:], "earlier_steps": total}


def note_destination(folder: Path, exporters: Sequence[str], endpoint: str) -> None:
    """Record where a run goes that writes no files, for commands that find no files in its folder.

    Args:
        folder: The folder of the run.
        exporters: Names of its exporters.
        endpoint: The OTLP endpoint, or empty.
    """
    try:
        safe_files.make_folder(folder)
        record = {"exporters": list(exporters), "endpoint": mask_url(endpoint) if endpoint else ""}
        safe_files.write_atomically(folder / DESTINATION, json.dumps(record) + "\n")
    except OSError:  # nothing else depends on it
        return


def read_destination(folder: Path) -> tuple[tuple[str, ...], str] | None:
    """Return exporters and endpoint of a run that wrote no files; None if the folder does not say."""
    try:
        record = safe_files.read_json(folder / DESTINATION, 1 << 12)
    except (OSError, ValueError):
        return None
    exporters = record.get("exporters") if isinstance(record, dict) else None
    if not isinstance(exporters, list):
        return None
    return tuple(map(str, exporters)), str(record.get("endpoint", ""))


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run; empty if there is none or it is damaged."""
    try:
        manifest = safe_files.read_json(folder / NAME)
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def find_start(manifest: Mapping[str, Any]) -> float:
    """Return when the newest attempt started, in seconds since 1970; 0 if the manifest does not say."""
    attempts = manifest.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts else None
    started = last.get("started") if isinstance(last, dict) else None
    if isinstance(started, bool) or not isinstance(started, (int, float)) or not math.isfinite(started):
        return 0.0
    return max(0.0, float(started))


class _Changing:
    """Held by the thread of this process that changes a manifest: some file systems of clusters have no lock of a folder."""

    lock = threading.Lock()


def _renew_lock() -> None:
    _Changing.lock = threading.Lock()


process_state.register(after_fork=_renew_lock)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others from changing a manifest between reading and writing it: the driver, the trainer, and their threads.

    After `LOCK_SECONDS` it goes on all the same: nothing waits for a process that is stopped, and a change of two at once is rare.
    """
    lock, handle = _Changing.lock, -1
    is_held = lock.acquire(timeout=LOCK_SECONDS)
    try:
        # another process holds it, or the file system has none, or there is no folder yet
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            safe_files.lock(handle, LOCK_SECONDS)
        yield
    finally:
        if handle >= 0:
            # a child that was forked meanwhile has the descriptor, too, and would keep the lock
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)
        if is_held:
            lock.release()


def _write(folder: Path, record: dict[str, Any]) -> None:
    try:
        safe_files.make_folder(folder)
    except OSError as error:
        _warn(folder, error)
    else:
        _replace(folder, record)


def _replace(folder: Path, record: dict[str, Any]) -> bool:
    """Write the manifest of a folder that exists; return whether it is written."""
    try:
        safe_files.write_atomically(folder / NAME, json.dumps(record, indent=1, default=str) + "\n")
    except OSError as error:
        _warn(folder, error)
        return False
    return True


def _warn(folder: Path, error: OSError) -> None:
    error_boundary.warn_once("run folder", "verl-otel: cannot write %s: %s", folder / NAME, error.strerror)
