# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers that options of more than one command take, refused in plain words."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """Return a number of things: 0 or more.

    Raises:
        argparse.ArgumentTypeError: It is none; the message says what to give.
    """
    return _read(text, 0)


def positive(text: str) -> int:
    """Return a number of things of which one is needed: 1 or more.

    Raises:
        argparse.ArgumentTypeError: It is none; the message says what to give.
    """
    return _read(text, 1)


def _read(text: str, least: int) -> int:
    value = int(text) if text.isdecimal() else -1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of that: give {least} or more")
    return value
