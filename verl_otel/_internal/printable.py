# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Escapes text from outside for log lines, tables and pages: names of spans, hosts and files, and messages of errors.

Such text may contain line breaks, which would forge lines of a log, terminal control sequences, and marks of text direction.
"""

from __future__ import annotations

import math
import re
from typing import Final

LONGEST: Final = 300
"""Longest text that is shown, in characters."""
_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def show(text: object, limit: int = LONGEST) -> str:
    r"""Return text for one line: with line breaks, control characters and marks of direction escaped, and cut off.

    Args:
        text: A name, or a sentence with names.
        limit: Maximum number of characters that are returned.

    Example:
        show("a" + chr(0x202E) + "b") == r"a\u202eb"
    """
    value = _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text)[: limit + 1])
    return value if len(value) <= limit else value[: limit - 1] + "…"


def show_lines(text: object, limit: int = 20_000, longest: int = LONGEST) -> str:
    """Return text of several lines, such as a stack, with each line escaped as by `show`.

    Args:
        text: Several lines.
        limit: Maximum number of characters.
        longest: Maximum number of characters of one line.
    """
    value = str(text)
    return "\n".join(show(line, longest) for line in value[:limit].split("\n"))


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in singular or plural.

    Args:
        number: How many.
        noun: The singular.
        plural: The plural; empty: the singular with an ``s``.

    Example:
        counted(1, "process", "processes") == "1 process"; counted(2_000, "step") == "2,000 steps"
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def seconds(value: float) -> str:
    """Format a duration given in seconds.

    Example:
        seconds(0.0312) == "31 ms"; seconds(75) == "1 m 15 s"
    """
    if not math.isfinite(value):
        return "an unknown time"
    if value < 0.9995:  # noqa: PLR2004 - below what rounds to a second
        return f"{value * 1000:.0f} ms"
    if value < 60:  # noqa: PLR2004 - a minute
        return f"{value:.2f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m" if hours else f"{minutes} m {rest:02d} s"
