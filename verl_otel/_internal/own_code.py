# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The user's own code: neither the standard library, nor an installed package, nor this one. A user knows its lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STANDARD: Final = (f"{Path(os.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}", "<")
"""Beginnings of the file names of the standard library, of this package, and of generated code."""
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_own(path: str) -> bool:
    """Return whether a file has code that is neither of the standard library nor installed."""
    return path.isprintable() and not path.startswith(_STANDARD) and not any(folder in path for folder in _INSTALLED)


def find_raised(error: BaseException) -> str:
    """Return the innermost line of the user's own code that an exception came through, ``FILE:LINE in FUNCTION``; empty: unknown.

    Where it came through none, return the line that raised it, unless that is generated code: a model may have written it.

    Example:
        "/home/me/reward.py:12 in parse"
    """
    own = last = entry = error.__traceback__
    while entry is not None:
        last = entry
        own = entry if is_own(entry.tb_frame.f_code.co_filename) else own
        entry = entry.tb_next
    if own is None or last is None:
        return ""
    found = own if is_own(own.tb_frame.f_code.co_filename) else last
    path = found.tb_frame.f_code.co_filename
    if path.startswith("<") or not path.isprintable():
        return ""
    return f"{path}:{found.tb_lineno} in {found.tb_frame.f_code.co_name}"
