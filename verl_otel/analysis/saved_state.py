# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps how far a large run was read and what was found in it, so that the next command reads only what was added since.

A state is typed JSON in the user's cache folder, for the user only. It is valid for the source files of verl-otel that wrote it, and as long as
what was read of the run's files is still there, which their reader finds out. A state that cannot be read is none: the run is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import zlib
from array import array
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec

from verl_otel._internal import safe_files
from verl_otel._version import __version__
from verl_otel.analysis.scalars import Column
from verl_otel.analysis.typed import Keyed, Unbounded

MAX_BYTES: Final = 256 << 20
"""A larger state is not kept."""
MAX_STATES: Final = 20
"""States of one name that are kept: the newest."""

State = TypeVar("State")


class _Saved(msgspec.Struct):
    code: str
    """`sign_code` of what wrote it."""
    state: msgspec.Raw


def load(folders: Sequence[Path], name: str, kind: type[State]) -> State | None:
    """Return what was kept of a run; None if there is nothing.

    Args:
        folders: The folders of the run.
        name: What it was saved as.
        kind: Type of the state.
    """
    try:
        path = _path(folders, name)
        safe_files.check_folder(path.parent)
        content = safe_files.read_bytes(path, MAX_BYTES, follow=False)
        saved = msgspec.json.decode(content, type=_Saved)
        return _decode(saved.state, kind) if saved.code == sign_code() else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def save(folders: Sequence[Path], name: str, state: object, keep: int | None = None) -> None:
    """Keep a state under a name. Errors of the file system are ignored; so is a state that is too large.

    Args:
        folders: The folders of the run.
        name: What it is saved as.
        state: A struct.
        keep: How many of this name are kept; None: `MAX_STATES`.
    """
    with contextlib.suppress(OSError, OverflowError, RecursionError):
        content = bytearray(b'{"code":%b,"state":' % msgspec.json.encode(sign_code()))
        _ENCODER.encode_into(state, content, -1)  # not a copy of what may have 100 MB
        content += b"}"
        if len(content) > MAX_BYTES:
            return
        path = _path(folders, name)
        safe_files.make_folder(path.parent)
        safe_files.check_folder(path.parent)
        safe_files.write_secret(path, content)
        _prune(path.parent, name, MAX_STATES if keep is None else keep)


def forget(folders: Sequence[Path]) -> None:
    """Remove what was kept of a run. Raises `OSError`."""
    for path in _path(folders, "any").parent.glob(f"{_hash(folders)}-*.json"):
        path.unlink(missing_ok=True)


def _path(folders: Iterable[Path], name: str) -> Path:
    return safe_files.find_cache() / "states" / f"{_hash(folders)}-{name}.json"


def _hash(folders: Iterable[Path]) -> str:
    names = "\0".join(str(folder.resolve()) for folder in folders)
    return hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:32]


@lru_cache(maxsize=1)
def sign_code() -> str:
    """Return the signature of the code that computes a state: path, size and time of the last change of each source file."""
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(Path(__file__).resolve().parents[1].rglob("*.py")):
        with contextlib.suppress(OSError):
            status = path.stat()
            digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _prune(folder: Path, name: str, keep: int) -> None:
    states = sorted(folder.glob(f"*-{name}.json"), key=lambda path: -path.stat().st_mtime_ns)
    for path in states[keep:]:
        path.unlink(missing_ok=True)


# -- What msgspec does not write by itself: arrays of numbers, dicts whose keys are tuples, paths --


def _to_plain(value: Any) -> Any:
    if isinstance(value, Column):
        return value.times.tobytes(), value.values.tobytes()  # as numbers, NaN would be lost
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):  # `Unbounded`
        return float(value)
    if isinstance(value, tuple):  # a key
        return _ENCODER.encode(value).decode()
    raise NotImplementedError(type(value))


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_to_plain)


def pack(value: object) -> bytes:
    """Return a value as compressed JSON."""
    return zlib.compress(_ENCODER.encode(value), 1)


def unpack(content: bytes, kind: type[State]) -> State:
    """Return the value that was packed."""
    decoded: State = _decode(zlib.decompress(content), kind)
    return decoded


def _decode(content: bytes | msgspec.Raw, kind: Any) -> Any:
    return msgspec.json.decode(content, type=kind, dec_hook=_from_plain)


def _from_plain(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if kind is Column:
        times, values = array("q"), array("d")
        times.frombytes(b64decode(value[0]))
        values.frombytes(b64decode(value[1]))
        return Column(times, values)
    if kind is Path:
        return Path(value)
    if kind is Unbounded:
        return Unbounded(math.inf if value is None else value)
    if origin in (Keyed, Counter):
        key_type, value_type = (*get_args(kind), int)[:2]
        keys = [_decode(key.encode(), key_type) if key_type is not str else key for key in value]
        values = msgspec.convert(list(value.values()), list[value_type], str_keys=True, dec_hook=_from_plain)  # type: ignore[valid-type]
        return origin(zip(keys, values, strict=True))
    raise NotImplementedError(kind)
