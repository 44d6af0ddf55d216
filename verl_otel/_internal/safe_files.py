# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files that are opened safely: the library's own, which are private, and those that other processes may have written or damaged.

What is written is private to the user, or readable by one group (``VERL_OTEL_FILES_GROUP``). A file is opened for writing only if it is a
regular file with one name: not through a link, and not a FIFO. It is not truncated before it has been checked.

What is read may be of another process, version or user. A FIFO, a line without an end or deeply nested JSON raises a `DamagedError` or an
`OSError` where it is read, and does not block or exhaust the memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

from verl_otel._internal.machine import identify_machine, identify_process

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600
_GROUP_FOLDER: Final = 0o750
_GROUP_FILE: Final = 0o640
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ADVICE: Final = "set VERL_OTEL_RUN_DIR to a folder of your own"
_SHARED: Final = stat.S_IWOTH | stat.S_ISVTX
"""Mode of a folder such as ``/tmp``, in which every user can create files and only the owner can replace them."""


class Access:
    """The group that may read what this process creates, besides its user."""

    group: int | None = None
    """Group id; None: no group."""


def use_group(name: str) -> str:
    """Let the members of a group read files that are created from now on.

    Args:
        name: Name or number of a group; empty: no group.

    Returns:
        Why the group cannot be used, in which case files stay private; empty if it can.
    """
    import grp

    Access.group = None
    if not name:
        return ""
    try:
        group = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        return f"this machine has no group {name!r}"
    if os.geteuid() != 0 and group != os.getegid() and group not in os.getgroups():
        return f"this user is not a member of the group {name!r}"
    Access.group = group
    return ""


def identify(handle: int) -> tuple[int, int]:
    """Return the device and inode of an open file; zeros if the descriptor is closed."""
    try:
        status = os.fstat(handle)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def find_cache() -> Path:
    """Return the folder for what can be made again, of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "verl-otel"
    except RuntimeError:  # without a home folder, as the random user of a container
        return find_temporary() / "cache"


def find_temporary() -> Path:
    """Return the folder of a user without a home folder."""
    return Path(os.environ.get("TMPDIR") or "/tmp", f"verl-otel-{os.getuid()}")  # noqa: S108 - the user's own


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents. Existing folders keep their mode.

    Raises:
        OSError: It cannot be created, or `check_folder` refuses it.
    """
    ways = (folder, *folder.parents)
    missing = [path for path in ways if not os.path.lexists(path)]
    if missing:
        _check_way(next((path for path in ways if path not in missing), Path()), is_run=False)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process has created it meanwhile
            path.mkdir(PRIVATE_FOLDER)
            if Access.group is not None:
                with contextlib.suppress(OSError):  # it stays private
                    os.chown(path, -1, Access.group, follow_symlinks=False)
                    path.chmod(_GROUP_FOLDER)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Refuse a folder that another user may have prepared, by its name or by that of a folder above it.

    Checked is what lies directly inside a folder that everyone can write, such as ``/tmp``, wherever that is on the
    way: it belongs to this user, or to root. A folder directly inside ``/tmp`` itself, and the default folder of a user
    without a home folder, must be of this user and no link, and others must not be able to write it. All other folders
    are a choice of the user, such as the folder of a team.

    Raises:
        PermissionError: A folder is refused. The message says what to do.
        OSError: It cannot be examined.
    """
    _check_way(folder, is_run=True)


def _check_way(folder: Path, *, is_run: bool) -> None:
    own = f"verl-otel-{os.getuid()}"
    # By the names that were given, and where links lead to.
    for end in dict.fromkeys((folder.absolute(), folder.resolve())):
        for path in (end, *end.parents):
            if path.name == own:
                _check_owner(path, stat.S_IWGRP | stat.S_IWOTH)
            elif path.parent != path and (above := path.parent.stat()).st_mode & stat.S_IWOTH:
                if is_run and path is end and above.st_mode & _SHARED == _SHARED:
                    _check_owner(path, stat.S_IWOTH)
                else:
                    _check_origin(path, above)


def _check_origin(path: Path, above: os.stat_result) -> None:
    """Refuse a folder or link of another user in a folder that everyone can write."""
    found = path.lstat()
    # What is mounted for root, as in a container, was put there by its administrator.
    is_mount = os.geteuid() == 0 and found.st_dev != above.st_dev
    if found.st_uid not in (os.geteuid(), 0) and not is_mount:
        raise _refuse(path, f"belongs to another user (uid {found.st_uid})")


def _check_owner(folder: Path, writable: int) -> None:
    stat_result = folder.lstat()
    problem = ""
    if stat.S_ISLNK(stat_result.st_mode):
        problem = "is a symbolic link"
    elif stat_result.st_uid != os.geteuid():
        problem = f"belongs to another user (uid {stat_result.st_uid})"
    elif stat_result.st_mode & writable:
        problem = f"can be written by other users (mode {stat.S_IMODE(stat_result.st_mode):04o})"
    if problem:
        raise _refuse(folder, problem)


def _refuse(folder: Path, problem: str) -> PermissionError:
    return PermissionError(errno.EPERM, f"the folder {folder} {problem}; {_ADVICE}", str(folder))


def open_private(path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_APPEND) -> int:
    """Open a file of the library for writing, and return its descriptor.

    Args:
        path: The file; its folder exists.
        flags: As of `os.open`. A new file is private; an existing one keeps its mode.

    Raises:
        OSError: It cannot be opened; it is a link, has a second name, or is no regular file; or `check_folder` refuses its folder.
    """
    check_folder(path.parent)
    safe = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    handle, created = _open(path, safe)
    try:
        _check_file(path, os.fstat(handle))
        if created and Access.group is not None:
            with contextlib.suppress(OSError):  # it stays private
                os.fchown(handle, -1, Access.group)
                os.fchmod(handle, _GROUP_FILE)
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_file(path: Path, stat_result: os.stat_result) -> None:
    if not stat.S_ISREG(stat_result.st_mode):
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file", str(path))
    if stat_result.st_nlink > 1:
        raise OSError(errno.EMLINK, f"{path.name} is a hard link to a file that has another name", str(path))


def _open(path: Path, flags: int) -> tuple[int, bool]:
    """Open a file, and return whether it was created."""
    try:
        if flags & os.O_CREAT:
            with contextlib.suppress(FileExistsError):
                return os.open(path, flags | os.O_EXCL, PRIVATE_FILE), True
        return os.open(path, flags, PRIVATE_FILE), False
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, f"{path.name} is a symbolic link", str(path)) from None
        if error.errno == errno.ENXIO:  # a FIFO without a reader, or a socket
            raise OSError(errno.EINVAL, f"{path.name} is not a regular file", str(path)) from None
        raise


def open_text(path: Path, mode: str, flags: int) -> IO[str]:
    """Open a file as `open_private` does, for text in UTF-8."""
    return os.fdopen(open_private(path, flags), mode, encoding="utf-8", errors="backslashreplace")


def touch(path: Path) -> None:
    """Create an empty file unless it exists. Raises `OSError`."""
    os.close(open_private(path))


def write_secret(path: Path, data: bytes | bytearray | str) -> None:
    """Replace a file atomically by one that only its user can read, also where a group may read other files.

    Raises:
        OSError: It cannot be written; no temporary file is left.
    """
    check_folder(path.parent)
    temporary = path.with_name(f".{path.name[:200]}.{identify_machine()}.{os.getpid()}.{threading.get_ident()}.tmp")
    _fill_and_rename(
        os.open(temporary, _NEW_FILE, PRIVATE_FILE), temporary, path, data.encode() if isinstance(data, str) else data
    )


def write_atomically(path: Path, data: bytes | str, *, private: bool = True) -> None:
    """Replace a file atomically: a reader sees either the old content or the new one.

    Args:
        path: The file; its folder exists.
        data: The new content.
        private: Whether it is private. A file that a user has requested follows the umask instead.

    Raises:
        OSError: It cannot be written. The old content stays, and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name[:200]}.{identify_machine()}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # a process with the same id was killed while it was writing
    handle = open_private(temporary, _NEW_FILE) if private else os.open(temporary, _NEW_FILE, 0o666)
    _fill_and_rename(
        handle, temporary, path, data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    )


def _fill_and_rename(handle: int, temporary: Path, path: Path, data: bytes | bytearray) -> None:
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


# -- locks and names --

POLLS: Final = 50
"""Attempts within the time that is waited for a lock. Hundreds of processes that try a hundred times a second would
leave its holder no CPU."""
MAX_POLL: Final = 0.25


def lock(file: IO[str] | int, seconds: float) -> None:
    """Acquire the lock of a file or folder, whose holder may be stopped or on a machine that is gone.

    Args:
        file: An open file, or a descriptor.
        seconds: Time to wait.

    Raises:
        TimeoutError: Another process holds it.
        OSError: The file system has no locks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock") from None
            time.sleep(min(seconds / POLLS, MAX_POLL))
        else:
            return


def is_closed_to(path: Path, user: int) -> bool:
    """Return whether the mode of a file or folder, or of a folder above, keeps a user out, whatever the user's groups are.

    Args:
        path: An existing file or folder.
        user: User id.

    Raises:
        OSError: It cannot be examined.
    """
    checked = [(path, 0o044), *((folder, 0o011) for folder in path.resolve().parents)]
    statuses = [(each.stat(), others) for each, others in checked]
    return user != 0 and any(status.st_uid != user and not status.st_mode & others for status, others in statuses)


def file_word(text: str) -> str:
    """Return text as a part of a file name, which never begins with a dot.

    Example:
        file_word("../node 1") == "_node_1"
    """
    return "".join(char if char.isalnum() or char in "-." else "_" for char in text).lstrip(".")


def process_file_name(role: str, host: str) -> str:
    """Return ``<role>-<host>-<id>-<pid>``, which the names of all files of this process contain. No other process has this ``id``."""
    return f"{file_word(role)}-{file_word(host)}-{identify_process()}-{os.getpid()}"


# -- reading --

MAX_LINE: Final = 16 << 20
"""Longest line that is read, in bytes. A typical line of 256 spans has 200 kB; our writer splits longer lines."""
MAX_JSON: Final = 64 << 20
"""Largest file that is read as one JSON document, in bytes."""
MAX_INT64: Final = (1 << 63) - 1
_BLOCK: Final = 1 << 20
READ_ERRORS: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file and extracting values from its document may raise, whatever the document contains."""


class DamagedError(ValueError):
    """A file or text is not valid. The message says why, without the content."""


def open_regular(path: Path, *, follow: bool = True, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading. Returns at once, also for a FIFO.

    Args:
        path: The file.
        follow: Whether a symbolic link is followed.
        buffering: As of `open`.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb", buffering)  # type: ignore[return-value]  # a buffered reader


def read_bytes(path: Path, limit: int = MAX_JSON, *, follow: bool = True) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: It cannot be read.
        DamagedError: It has more than ``limit`` bytes.
    """
    with open_regular(path, follow=follow) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DamagedError(f"more than {limit} bytes")
    return data


def read_tail(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """Return the last bytes of a regular file. Raises `OSError`."""
    with open_regular(path, follow=follow) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
        return file.read(limit)


def read_json(path: Path, limit: int = MAX_JSON, *, follow: bool = True) -> Any:
    """Return the JSON document in a regular file.

    Raises:
        OSError: It cannot be read.
        DamagedError: It is too large, or not JSON.
    """
    return parse_json(read_bytes(path, limit, follow=follow))


MAX_DIGITS: Final = 308
"""Digits of the largest whole number that a float can hold."""


def _parse_whole(text: str) -> float:
    """Return a whole number; infinity if no float can hold it, so that what asks whether a number is finite refuses it."""
    return int(text) if len(text) <= MAX_DIGITS else float(text)


def parse_json(data: bytes | str) -> Any:
    """Return a JSON document.

    Raises:
        DamagedError: It is not JSON, or nested too deeply for the parser. All other errors of it are converted to this one.
    """
    try:
        return json.loads(data, parse_int=_parse_whole)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise DamagedError(f"no JSON ({type(error).__name__})") from None


def read_lines(file: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, bytes | None, int]]:
    """Yield the lines that begin in a part of a file: offset, the line with its newline, and its length in bytes.

    A line of more than `MAX_LINE` bytes is None: it is skipped without being held in memory. Raises `OSError`.
    """
    place = file.seek(begin)
    while place < end and (line := file.readline(MAX_LINE + 1)):
        length = len(line)
        if length > MAX_LINE and line[-1:] != b"\n":
            del line
            length += skip_line(file)
            yield place, None, length
        else:
            yield place, line, length
        place += length


def skip_line(file: BinaryIO) -> int:
    """Skip the rest of a line without holding it in memory; return the number of skipped bytes."""
    skipped = 0
    while piece := file.readline(_BLOCK):
        skipped += len(piece)
        if piece[-1:] == b"\n":
            break
    return skipped


def parse_int64(value: object) -> int:
    """Return a 64-bit integer as OTLP represents it: a number, or a string of digits. Raises `DamagedError`."""
    if isinstance(value, str) and len(value) <= 20 and value.lstrip("-").isdecimal():  # noqa: PLR2004 - digits of 64 bits
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INT64:
        raise DamagedError("not a whole number of 64 bits")
    return value
