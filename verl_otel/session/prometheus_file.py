# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Adds the job of verl-otel to a user's ``prometheus.yml``: a file beside it, and one line that names this file.

Both are written under a lock, and put back if Prometheus refuses them. Without a ``prometheus.yml`` nothing is created:
no Prometheus would read it. Whatever cannot be done is one line for the user, and the file stays as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from io import RawIOBase
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from verl_otel._internal import safe_files
from verl_otel._internal.call_timeout import call_for
from verl_otel.session import prometheus_job
from verl_otel.session.prometheus_job import NotEditableError
from verl_otel.system import procfs

TIMEOUT: Final = 5.0
"""Seconds to wait for an answer."""
MAX_ANSWER: Final = 16 << 20
MAX_BYTES: Final = 1 << 20
"""Largest file that is edited, in bytes."""
LOCK_SECONDS: Final = 30.0
SETTLE_SECONDS: Final = 10.0
"""Seconds until a Prometheus that has read its configuration has the job: it takes up jobs every 5 seconds."""
_POLL_SECONDS: Final = 0.25
_SUFFIX: Final = ".verl-otel.yml"
_MODE: Final = 0o644
"""Mode of the file with the job: it has no secrets, and Prometheus may be another user."""
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


def load(urls: Sequence[str], before: str, after: str) -> Answer:
    """Have a Prometheus read its configuration if the job has changed or is not what it has, and check the result.

    Args:
        urls: Its possible addresses, such as ``http://127.0.0.1:9090``: the first one that answers is used.
        before: The file with the job as it was; empty without a job.
        after: The file with the job as it is now.
    """
    bases = (url.rstrip("/") for url in urls)
    url = next((base for base in bases if _ask(f"{base}/-/healthy")[0] is not None), None)
    if url is None:
        return Answer("silent", f"no Prometheus answers at {' or '.join(urls)}; it reads the file when it starts")
    name, present = prometheus_job.read_name(after or before), bool(after)
    if after == before and _has_job(url, name) is present:  # with which sources, it does not say
        return Answer("loaded", f"the Prometheus at {url} {'has' if present else 'does not have'} a job of this name")
    problem = _reload(url) or _wait_for_job(url, name, present=present)
    return problem or Answer("loaded", f"the Prometheus at {url} has loaded it")


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


def _wait_for_job(url: str, name: str, *, present: bool) -> Answer | None:
    """Wait until a Prometheus has a job, or has it no longer; return why it does not."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while _has_job(url, name) is (not present):
        if time.monotonic() >= deadline:
            return Answer("other file", f"the Prometheus at {url} was reloaded, but reads another file")
        time.sleep(_POLL_SECONDS)
    return None


def _has_job(url: str, name: str) -> bool | None:
    """Return whether a Prometheus has a job; None if it does not list its jobs."""
    state, body = _ask(f"{url}/api/v1/scrape_pools")
    try:
        names = safe_files.parse_json(body)["data"]["scrapePools"] if state == _OK else None
    except safe_files.READ_ERRORS:
        names = None
    return name in names if isinstance(names, list) else None


def lists_run(url: str, run_id: str) -> bool | None:
    """Return whether an HTTP service discovery has targets of a run; None without one, or if it asks for a password."""
    state, body = _ask(f"{url}?{urlencode({'run': run_id})}")
    try:
        entries = safe_files.parse_json(body) if state == _OK else None
    except safe_files.DamagedError:
        entries = None
    return bool(entries) if isinstance(entries, list) else None


def _ask(url: str, method: str = "GET") -> tuple[int | None, bytes]:
    """Return status and body of an answer; no status without one. Proxies are not used, and redirects are not followed."""

    def ask() -> tuple[int, bytes]:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with closing(kind(parts.netloc, timeout=TIMEOUT)) as connection:
            connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER)

    try:
        return call_for(TIMEOUT, "verl-otel-prometheus-answer", ask)
    except (OSError, HTTPException, ValueError):
        return None, b""


class Outcome(NamedTuple):
    """What was done to a file."""

    state: str
    """``changed``, ``same`` or ``refused``."""
    text: str
    """One line for the user."""
    answer: Answer | None = None
    """What Prometheus did; None if it was not asked."""


class _Texts(NamedTuple):
    """The content of both files."""

    settings: str
    job: str
    """Empty without a job."""


def add_job(path: Path, sources: Sequence[str], urls: Sequence[str] = ()) -> Outcome:
    """Add the job of verl-otel beside a ``prometheus.yml``, and have Prometheus load it.

    Args:
        path: The ``prometheus.yml``.
        sources: Patterns of ``file_sd`` files, and URLs of HTTP service discovery.
        urls: Possible addresses of the Prometheus that reads the file; empty: none is asked.
    """
    return _edit(path, lambda existing: [*existing, *(each for each in sources if each not in existing)], urls)


def remove_job(path: Path, sources: Sequence[str] | None = None, urls: Sequence[str] = ()) -> Outcome:
    """Remove sources from the job of verl-otel, by default all; without sources the job is removed. See `add_job`."""
    return _edit(path, lambda existing: [each for each in existing if sources and each not in sources], urls)


def read_sources(path: Path) -> list[str]:
    """Return the sources of the job beside a ``prometheus.yml``; empty without a job."""
    return prometheus_job.read_sources(_read_job(path.resolve()))


def _edit(path: Path, change: Callable[[list[str]], list[str]], urls: Sequence[str]) -> Outcome:
    try:
        real = path.resolve(strict=True)
        with _lock(real.parent):
            before = _Texts(_read(real), _read_job(real))
            old = prometheus_job.read_sources(before.job)
            after = _change(before, change(old), _find_job_file(real).name)
            if after != before:
                _replace_both(real, before, after)
            answer = load(urls, before.job, after.job) if urls and (before.job or after.job) else None
            if answer is not None and answer.state == "refused" and after != before:
                _replace_both(real, after, before)
                load(urls, after.job, before.job)
                return Outcome("refused", f"{path} stays as it is: {answer.text}", answer)
    except (OSError, ValueError, NotEditableError) as error:
        return Outcome("refused", f"{path} stays as it is: {_describe(error)}")
    rest = f"; {answer.text}" if answer is not None else ""
    text = f"{path} {_describe_change(old, prometheus_job.read_sources(after.job))}{rest}"
    return Outcome("same" if after == before else "changed", text, answer)


def _change(before: _Texts, sources: Sequence[str], name: str) -> _Texts:
    """Return the files with a job that has these sources. Raises `NotEditableError`."""
    if not sources:
        return _Texts(prometheus_job.remove_line(before.settings), "")
    used = prometheus_job.list_texts(before.settings)
    if used.issuperset(sources):  # in a job that was added by hand: nothing is scraped twice
        return before
    return _Texts(prometheus_job.add_line(before.settings, name), prometheus_job.make_job(sources, used))


def _describe_change(old: Sequence[str], new: Sequence[str]) -> str:
    if not old and not new:
        return "is unchanged"
    if not new:
        return f"has no longer the job {prometheus_job.JOB}"
    rest = f", which still discovers {', '.join(new)}" if len(new) < len(old) else ""
    return f"has the job {prometheus_job.JOB}{' already' if old == new else ''}{rest}"


def _describe(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def _read(path: Path) -> str:
    return safe_files.read_bytes(path, MAX_BYTES).decode("utf-8")


def _find_job_file(path: Path) -> Path:
    """Return the file with the job that belongs to a ``prometheus.yml``."""
    return path.with_name(f"{path.stem}{_SUFFIX}")


def _read_job(path: Path) -> str:
    try:
        return _read(_find_job_file(path))
    except FileNotFoundError:
        return ""


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock a folder, so that no file for a lock is left in it. Raises `OSError` if another process holds it for long."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            safe_files.lock(handle, LOCK_SECONDS)
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, "another process is changing it") from None
        except OSError:  # some shared disks have no locks; `_write_settings` still compares
            pass
        yield
    finally:
        os.close(handle)


def _replace_both(path: Path, before: _Texts, after: _Texts) -> None:
    """Write the file with the job and the line that names it, or neither. Raises `OSError`."""
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "you may not write it", str(path))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "you may not write its folder", str(path.parent))
    _write_job(path, after.job)
    try:
        _write_settings(path, before.settings.encode(), after.settings.encode())
    except OSError:
        _write_job(path, before.job)
        raise


def _write_job(path: Path, text: str) -> None:
    """Write or delete the file with the job. Raises `OSError`."""
    file = _find_job_file(path)
    if not text:
        file.unlink(missing_ok=True)
        return
    safe_files.write_atomically(file, text, private=False)
    file.chmod(_MODE)


def _write_settings(path: Path, before: bytes, after: bytes) -> None:
    """Write what differs into the file, so that owner, group, mode and links stay: a line is one append. Raises `OSError`."""
    if safe_files.read_bytes(path, MAX_BYTES) != before:
        raise OSError(errno.EBUSY, "another program has just changed it", str(path))
    pairs = enumerate(zip(before, after, strict=False))
    same = next((at for at, (old, new) in pairs if old != new), min(len(before), len(after)))
    with path.open("r+b", buffering=0) as file:
        try:
            _write_from(file, same, after)
        except OSError:
            _write_from(file, same, before)
            raise


def _write_from(file: RawIOBase, offset: int, content: bytes) -> None:
    """Write the content of a file from an offset on, and cut off what follows it. Raises `OSError`."""
    file.seek(offset)
    rest = content[offset:]
    if rest and file.write(rest) != len(rest):
        raise OSError(errno.ENOSPC, "no space left on device")
    file.truncate(len(content))
