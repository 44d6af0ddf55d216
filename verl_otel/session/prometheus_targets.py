# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``file_sd`` file of a run: the targets from which a Prometheus on this machine scrapes ``/metrics``.

One file per run, ``<run dir>/targets/<run id>.json``, so that one line in ``prometheus.yml`` finds every run. Each process adds and removes
its own entries (itself, and the engines that it started), under a lock and with an atomic rename. Entries of dead processes are dropped
by the next process that writes, also in the files of other runs. The entry of a dead trainer stays for a while: without a trainer in the
list a run counts as ended, and the alert for a vanished run could not fire. Publishers receive the same entries for other machines.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from verl_otel._internal import error_boundary, safe_files
from verl_otel.config import Config
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr
from verl_otel.session import target_entries
from verl_otel.system import procfs

FOLDER: Final = "targets"
WAIT: Final = 0.5
"""Seconds that a caller waits for the lock of the file to add its entries."""
LATE_WAIT: Final = 120.0
"""Seconds that a thread waits for the lock after that: hundreds of ranks may start at once on a node of few cores."""
EXIT_WAIT: Final = 1.0
"""Seconds to wait for the lock to remove entries: an exit must not hang on the file system."""
MAX_DIGITS: Final = 19
MAX_BYTES: Final = 8 << 20
"""Largest file that is read: ten thousand processes need 4 MiB."""
_PID: Final = "__meta_verl_otel_pid"
_HOST: Final = "__meta_verl_otel_host"
_PID_NAMESPACE: Final = "__meta_verl_otel_pid_space"
"""The pid namespace: a container may share host name and folder with its machine."""
_DEAD_SINCE: Final = "__meta_verl_otel_gone"
"""Unix time at which a trainer was found dead."""
LINGER: Final = 900.0
"""Seconds for which a dead trainer stays in the file: three times the delay of the alert RunVanished."""
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
_UNROUTED: Final = ("192.0.2.1", 9)
"""A reserved address: the route to it shows the address of this machine. Nothing is sent."""
Entry = dict[str, Any]
Entries = list[Entry]
Addresses = frozenset[tuple[str | None, str]]
"""Host and ``host:port``."""


class TargetPublisher(Protocol):
    """Publishes the entries to other machines. The methods must not block or raise."""

    def address(self) -> str:
        """Return the address at which others reach this machine; empty if it is unknown."""

    def add(self, config: Config, entries: Sequence[Entry]) -> None:
        """Add entries of this process, or replace those of the same instance."""

    def remove(self, config: Config) -> None:
        """Remove the entries of this process."""

    def end(self, config: Config) -> None:
        """Remove all entries of the run."""


_publishers: list[TargetPublisher] = []
_found_dead: dict[tuple[str, str, str], float] = {}
"""Unix times at which trainers were found dead, by run, instance and process id (a restarted trainer has the same instance)."""
_removals: dict[Path, int] = {}
"""Number of removals of entries of this process or of a run, by file: a thread that still has to add entries drops them then."""
_cleaned: set[tuple[int, Path]] = set()
"""Process ids and folders for which the files of other runs were cleaned; in a forked child also those of the parent."""


def targets_path(config: Config) -> Path:
    """Return the file of this run."""
    return config.run_dir / FOLDER / f"{config.run_id}.json"


def add_publisher(publisher: TargetPublisher) -> None:
    """Add a publisher that receives every change."""
    if publisher not in _publishers:
        _publishers.append(publisher)


def remove_publisher(publisher: TargetPublisher) -> None:
    """Remove a publisher; nothing happens if it was not added."""
    if publisher in _publishers:
        _publishers.remove(publisher)


def make_address(config: Config, port: int) -> str:
    """Return ``host:port`` at which others reach this process.

    Example:
        "10.0.0.7:41231" where ``/metrics`` is bound to 0.0.0.0, "127.0.0.1:41231" where it is bound to the loopback
    """
    host = (config.prometheus_advertise or config.prometheus_host).strip("[]")
    if host in _EVERY_ADDRESS:
        host = next(filter(None, (publisher.address() for publisher in _publishers)), "") or _find_address()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _find_address() -> str:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_UNROUTED)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def make_entry(resource: Resource, address: str, **labels: str) -> Entry:
    """Return an entry: an address and labels, which are those of this process unless given.

    Labels that begin with ``__meta_`` are dropped by Prometheus. Other processes use them to check whether this one lives.

    Args:
        resource: This process.
        address: ``host:port`` that serves ``/metrics``.
        **labels: Labels that replace those of the process or are added.
    """
    own_labels = {
        "job": resource.text(attr.SERVICE_NAME, "verl"),
        "instance": resource.text(attr.SERVICE_INSTANCE),
        "verl_role": resource.text(attr.ROLE),
        "verl_run_id": resource.text(attr.RUN_ID),
        **labels,
        _PID: str(os.getpid()),
        _HOST: socket.gethostname(),
        _PID_NAMESPACE: procfs.read_pid_namespace(),
    }
    return {"targets": [address], "labels": own_labels}


def add_target(config: Config, resource: Resource, address: str) -> None:
    """Add or replace the entry of this process."""
    add_entries(config, [make_entry(resource, address)])


def add_entries(config: Config, entries: Sequence[Entry]) -> None:
    """Add entries that this process owns, or replace those of the same instance.

    The caller waits for `WAIT` seconds at most; after that a thread writes the entries.
    """
    path = targets_path(config)
    instances = {entry["labels"]["instance"] for entry in entries}
    removals = _removals.get(path, 0)

    def add(existing: Entries) -> Entries:
        if _removals.get(path, 0) != removals:  # the entries were removed meanwhile
            return existing
        kept = [entry for entry in existing if not (_is_own(entry) and _labels(entry).get("instance") in instances)]
        return _drop_dead([*kept, *entries])

    def add_late() -> None:
        if _change(path, add, LATE_WAIT):
            _clean_other_runs(path, _addresses(entries))

    with error_boundary.suppress_errors("targets"):
        if _change(path, add, WAIT, last=False):
            _clean_other_runs(path, _addresses(entries))
        else:  # another process holds the lock: the caller does not wait for it
            threading.Thread(target=add_late, name="verl-otel-targets", daemon=True).start()
    for publisher in _publishers:
        publisher.add(config, entries)


def remove_target(config: Config) -> None:
    """Remove the entries of this process, and the file with the last one. Waits for `EXIT_WAIT` seconds at most."""
    path = targets_path(config)
    _removals[path] = _removals.get(path, 0) + 1
    _filter_entries(
        targets_path(config), lambda existing: _drop_dead([entry for entry in existing if not _is_own(entry)])
    )
    for publisher in _publishers:
        publisher.remove(config)


def remove_run(config: Config) -> None:
    """Remove the file of an ended run: workers that Ray kills cannot remove their entries. Waits for `EXIT_WAIT` seconds at most."""
    path = targets_path(config)
    _removals[path] = _removals.get(path, 0) + 1
    _filter_entries(targets_path(config), lambda _: [])
    for publisher in _publishers:
        publisher.end(config)


def read_targets(path: Path) -> Entries:
    """Return the entries of a ``file_sd`` file; none if it is missing or damaged."""
    try:
        document = safe_files.read_json(path, MAX_BYTES)
    except (OSError, ValueError):
        return []
    return (
        [entry for item in document if (entry := target_entries.sanitize(item)) is not None]
        if isinstance(document, list)
        else []
    )


def read_own(config: Config) -> Entries:
    """Return the entries that this process has added."""
    return [entry for entry in read_targets(targets_path(config)) if _is_own(entry)]


def read_folder(folder: Path, *, linger: bool = False) -> Entries:
    """Return the entries of all runs, without processes that died on this machine.

    Args:
        folder: The folder of the files.
        linger: Whether dead trainers are returned for `LINGER` seconds, as in the files.
    """
    files = [entries for path in sorted(folder.glob("*.json")) if (entries := read_targets(path))]
    alive = [entry for entries in files for entry in entries if _is_alive(entry)]
    return [entry for entries in files for entry in _drop_dead(entries, _addresses(alive))] if linger else alive


def _labels(entry: Entry) -> dict[str, str]:
    labels = entry.get("labels", {})
    return labels if isinstance(labels, dict) else {}


def _addresses(entries: Iterable[Entry]) -> Addresses:
    """Return hosts and addresses: the loopback address of another machine is a different one."""
    return frozenset((_labels(entry).get(_HOST), target) for entry in entries for target in entry["targets"])


def _drop_dead(entries: Entries, taken: Addresses = frozenset()) -> Entries:
    """Return the entries without dead processes. A dead trainer stays for `LINGER` seconds, unless another trainer of its run lives.

    Args:
        entries: Of one run.
        taken: Addresses that other processes use now: a dead trainer with such an address is dropped.
    """
    alive = [entry for entry in entries if _is_alive(entry)]
    taken |= _addresses(alive)
    runs = {_labels(entry).get("verl_run_id") for entry in alive if _is_trainer(entry)}
    dead = [entry for entry in entries if _is_trainer(entry) and not _is_alive(entry)]
    lingering = [
        _mark_dead(entry)
        for entry in dead
        if _labels(entry).get("verl_run_id") not in runs and taken.isdisjoint(_addresses([entry]))
    ]
    return [*alive, *(entry for entry in lingering if abs(time.time() - float(entry["labels"][_DEAD_SINCE])) < LINGER)]


def _is_trainer(entry: Entry) -> bool:
    return _labels(entry).get("verl_role") == "trainer"


def _mark_dead(entry: Entry) -> Entry:
    """Return an entry with the time at which its process was found dead."""
    labels = _labels(entry)
    dead_since = labels.get(_DEAD_SINCE, "")
    if not dead_since.isdecimal() or len(dead_since) > MAX_DIGITS:
        key = labels.get("verl_run_id", ""), labels.get("instance", ""), labels.get(_PID, "")
        dead_since = str(int(_found_dead.setdefault(key, time.time())))
    return {**entry, "labels": {**labels, _DEAD_SINCE: dead_since}}


def _is_here(entry: Entry) -> bool:
    """Return whether the process of an entry is visible to this process."""
    labels = _labels(entry)
    return labels.get(_HOST) == socket.gethostname() and labels.get(_PID_NAMESPACE) in (
        None,
        procfs.read_pid_namespace(),
    )


def _is_own(entry: Entry) -> bool:
    return _is_here(entry) and _labels(entry).get(_PID) == str(os.getpid())


def _is_alive(entry: Entry) -> bool:
    """Return whether the process of an entry lives; True for a process that is not visible."""
    pid = str(_labels(entry).get(_PID, ""))
    return not _is_here(entry) or (pid.isdecimal() and len(pid) < MAX_DIGITS and Path(f"/proc/{pid}").exists())


@error_boundary.never_raises("targets")
def _clean_other_runs(own_path: Path, taken: Addresses) -> None:
    """Drop dead processes from the files of other runs, once per process: a crashed run does not do it."""
    key = (os.getpid(), own_path.parent)
    if key in _cleaned:
        return
    _cleaned.add(key)
    deadline = time.monotonic() + WAIT
    for path in own_path.parent.glob("*.json"):
        if time.monotonic() > deadline:
            return  # the next process continues
        if path != own_path and _drop_dead(entries := read_targets(path), taken) != entries:
            _filter_entries(path, functools.partial(_drop_dead, taken=taken), wait=0.0)


@error_boundary.never_raises("targets")
def _filter_entries(path: Path, keep: Callable[[Entries], Entries], wait: float | None = None) -> None:
    """Keep some entries of a file that may not exist. On failure the next process that writes does it: this one may be exiting."""
    if os.path.lexists(path):  # unlike `Path.exists` it does not raise if the folder is not readable
        _change(path, keep, EXIT_WAIT if wait is None else wait, adds=False)


def _change(
    path: Path, change: Callable[[Entries], Entries], wait: float, *, adds: bool = True, last: bool = True
) -> bool:
    """Change a file under its lock.

    Args:
        path: The file.
        change: Returns the new entries.
        wait: Seconds to wait for the lock.
        adds: Whether entries are added, for the log line.
        last: Whether this is the last attempt.

    Returns:
        Whether nothing is left to try: False if the lock was held, unless this was the last attempt.
    """
    with error_boundary.suppress_errors("targets"):
        try:
            safe_files.make_folder(path.parent)
            with safe_files.open_text(path.parent / ".lock", "r+", os.O_RDWR | os.O_CREAT) as lock:
                safe_files.lock(lock, wait)
                try:
                    _write(path, change(read_targets(path)))
                finally:
                    # a child that is forked meanwhile keeps this file open
                    fcntl.flock(lock, fcntl.LOCK_UN)
        except OSError as error:
            if isinstance(error, TimeoutError) and not (last and adds):
                return False  # what is not removed is dropped by the next process that writes
            cost = "not find this process" if adds else "look for processes that are gone"
            error_boundary.warn_once(
                f"targets {adds}", "verl-otel: cannot write %s: %s; Prometheus will %s", path, error.strerror, cost
            )
    return True


def _write(path: Path, entries: Entries) -> None:
    if entries:
        safe_files.write_atomically(path, json.dumps(entries, indent=1) + "\n")
    else:
        path.unlink(missing_ok=True)
