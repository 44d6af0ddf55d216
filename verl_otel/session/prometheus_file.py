# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Merges the job of verl-otel into a user's ``prometheus.yml``: under a lock, atomically, with a backup, and undone if Prometheus refuses it.

Nothing is created: a file that does not exist is read by no Prometheus. Whatever cannot be done is one line, and the file stays as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal import safe_files
from verl_otel.session import prometheus_block, prometheus_server
from verl_otel.session.prometheus_server import Answer
from verl_otel.session.yaml_events import NotEditableError

MAX_BYTES: Final = 1 << 20
"""Largest file that is edited, in bytes."""
BACKUP: Final = ".before-verl-otel"
"""Suffix of the copy of the file as it was without the job."""
LOCK_SECONDS: Final = 5.0


class Outcome(NamedTuple):
    """What was done to a file."""

    state: str
    """``changed``, ``same`` or ``refused``."""
    text: str
    """One line for the user."""
    answer: Answer | None = None
    """What Prometheus did; None if it was not asked."""


def add(path: Path, sources: Sequence[str], urls: Sequence[str] = ()) -> Outcome:
    """Add the job of verl-otel to a file, and have Prometheus load it.

    Args:
        path: The ``prometheus.yml``.
        sources: Patterns of ``file_sd`` files, and URLs of HTTP service discovery.
        urls: Possible addresses of the Prometheus that reads the file; empty: none is asked.
    """
    return _edit(path, lambda text: prometheus_block.add_sources(text, sources), sources, urls)


def remove(path: Path, sources: Sequence[str] | None = None, urls: Sequence[str] = ()) -> Outcome:
    """Remove sources from the job of verl-otel in a file, by default all; without sources the job is removed. See `add`."""
    try:
        present = prometheus_block.read_sources(_read(path.resolve()))
    except (OSError, ValueError, NotEditableError):
        present = []  # `_edit` reports the reason
    gone = present if sources is None else [source for source in present if source in sources]
    return _edit(path, lambda text: prometheus_block.remove_sources(text, sources), gone, urls, adds=False)


def _edit(
    path: Path, edit: Callable[[str], str], sources: Sequence[str], urls: Sequence[str], *, adds: bool = True
) -> Outcome:
    try:
        real = path.resolve(strict=True)
        with _lock(real.parent):
            before = _read(real)
            after = edit(before)
            if after != before:
                _check_access(real)
                _back_up(real, before, after)
                _replace(real, before, after)
            answer = prometheus_server.load(urls, sources, present=adds) if urls and sources else None
            if answer is not None and answer.state == "refused" and after != before:
                _replace(real, after, before)
                prometheus_server.load(urls, sources, present=not adds, always=True)
                return Outcome("refused", f"{path} stays as it is: {answer.text}", answer)
    except (OSError, ValueError, NotEditableError) as error:
        return Outcome("refused", f"{path} stays as it is: {_describe(error)}")
    rest = f"; {answer.text}" if answer is not None else ""
    return Outcome("same" if after == before else "changed", f"{path} {_describe_change(before, after)}{rest}", answer)


def _describe_change(before: str, after: str) -> str:
    old, new = prometheus_block.read_sources(before), prometheus_block.read_sources(after)
    if not old and not new:
        return "is unchanged"
    if not new:
        return f"has no longer the job {prometheus_block.JOB}"
    rest = f", which still discovers {', '.join(new)}" if len(new) < len(old) else ""
    return f"has the job {prometheus_block.JOB}{' already' if old == new else ''}{rest}"


def _describe(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def _read(path: Path) -> str:
    return safe_files.read_bytes(path, MAX_BYTES).decode("utf-8")


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock a folder, so that no file for a lock is left in it. Raises `OSError` if another process holds it for long."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            safe_files.lock(handle, LOCK_SECONDS)
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, "another process is changing it") from None
        except OSError:  # some shared disks have no locks; `_replace` still compares
            pass
        yield
    finally:
        os.close(handle)


def _back_up(path: Path, before: str, after: str) -> None:
    """Keep the file without the job beside it, and delete this copy when the file has become equal to it."""
    backup = path.with_name(path.name + BACKUP)
    original = prometheus_block.remove_block(before)
    if prometheus_block.read_sources(after):
        if not prometheus_block.read_sources(before):
            _write(backup, original, path.stat())
    else:
        with contextlib.suppress(OSError, ValueError):
            if _read(backup) == after:
                backup.unlink()


def _replace(path: Path, before: str, after: str) -> None:
    """Replace the content of a file that was not changed since it was read. Raises `OSError`, also if it was changed."""
    if _read(path) != before:
        raise OSError(errno.EBUSY, "another program has just changed it", str(path))
    _write(path, after, path.stat())


def _check_access(path: Path) -> None:
    """Check that a file may be replaced. Raises `OSError`."""
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "you may not write it", str(path))
    if path.stat().st_nlink > 1:
        raise OSError(errno.EMLINK, "it is a hard link to a file that has another name", str(path))


def _write(path: Path, text: str, like: os.stat_result) -> None:
    """Write a file atomically, with mode and group of another one. Raises `OSError`."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
            with contextlib.suppress(OSError):  # another user's file: the group has to do
                os.fchown(file.fileno(), like.st_uid if os.geteuid() == 0 else -1, like.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
