# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Types of numeric options that several commands share."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """Return an integer of at least 0.

    Raises:
        argparse.ArgumentTypeError: It is none; the message says what to give.
    """
    return _read(text, 0)


def positive(text: str) -> int:
    """Return an integer of at least 1.

    Raises:
        argparse.ArgumentTypeError: It is none; the message says what to give.
    """
    return _read(text, 1)


def _read(text: str, least: int) -> int:
    value = int(text) if text.isdecimal() else -1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: give an integer of {least} or more")
    return value
