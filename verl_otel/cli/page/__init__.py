# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page: one app in the browser. `verl-otel view` serves it, `verl-otel report --html` makes one file of it."""

from verl_otel.cli.page.document import render, write

__all__ = ["render", "write"]
