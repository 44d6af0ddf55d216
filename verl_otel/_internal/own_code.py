# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's own code: neither the standard library, nor an installed package, nor this one. A user knows its lines, by short names of its files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD: Final = (f"{Path(os.__file__).parent}{os.sep}", _PACKAGE, "<")
"""Beginnings of the file names of the standard library, of this package, and of generated code."""
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_RAY: Final = f"-packages{os.sep}ray{os.sep}"
"""Folder of Ray, whose lines raise what happened in another process."""
_LIBRARY: Final = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")
_PARTS: Final = 2
"""Parts of the name of a file of the user's own that are kept: the folders before are those of one machine, as its user's name."""
MAX_NESTED: Final = 20
"""Groups of exceptions that are opened to find the first exception in them."""


def shorten(path: str) -> str:
    """Return the name of a file without the folders of this machine: in an installed package from its name on, otherwise the last two parts."""
    name = _LIBRARY.sub("", path)
    return "/".join(name.split("/")[-_PARTS:]) if name.startswith("/") else name


def find_first(error: BaseException) -> BaseException:
    """Return the first exception of a group of exceptions, which says why a task group failed; any other exception itself."""
    for _ in range(MAX_NESTED):
        if not any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__):
            break
        error = error.exceptions[0]  # type: ignore[attr-defined]  # it has one; a backport of Python 3.10 is a class of its own
    return error


def is_own(path: str) -> bool:
    """Return whether a file has code that is neither of the standard library nor installed."""
    return path.isprintable() and not path.startswith(_STANDARD) and not any(folder in path for folder in _INSTALLED)


def _is_installed(path: str) -> bool:
    """Return whether a file is of an installed package, but neither of Ray nor of this one."""
    return any(folder in path for folder in _INSTALLED) and _RAY not in path and not path.startswith(_PACKAGE)


def find_raised(error: BaseException) -> str:
    """Return the innermost line of the user's own code that an exception came through, ``FILE:LINE in FUNCTION``; empty: unknown.

    Where it came through none, return the innermost line of an installed package but Ray, which raises what happened elsewhere, else the line that
    raised it, unless that is generated code: a model may have written it. Of a group of exceptions it is the line of the first one, if that was raised.

    Example:
        "rewards/math.py:12 in parse"
    """
    own = installed = last = None
    entry = find_first(error).__traceback__ or error.__traceback__
    while entry is not None:
        last, path = entry, entry.tb_frame.f_code.co_filename
        own = entry if is_own(path) else own
        installed = entry if _is_installed(path) else installed
        entry = entry.tb_next
    found = own or installed or last
    if found is None:
        return ""
    path = found.tb_frame.f_code.co_filename
    if path.startswith("<") or not path.isprintable():
        return ""
    return f"{shorten(path)}:{found.tb_lineno} in {found.tb_frame.f_code.co_name}"
