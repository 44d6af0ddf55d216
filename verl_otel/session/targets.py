# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run's ``file_sd`` file: where a Prometheus on this machine finds everything of a run that serves ``/metrics``.

One file per run, ``<run dir>/targets/<run id>.json``, so that one line in ``prometheus.yml`` finds every run. Each process adds and removes
its own entries (itself, and the engines that it started), under a lock and by an atomic rename; entries of processes that died are
dropped by whoever writes next, in the files of other runs too. Only that of a trainer stays for a while: a run whose trainer is not on the list
any more has ended, for whoever is to tell that it vanished. Mirrors are told the same, so that other machines can know.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol

from verl_otel import _guard
from verl_otel.config import Config
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr

FOLDER: Final = "targets"
WAIT: Final = 10.0
"""Seconds that a process waits for the file's lock to add its entry: a thousand ranks may begin at once."""
EXIT_WAIT: Final = 1.0
"""Seconds that it waits to remove it: an exit must not hang on the file system."""
POLL: Final = 0.01
_PID: Final = "__meta_verl_otel_pid"
_HOST: Final = "__meta_verl_otel_host"
_SPACE: Final = "__meta_verl_otel_pid_space"
"""In which container, if any, the process id means something: one may share its name and this folder with its machine."""
_GONE: Final = "__meta_verl_otel_gone"
"""When a trainer was found dead, in Unix seconds."""
LINGER: Final = 900.0
"""Seconds for which a dead trainer stays on the list: three times what the alert RunVanished waits."""
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
_UNROUTED: Final = ("192.0.2.1", 9)
"""An address that nobody has: the way to it tells which address others see us by. Nothing is sent."""
Entry = dict[str, Any]
Entries = list[Entry]
Addresses = frozenset[tuple[str | None, str]]
"""Host and ``host:port``."""


class Mirror(Protocol):
    """Somebody who tells other machines what is in the file. Nothing here may block or raise."""

    def address(self) -> str:
        """Return the address by which others reach this machine; empty if it is not known."""

    def add(self, config: Config, entries: Sequence[Entry]) -> None:
        """Take entries of this process, in addition to those that it has or instead of those of the same instance."""

    def remove(self, config: Config) -> None:
        """Forget the entries of this process."""

    def end(self, config: Config) -> None:
        """Forget the run."""


_mirrors: list[Mirror] = []
_found_dead: dict[tuple[str, str, str], float] = {}
"""The same by run, instance and process id (a trainer that was started again has the same instance), for whoever only reads."""
_swept: set[tuple[int, Path]] = set()
"""Processes (this one; its parent, in a forked child) and folders in which the files of other runs were looked through."""


def targets_path(config: Config) -> Path:
    """Return the file of this run."""
    return config.run_dir / FOLDER / f"{config.run_id}.json"


def add_mirror(mirror: Mirror) -> None:
    """Have somebody told of every change."""
    if mirror not in _mirrors:
        _mirrors.append(mirror)


def make_address(config: Config, port: int) -> str:
    """Return ``host:port`` of this process as others reach it.

    Example:
        "10.0.0.7:41231" where ``/metrics`` is bound to 0.0.0.0, "127.0.0.1:41231" where it is bound to the loopback
    """
    host = config.prometheus_advertise or config.prometheus_host
    if host in _EVERY_ADDRESS:
        host = next(filter(None, (mirror.address() for mirror in _mirrors)), "") or _find_address()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _find_address() -> str:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_UNROUTED)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def make_entry(resource: Resource, address: str, **labels: str) -> Entry:
    """Return an entry: an address and the labels of the contract, which are those of this process unless given.

    Labels that begin with ``__meta_`` are dropped by Prometheus; they let others see whether the process still lives.

    Args:
        resource: This process.
        address: ``host:port`` that serves ``/metrics``.
        **labels: Labels in place of the process's own, or in addition.
    """
    mine = {
        "job": resource.text(attr.SERVICE_NAME, "verl"),
        "instance": resource.text(attr.SERVICE_INSTANCE),
        "verl_role": resource.text(attr.ROLE),
        "verl_run_id": resource.text(attr.RUN_ID),
        **labels,
        _PID: str(os.getpid()),
        _HOST: socket.gethostname(),
        _SPACE: _pid_space(),
    }
    return {"targets": [address], "labels": mine}


def add_target(config: Config, resource: Resource, address: str) -> None:
    """Add or replace the entry of this process."""
    add_entries(config, [make_entry(resource, address)])


def add_entries(config: Config, entries: Sequence[Entry]) -> None:
    """Add entries that this process answers for, or replace those of the same instance."""
    path = targets_path(config)
    taken = {entry["labels"]["instance"] for entry in entries}

    def add(known: Entries) -> Entries:
        kept = [each for each in known if not (_is_mine(each) and _instance(each) in taken)]
        return _bury([*kept, *entries])

    _change(path, add)
    _sweep(path, _addresses(entries))
    for mirror in _mirrors:
        mirror.add(config, entries)


def remove_target(config: Config) -> None:
    """Remove the entries of this process, and the file with the last one."""
    _take_away(targets_path(config), lambda known: _bury([each for each in known if not _is_mine(each)]))
    for mirror in _mirrors:
        mirror.remove(config)


def remove_run(config: Config) -> None:
    """Remove the file: the run has ended (Ray kills its workers without a chance to say goodbye)."""
    _take_away(targets_path(config), lambda _: [])
    for mirror in _mirrors:
        mirror.end(config)


def read_targets(path: Path) -> Entries:
    """Return the entries of a ``file_sd`` file; none if it is missing or damaged."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [entry for entry in found if _is_entry(entry)] if isinstance(found, list) else []


def read_own(config: Config) -> Entries:
    """Return the entries that this process has added."""
    return [entry for entry in read_targets(targets_path(config)) if _is_mine(entry)]


def read_folder(folder: Path, *, linger: bool = False) -> Entries:
    """Return what lives of all runs: the entries of processes that died on this machine are left out.

    Args:
        folder: The folder of the files.
        linger: Whether trainers stay for a while, as Prometheus is to see them.
    """
    every = [entries for path in sorted(folder.glob("*.json")) if (entries := read_targets(path))]
    alive = [entry for entries in every for entry in entries if _is_alive(entry)]
    return [entry for entries in every for entry in _bury(entries, _addresses(alive))] if linger else alive


def _is_entry(entry: object) -> bool:
    """Return whether Prometheus would take this: of a file with one entry that it does not take, it takes none."""
    if not isinstance(entry, dict):
        return False
    targets, labels = entry.get("targets"), entry.get("labels", {})
    return (
        isinstance(targets, list)
        and isinstance(labels, dict)
        and all(isinstance(each, str) for each in (*targets, *labels.values()))
    )


def _labels(entry: Entry) -> dict[str, str]:
    found = entry.get("labels", {})
    return found if isinstance(found, dict) else {}


def _instance(entry: Entry) -> str | None:
    return _labels(entry).get("instance")


def _addresses(entries: Iterable[Entry]) -> Addresses:
    """Return where entries are: the loopback of another machine is not that of this one."""
    return frozenset((_labels(entry).get(_HOST), target) for entry in entries for target in entry["targets"])


def _bury(entries: Entries, taken: Addresses = frozenset()) -> Entries:
    """Return the entries without the dead; a trainer stays until it has been dead for a while, or another one of its run lives.

    Args:
        entries: Of one run.
        taken: Where somebody else answers now: who is scraped there would be mistaken for the dead.
    """
    alive = [each for each in entries if _is_alive(each)]
    taken |= _addresses(alive)
    runs = {_labels(each).get("verl_run_id") for each in alive if _is_trainer(each)}
    dead = [each for each in entries if _is_trainer(each) and not _is_alive(each)]
    late = [
        _stamp(each)
        for each in dead
        if _labels(each).get("verl_run_id") not in runs and taken.isdisjoint(_addresses([each]))
    ]
    return [*alive, *(each for each in late if abs(time.time() - float(each["labels"][_GONE])) < LINGER)]


def _is_trainer(entry: Entry) -> bool:
    return _labels(entry).get("verl_role") == "trainer"


def _stamp(entry: Entry) -> Entry:
    """Return an entry that says since when its process is known to be dead."""
    labels = _labels(entry)
    known = labels.get(_GONE, "")
    if not known.isdecimal():
        key = labels.get("verl_run_id", ""), labels.get("instance", ""), labels.get(_PID, "")
        known = str(int(_found_dead.setdefault(key, time.time())))
    return {**entry, "labels": {**labels, _GONE: known}}


def _is_here(entry: Entry) -> bool:
    """Return whether the process of an entry is one that this machine can look for."""
    labels = _labels(entry)
    return labels.get(_HOST) == socket.gethostname() and labels.get(_SPACE) in (None, _pid_space())


def _is_mine(entry: Entry) -> bool:
    return _is_here(entry) and _labels(entry).get(_PID) == str(os.getpid())


def _is_alive(entry: Entry) -> bool:
    """Return whether the process of an entry lives, as far as this machine can tell."""
    pid = str(_labels(entry).get(_PID, ""))
    return not _is_here(entry) or (pid.isdecimal() and Path(f"/proc/{pid}").exists())


def _pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - this is no path
    except OSError:
        return ""


@_guard.guarded("targets")
def _sweep(mine: Path, taken: Addresses) -> None:
    """Drop the dead from the files of other runs, once per process: nobody else does it for a run that crashed."""
    key = (os.getpid(), mine.parent)
    if key in _swept:
        return
    _swept.add(key)
    for path in mine.parent.glob("*.json"):
        if path != mine and _bury(known := read_targets(path), taken) != known:
            _take_away(path, functools.partial(_bury, taken=taken))


@_guard.guarded("targets")
def _take_away(path: Path, keep: Callable[[Entries], Entries]) -> None:
    """Keep some entries of a file that may not exist. Processes end here: whoever writes next does what cannot be done now."""
    if os.path.lexists(path):  # unlike `Path.exists` it never raises, as in a folder that may not be read any more
        _change(path, keep, adds=False)


def _lock_alone(lock: IO[str], seconds: float) -> None:
    """Take a lock of the file system, whose holder may be stopped or on a machine that is gone."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock") from None
            time.sleep(POLL)
        else:
            return


def _change(path: Path, change: Callable[[Entries], Entries], *, adds: bool = True) -> None:
    with _guard.swallowed("targets"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with (path.parent / ".lock").open("w") as lock:
                _lock_alone(lock, WAIT if adds else EXIT_WAIT)
                entries = change(read_targets(path))
                if entries:
                    temporary = path.with_suffix(".tmp")
                    temporary.write_text(json.dumps(entries, indent=1) + "\n", "utf-8")
                    temporary.replace(path)
                else:
                    path.unlink(missing_ok=True)
        except OSError as error:
            cost = "not find this process" if adds else "look for processes that are gone"
            _guard.say(
                f"targets {adds}", "verl-otel: cannot write %s: %s; Prometheus will %s", path, error.strerror, cost
            )
