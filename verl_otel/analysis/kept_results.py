# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps what was found in a large run, so that the next command need not read its files again.

A result is valid as long as no file of the run and no source file of verl-otel has changed. It is typed JSON in the user's cache folder, for the user
only. What cannot be read back exactly is not kept: an infinite uncertainty of a clock, and processes with open spans.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec

from verl_otel._internal import safe_files
from verl_otel._version import __version__
from verl_otel.analysis.bounded_steps import RecentStep
from verl_otel.analysis.model import Completeness, Explanation, Series
from verl_otel.analysis.start_up import StartUp
from verl_otel.semconv.run_state import RunState

MAX_BYTES: Final = 256 << 20
"""A larger result is not kept."""
MAX_RESULTS: Final = 20
"""Results that are kept: the newest."""

Signature = tuple[tuple[str, int, int], ...]
"""Path, size and time of the last change of each file, in nanoseconds."""


class KeptSeries(msgspec.Struct, array_like=True):
    """One scalar; its numbers are the bytes of arrays, so that NaN stays NaN."""

    name: str
    labels: tuple[tuple[str, str], ...]
    times: bytes
    values: bytes


_OWN: Final = ("completeness", "series")
"""Fields of an `Explanation` that are kept in another form."""
_FIELDS: Final = {
    name: kind
    for name, kind in get_type_hints(Explanation, localns={"RecentStep": RecentStep, "StartUp": StartUp}).items()
    if name not in _OWN
}
KeptResult: Final[Any] = msgspec.defstruct(
    "KeptResult",
    [
        ("code", Signature),
        ("files", Signature),
        ("series", tuple[KeptSeries, ...]),
        ("missing", tuple[str, ...]),
        ("orphans", int),
        *_FIELDS.items(),
    ],
)
"""The fields of an `Explanation`; of its completeness what a run without open spans has."""


def load(folders: Sequence[Path], steps: frozenset[int] | None) -> Explanation | None:
    """Return what was kept of a run; None if that is nothing, or not enough.

    Args:
        folders: The folders of the run.
        steps: Numbers of steps whose detail is needed.
    """
    try:
        content = safe_files.read_bytes(_path(folders), MAX_BYTES, follow=False)
        kept = msgspec.json.decode(content, type=KeptResult)
    except (OSError, ValueError, RecursionError):
        return None
    if (kept.code, kept.files) != (_sign_code(), sign(folders)):
        return None
    lacks_detail = any(step.number in steps and not step.path for step in kept.steps) if steps else False
    return None if lacks_detail else _unpack(kept)._replace(folders=tuple(map(str, folders)))


def save(folders: Sequence[Path], files: Signature, run: Explanation) -> None:
    """Keep what was found in a run that does not go on. Errors of the file system are ignored.

    Args:
        folders: The folders of the run.
        files: Their `sign` before they were read.
        run: What was found.
    """
    if run.state == RunState.RUNNING.word or run.completeness.unfinished:
        return
    with contextlib.suppress(OSError, ValueError, OverflowError, RecursionError):
        content = msgspec.json.encode(_pack(files, run))
        read = _unpack(msgspec.json.decode(content, type=KeptResult))
        if len(content) > MAX_BYTES or msgspec.json.encode(_pack(files, read)) != content:
            return
        path = _path(folders)
        safe_files.make_folder(path.parent)
        safe_files.check_folder(path.parent)
        safe_files.write_secret(path, content.decode())
        _prune(path.parent)


def forget(folders: Sequence[Path]) -> None:
    """Remove what was kept of a run. Raises `OSError`."""
    _path(folders).unlink(missing_ok=True)


def _path(folders: Iterable[Path]) -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    names = "\0".join(str(folder.resolve()) for folder in folders)
    name = hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return (Path(base) if base else Path.home() / ".cache") / "verl-otel" / "results" / f"{name}.json"


def sign(folders: Iterable[Path]) -> Signature:
    """Return the signature of all files below some folders: none of them has changed if it is the same."""
    found = []
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(place, name)  # noqa: PTH118 - a run has thousands of files
                with contextlib.suppress(OSError):
                    status = os.stat(path, follow_symlinks=False)  # noqa: PTH116
                    found.append((path, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


def _sign_code() -> Signature:
    """Return the signature of the code that computes a result. Files that Python compiles meanwhile do not count."""
    sources = [path for path in sign([Path(__file__).resolve().parents[1]]) if path[0].endswith(".py")]
    return (__version__, 0, 0), *sources


def _prune(folder: Path) -> None:
    results = sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_mtime_ns)
    for path in results[MAX_RESULTS:]:
        path.unlink(missing_ok=True)


def _pack(files: Signature, run: Explanation) -> Any:
    values = {name: getattr(run, name) for name in _FIELDS}
    series = tuple(
        KeptSeries(each.name, each.labels, array("q", each.times_ns).tobytes(), array("d", each.values).tobytes())
        for each in run.series
    )
    gaps = run.completeness
    return KeptResult(_sign_code(), files, series, gaps.missing, gaps.orphans, **values)


def _unpack(kept: Any) -> Explanation:
    values = {name: getattr(kept, name) for name in _FIELDS}
    series = tuple(
        Series(each.name, each.labels, _read("q", each.times), _read("d", each.values)) for each in kept.series
    )
    return Explanation(series=series, completeness=Completeness((), kept.missing, kept.orphans), **values)


def _read(kind: str, content: bytes) -> tuple[Any, ...]:
    numbers = array(kind)
    numbers.frombytes(content)
    return tuple(numbers)
