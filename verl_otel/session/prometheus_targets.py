# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``file_sd`` files of a run: the targets from which a Prometheus on this machine scrapes ``/metrics``.

One file for each process, ``<run dir>/targets/<run id>@<node>-<pid>.json``, so that one line in ``prometheus.yml`` finds every run and no process
waits for another. It lists the process and the engines that it started, and is removed when the process ends. The files of dead processes are
removed by the next process that starts, unless another one has just looked: hundreds that start at once would each read the files of all. The file
of a dead trainer stays for a while: without a trainer in the list a run counts as ended, and the alert for a vanished run could not fire. Publishers
receive the same entries for other machines.

What others have written, here or in a cluster's registry, is sanitized before it reaches Prometheus. Labels that begin with ``__`` configure a
scrape: address, scheme, path and parameters of the request, interval and time-out. They are never taken from an entry.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from verl_otel._internal import error_boundary, process_state, safe_files
from verl_otel._internal.machine import identify_machine
from verl_otel.config import Config
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr
from verl_otel.system import procfs

TARGETS_FOLDER: Final = "targets"
CLEANED: Final = "cleaned"
"""File whose time is that of the last look for files of dead processes."""
CLEAN_EVERY: Final = 10.0
"""Seconds from one look to the next, of all processes together."""
CLEAN_SECONDS: Final = 0.5
"""Seconds after which a process that starts reads no more files of others."""
WRITE_SECONDS: Final = 1.0
"""Seconds that a thread waits for another thread of this process that writes the file: the file system may hang."""
MAX_DIGITS: Final = 19
MAX_BYTES: Final = 8 << 20
"""Largest file that is read."""
MAX_TARGETS: Final = 1_000
MAX_LABELS: Final = 64
MAX_VALUE: Final = 256
"""Characters of a label value; the scrape limits of the shipped configuration refuse targets with longer ones."""
_PID: Final = "__meta_verl_otel_pid"
_HOST: Final = "__meta_verl_otel_host"
_MACHINE: Final = "__meta_verl_otel_machine"
"""The pid namespace: a container may share host name and folder with its machine."""
_DEAD_SINCE: Final = "__meta_verl_otel_gone"
"""Unix time at which a trainer was found dead."""
_OWN: Final = frozenset((_PID, _HOST, _MACHINE, _DEAD_SINCE))
"""Our own labels, which tell whether a process lives. Prometheus drops them."""
LINGER: Final = 900.0
"""Seconds for which a dead trainer stays in its file: three times the delay of the alert RunVanished."""
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
_UNROUTED: Final = ("192.0.2.1", 9)
"""A reserved address: the route to it shows the address of this machine. Nothing is sent."""
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,127}")
_ADDRESS: Final = re.compile(
    r"(?:[a-zA-Z0-9_](?:[a-zA-Z0-9._-]{0,252}[a-zA-Z0-9_])?|\[[0-9a-fA-F:.]{2,45}(?:%\w{1,16})?\]):([0-9]{1,5})",
    re.ASCII,
)
TargetEntry = dict[str, Any]
TargetEntries = list[TargetEntry]


class TargetPublisher(Protocol):
    """Publishes the entries to other machines. The methods must not block or raise."""

    def address(self) -> str:
        """Return the address at which others reach this machine; empty if it is unknown."""

    def add(self, config: Config, entries: Sequence[TargetEntry]) -> None:
        """Add entries of this process, or replace those of the same instance."""

    def remove(self, config: Config) -> None:
        """Remove the entries of this process."""

    def end(self, config: Config) -> None:
        """Remove all entries of the run."""


_publishers: list[TargetPublisher] = []
_own: dict[Path, dict[str, TargetEntry]] = {}
"""The entries of this process by file and instance. A forked child has other files."""
_found_dead: dict[tuple[str, str, str], float] = {}
"""Unix times at which trainers were found dead, by run, instance and process id (a restarted trainer has the same instance)."""


class _Writing:
    """Held while a thread writes the file of this process."""

    lock = threading.Lock()


def _renew_lock() -> None:
    _Writing.lock = threading.Lock()


process_state.register(after_fork=_renew_lock)


def targets_path(config: Config) -> Path:
    """Return the file of this process. A run id has no ``@`` and no ``*``."""
    return config.run_dir / TARGETS_FOLDER / f"{config.run_id}@{procfs.read_node_name()}-{os.getpid()}.json"


def add_target_publisher(publisher: TargetPublisher) -> None:
    """Add a publisher that receives every change."""
    if publisher not in _publishers:
        _publishers.append(publisher)


def remove_target_publisher(publisher: TargetPublisher) -> None:
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


def make_target(resource: Resource, address: str, **labels: str) -> TargetEntry:
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
        _MACHINE: identify_machine(),
    }
    return {"targets": [address], "labels": own_labels}


def add_target(config: Config, resource: Resource, address: str) -> None:
    """Add or replace the entry of this process."""
    add_targets(config, [make_target(resource, address)])


def add_targets(config: Config, entries: Sequence[TargetEntry]) -> None:
    """Add entries that this process owns, or replace those of the same instance."""
    path = targets_path(config)
    _own.setdefault(path, {}).update({str(entry["labels"]["instance"]): entry for entry in entries})
    _write_own(path)
    _remove_dead(path.parent)
    for publisher in _publishers:
        publisher.add(config, entries)


def remove_target(config: Config) -> None:
    """Remove the file of this process."""
    path = targets_path(config)
    if _own.pop(path, None) is not None:
        _write_own(path)
    for publisher in _publishers:
        publisher.remove(config)


def remove_run(config: Config) -> None:
    """Remove the files of an ended run: workers that Ray kills cannot remove theirs."""
    path = targets_path(config)
    _own.pop(path, None)
    with error_boundary.suppress_errors("targets"):
        for other in path.parent.glob(f"{config.run_id}@*.json"):
            other.unlink(missing_ok=True)
    for publisher in _publishers:
        publisher.end(config)


@error_boundary.never_raises("targets")
def _write_own(path: Path) -> None:
    """Write the file of this process, or remove it if it has no entries any more."""
    if not _Writing.lock.acquire(timeout=WRITE_SECONDS):
        return
    try:
        entries = list(_own.get(path, {}).values())
        if entries:
            safe_files.make_folder(path.parent)
            _write(path, entries)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        if not entries:
            return  # the next process that starts removes it
        message = "verl-otel: cannot write %s: %s; Prometheus will not find this process"
        error_boundary.warn_once("targets", message, path, error.strerror)
    finally:
        _Writing.lock.release()


def _write(path: Path, entries: TargetEntries) -> None:
    safe_files.write_atomically(path, json.dumps(entries, indent=1) + "\n")


def read_targets(path: Path) -> TargetEntries:
    """Return the entries of a ``file_sd`` file; none if it is missing or damaged."""
    try:
        document = safe_files.read_json(path, MAX_BYTES)
    except (OSError, ValueError):
        return []
    entries = map(sanitize_target, document) if isinstance(document, list) else ()
    return [entry for entry in entries if entry is not None]


def read_own_targets(config: Config) -> TargetEntries:
    """Return the entries that this process has added."""
    return list(_own.get(targets_path(config), {}).values())


def read_folder(folder: Path, *, linger: bool = False) -> TargetEntries:
    """Return the entries of all runs, without processes that died on this machine.

    Args:
        folder: The folder of the files.
        linger: Whether dead trainers are returned for `LINGER` seconds, as in the files.
    """
    entries = [entry for path in sorted(folder.glob("*.json")) for entry in read_targets(path)]
    return _Living(entries).keep(entries) if linger else list(filter(_is_alive, entries))


# -- what is removed, and when --


@error_boundary.never_raises("targets")
def _remove_dead(folder: Path) -> None:
    """Remove dead processes from the files of all runs: who was killed does not do it."""
    mark = folder / CLEANED
    try:
        with contextlib.suppress(FileNotFoundError):
            if abs(time.time() - mark.stat().st_mtime) < CLEAN_EVERY:
                return
        safe_files.touch(mark)
        os.utime(mark)
    except OSError:
        return  # nothing can be written here, as `_write_own` has logged
    deadline = time.monotonic() + CLEAN_SECONDS
    files: dict[Path, TargetEntries] = {}
    for path in sorted(folder.glob("*.json")):
        if time.monotonic() > deadline:
            break
        files[path] = read_targets(path)
    living = _Living([entry for entries in files.values() for entry in entries])
    for path, entries in files.items():
        kept = living.keep(entries)
        if not kept and entries:
            path.unlink(missing_ok=True)
        elif kept != entries:
            _write(path, kept)


class _Living:
    """What the living processes among some entries have: the addresses that they serve, and the runs that they train.

    An address is one of a host: the loopback address of another machine is a different one.
    """

    def __init__(self, entries: TargetEntries) -> None:
        living = list(filter(_is_alive, entries))
        self._taken = {address for entry in living for address in _addresses(entry)}
        self._runs = {entry["labels"].get("verl_run_id") for entry in living if _is_trainer(entry)}

    def keep(self, entries: TargetEntries) -> TargetEntries:
        """Return the entries without dead processes.

        A dead trainer stays for `LINGER` seconds, unless another trainer of its run lives, or another process has its address now.
        """
        return [kept for entry in entries if (kept := entry if _is_alive(entry) else self._linger(entry)) is not None]

    def _linger(self, entry: TargetEntry) -> TargetEntry | None:
        if not _is_trainer(entry) or entry["labels"].get("verl_run_id") in self._runs:
            return None
        if not self._taken.isdisjoint(_addresses(entry)):
            return None
        marked = _mark_dead(entry)
        return marked if abs(time.time() - float(marked["labels"][_DEAD_SINCE])) < LINGER else None


def _addresses(entry: TargetEntry) -> list[tuple[str | None, str]]:
    return [(entry["labels"].get(_HOST), target) for target in entry["targets"]]


def _is_trainer(entry: TargetEntry) -> bool:
    return bool(entry["labels"].get("verl_role") == "trainer")


def _mark_dead(entry: TargetEntry) -> TargetEntry:
    """Return an entry with the time at which its process was found dead."""
    labels = entry["labels"]
    dead_since = labels.get(_DEAD_SINCE, "")
    if not dead_since.isdecimal() or len(dead_since) > MAX_DIGITS:
        key = labels.get("verl_run_id", ""), labels.get("instance", ""), labels.get(_PID, "")
        dead_since = str(int(_found_dead.setdefault(key, time.time())))
    return {**entry, "labels": {**labels, _DEAD_SINCE: dead_since}}


def _is_alive(entry: TargetEntry) -> bool:
    """Return whether the process of an entry lives; True for one that is not visible to this process."""
    labels = entry["labels"]
    if labels.get(_HOST) != socket.gethostname():
        return True
    if labels.get(_MACHINE) not in (None, identify_machine()):
        return True
    pid = str(labels.get(_PID, ""))
    return pid.isdecimal() and len(pid) < MAX_DIGITS and Path(f"/proc/{pid}").exists()


# -- entries that others have written --


def sanitize_target(entry: object) -> dict[str, Any] | None:
    """Return the allowed part of an entry; None if it is not an entry, or has no valid address.

    Prometheus refuses a whole file for one invalid entry.
    """
    if not isinstance(entry, dict):
        return None
    targets, labels = entry.get("targets"), entry.get("labels", {})
    if not isinstance(targets, list) or not isinstance(labels, dict):
        return None
    if not all(isinstance(text, str) for text in (*targets, *labels, *labels.values())):
        return None
    addresses = [text for text in targets[:MAX_TARGETS] if is_host_port(text)]
    return {"targets": addresses, "labels": _clean_labels(labels)} if addresses else None


def is_host_port(text: str) -> bool:
    """Return whether a text is ``host:port``, without a scheme, a user or a path."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 1 << 16


def _clean_labels(labels: Mapping[str, str]) -> dict[str, str]:
    valid = [(name, value) for name, value in labels.items() if name in _OWN or _LABEL.fullmatch(name)]
    return {name: value[:MAX_VALUE].encode("utf-8", "replace").decode() for name, value in valid[:MAX_LABELS]}
