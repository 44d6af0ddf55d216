# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Merges the job of verl-otel into a user's ``prometheus.yml``: under a lock, atomically, with a backup, and undone if Prometheus refuses it.

Owner, group and mode stay. A user who may write a file, but may not give another one that owner, writes into it: this is not atomic.
Nothing is created: a file that does not exist is read by no Prometheus. Whatever cannot be done is one line, and the file stays as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from verl_otel._internal import safe_files
from verl_otel.session import prometheus_block
from verl_otel.session.prometheus_block import NotEditableError
from verl_otel.system import procfs

TIMEOUT: Final = 5.0
"""Seconds to wait for the connection, and for each part of the answer."""
MAX_ANSWER: Final = 16 << 20
_MAX_REASON: Final = 300
_CLOSED: Final = (
    "; but the user {user}, to whom this Prometheus belongs, may not read the targets in {folder}: give both users a group by "
    "VERL_OTEL_FILES_GROUP, or use `verl-otel discover --serve` and `verl-otel prometheus add --http-sd http://127.0.0.1:9465/`"
)
_OK: Final = 200
_FORBIDDEN: Final = 403
_REFUSED: Final = 500


class Answer(NamedTuple):
    """What a Prometheus did."""

    state: str
    """``loaded``, ``other file``, ``no lifecycle``, ``refused`` (the new file is not valid for it), ``silent`` or ``error``."""
    text: str
    """One line for the user."""


def load(urls: Sequence[str], sources: Sequence[str], *, present: bool = True, always: bool = False) -> Answer:
    """Have a Prometheus read its configuration unless it has it already, and check the result.

    Args:
        urls: Its possible addresses, such as ``http://127.0.0.1:9090``: the first one that answers is used.
        sources: Sources of the job of verl-otel; see `prometheus_block.add_sources`.
        present: Whether they are expected in its configuration, or expected to be gone.
        always: Have it read its configuration also if it has it.
    """
    bases = (url.rstrip("/") for url in urls)
    url = next((base for base in bases if _ask(f"{base}/-/healthy")[0] is not None), None)
    if url is None:
        return Answer("silent", f"no Prometheus answers at {' or '.join(urls)}; it reads the file when it starts")
    loaded = Answer("loaded", f"the Prometheus at {url} has loaded it")
    if not always and _has(url, sources, present=present):
        return loaded
    problem = _reload(url)
    if problem is None and _has(url, sources, present=present) is False:
        problem = Answer("other file", f"the Prometheus at {url} was reloaded, but reads another file")
    return problem or loaded


def describe_reader(file: Path, folder: Path, urls: Sequence[str]) -> str:
    """Return the end of a line for the user if the Prometheus of a file may not read the targets; empty if it may.

    Args:
        file: The ``prometheus.yml``.
        folder: The folder of the targets files.
        urls: Where the Prometheus listens. If nothing listens at this port here, its user is taken to be the owner of `file`.
    """
    import pwd

    try:
        listener = procfs.find_listener(urlsplit(urls[0]).port or 0) if urls else None
        user = file.stat().st_uid if listener is None else listener
        if not safe_files.is_closed_to(next(folder.glob("*.json"), folder), user):
            return ""
    except (OSError, ValueError):
        return ""
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    return _CLOSED.format(user=name, folder=folder)


def _reload(url: str) -> Answer | None:
    """Have a Prometheus read its configuration; return why it has not."""
    state, body = _ask(f"{url}/-/reload", "POST")
    reason = " ".join(body.decode("utf-8", "replace").split())[:_MAX_REASON]
    if state == _OK:
        return None
    if state == _FORBIDDEN and "lifecycle" in reason.lower():
        advice = "send it SIGHUP, or start it again"
        return Answer("no lifecycle", f"the Prometheus at {url} runs without --web.enable-lifecycle: {advice}")
    if state == _REFUSED:
        return Answer("refused", f"the Prometheus at {url} refuses the file: {reason}")
    return Answer("error", f"{url}/-/reload answers {state or 'nothing'} {reason}".rstrip())


def _has(url: str, sources: Sequence[str], *, present: bool) -> bool | None:
    """Return whether the sources are in the configuration of a Prometheus, or are not in it; None if it does not show its configuration."""
    state, body = _ask(f"{url}/api/v1/status/config")
    try:
        text = str(safe_files.parse_json(body)["data"]["yaml"]) if state == _OK else None
    except safe_files.READ_ERRORS:
        text = None
    if text is None:
        return None
    return all((source in text) is present for source in sources)


def lists_run(url: str, run_id: str) -> bool | None:
    """Return whether an HTTP service discovery of verl-otel has targets of a run; None if there is none at this URL, or it asks for a password."""
    state, body = _ask(f"{url}?{urlencode({'run': run_id})}")
    try:
        entries = safe_files.parse_json(body) if state == _OK else None
    except safe_files.DamagedError:
        entries = None
    return bool(entries) if isinstance(entries, list) else None


def _ask(url: str, method: str = "GET") -> tuple[int | None, bytes]:
    """Return status and body of an answer; no status without one. Proxies are not used, and redirects are not followed."""
    try:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with closing(kind(parts.netloc, timeout=TIMEOUT)) as connection:
            connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER)
    except (OSError, HTTPException, ValueError):
        return None, b""


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


def add_job(path: Path, sources: Sequence[str], urls: Sequence[str] = ()) -> Outcome:
    """Add the job of verl-otel to a file, and have Prometheus load it.

    Args:
        path: The ``prometheus.yml``.
        sources: Patterns of ``file_sd`` files, and URLs of HTTP service discovery.
        urls: Possible addresses of the Prometheus that reads the file; empty: none is asked.
    """
    return _edit(path, lambda text: prometheus_block.add_sources(text, sources), sources, urls)


def remove_job(path: Path, sources: Sequence[str] | None = None, urls: Sequence[str] = ()) -> Outcome:
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
            answer = load(urls, sources, present=adds) if urls and sources else None
            if answer is not None and answer.state == "refused" and after != before:
                _replace(real, after, before)
                load(urls, sources, present=not adds, always=True)
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
            _write(backup, original, path.stat(), private=True)
    else:
        with contextlib.suppress(OSError, ValueError):
            if _read(backup) == after:
                backup.unlink()


def _replace(path: Path, before: str, after: str) -> None:
    """Replace the content of a file that was not changed since it was read. Raises `OSError`, also if it was changed."""
    if _read(path) != before:
        raise OSError(errno.EBUSY, "another program has just changed it", str(path))
    if not _write(path, after, path.stat()):
        _overwrite(path, before, after)


def _check_access(path: Path) -> None:
    """Check that a file may be replaced. Raises `OSError`."""
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "you may not write it", str(path))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "you may not write its folder", str(path.parent))
    if path.stat().st_nlink > 1:
        raise OSError(errno.EMLINK, "it is a hard link to a file that has another name", str(path))


def _write(path: Path, text: str, like: os.stat_result, *, private: bool = False) -> bool:
    """Write a file atomically, with owner, group and mode of another one.

    Args:
        path: The file.
        text: Its new content.
        like: The other file.
        private: Whether the file is written for this user alone if the user may not give it that owner and group.

    Returns:
        Whether it was written.

    Raises:
        OSError: It cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            if not _adopt(handle, like) and not private:
                Path(name).unlink()
                return False
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(handle)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    return True


def _adopt(handle: int, like: os.stat_result) -> bool:
    """Give an open file owner, group and mode of another one. Returns False if this user may not: the file stays as it is."""
    try:
        os.fchown(handle, like.st_uid, like.st_gid)
    except OSError:  # in a container the user may be unknown, on a file server root may not do it either
        return False
    os.fchmod(handle, stat.S_IMODE(like.st_mode))
    return True


def _overwrite(path: Path, before: str, after: str) -> None:
    """Write into the file of another user, so that its owner and mode stay. Raises `OSError`."""
    try:
        path.write_bytes(after.encode("utf-8"))
    except OSError:
        path.write_bytes(before.encode("utf-8"))
        raise
