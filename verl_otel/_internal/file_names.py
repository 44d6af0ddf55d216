# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Names of files that contain text from outside, such as the name of a host."""

from __future__ import annotations

import os


def file_word(text: str) -> str:
    """Return text as a part of a file name, which never begins with a dot.

    Example:
        file_word("../node 1") == "_node_1"
    """
    return "".join(char if char.isalnum() or char in "-." else "_" for char in text).lstrip(".")


def process_file_name(role: str, host: str) -> str:
    """Return ``<role>-<host>-<pid>``, which the names of all files of this process contain."""
    return f"{file_word(role)}-{file_word(host)}-{os.getpid()}"
