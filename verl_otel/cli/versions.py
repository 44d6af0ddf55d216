# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which version of a package is installed here, as numbers that can be compared."""

from __future__ import annotations

import itertools
import re
from importlib import metadata


def read_version(package: str) -> tuple[int, ...] | None:
    """Return the first numbers of an installed package's version; None if it is not installed.

    Example:
        (0, 9) of "0.9rc1" and (0, 7, 0) of "0.7.0.dev0"; () of "unknown"
    """
    try:
        text = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    numbers = (re.match(r"\d+", part) for part in text.split(".")[:3])
    return tuple(int(number[0]) for number in itertools.takewhile(bool, numbers) if number)
