# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run's ``file_sd`` file: where a Prometheus on this machine finds every process that serves ``/metrics``.

One file per run, ``<run dir>/targets/<run id>.json``, so that one line in ``prometheus.yml`` finds every run. Each process adds and removes
its own entry, under a lock and by an atomic rename; entries of processes that died are dropped by whoever writes next.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from verl_otel import _guard
from verl_otel.config import Config
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr

FOLDER: Final = "targets"
_PID: Final = "__meta_verl_otel_pid"
_HOST: Final = "__meta_verl_otel_host"
Entries = list[dict[str, Any]]


def targets_path(config: Config) -> Path:
    """Return the file of this run."""
    return config.run_dir / FOLDER / f"{config.run_id}.json"


def make_entry(resource: Resource, address: str) -> dict[str, Any]:
    """Return the entry of this process: its address and the labels of the contract.

    Labels that begin with ``__meta_`` are dropped by Prometheus; they let others see whether the process still lives.
    """
    labels = {
        "job": resource.text(attr.SERVICE_NAME, "verl"),
        "instance": resource.text(attr.SERVICE_INSTANCE),
        "verl_role": resource.text(attr.ROLE),
        "verl_run_id": resource.text(attr.RUN_ID),
        _PID: str(os.getpid()),
        _HOST: socket.gethostname(),
    }
    return {"targets": [address], "labels": labels}


def add_target(config: Config, resource: Resource, address: str) -> None:
    """Add or replace the entry of this process."""
    entry = make_entry(resource, address)
    _change(targets_path(config), lambda entries: [*filter(_is_other_and_alive, entries), entry])


def remove_target(config: Config) -> None:
    """Remove the entry of this process, and the file with the last one."""
    _change(targets_path(config), lambda entries: [*filter(_is_other_and_alive, entries)])


def remove_run(config: Config) -> None:
    """Remove the file: the run has ended (Ray kills its workers without a chance to say goodbye)."""
    _change(targets_path(config), lambda _: [])


def read_targets(path: Path) -> Entries:
    """Return the entries of a ``file_sd`` file; none if it is missing or damaged."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [entry for entry in found if _is_entry(entry)] if isinstance(found, list) else []


def _is_entry(entry: object) -> bool:
    """Return whether Prometheus would take this: of a file with one entry that it does not take, it takes none."""
    return (
        isinstance(entry, dict) and isinstance(entry.get("targets"), list) and isinstance(entry.get("labels", {}), dict)
    )


def _is_other_and_alive(entry: dict[str, Any]) -> bool:
    labels = entry.get("labels", {})
    if labels.get(_HOST) != socket.gethostname():
        return True
    pid = str(labels.get(_PID, ""))
    return pid.isdecimal() and pid != str(os.getpid()) and Path(f"/proc/{pid}").exists()


def _change(path: Path, change: Callable[[Entries], Entries]) -> None:
    with _guard.swallowed("targets"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with (path.parent / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                entries = change(read_targets(path))
                if entries:
                    temporary = path.with_suffix(".tmp")
                    temporary.write_text(json.dumps(entries, indent=1) + "\n", "utf-8")
                    temporary.replace(path)
                else:
                    path.unlink(missing_ok=True)
        except OSError as error:
            _guard.say(
                "targets", "verl-otel: cannot write %s: %s; Prometheus will not find this process", path, error.strerror
            )
