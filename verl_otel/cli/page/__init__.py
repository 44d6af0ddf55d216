# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page: one app in the browser, which `verl-otel view` serves, and of which `verl-otel report --html` makes one file without any service."""

from verl_otel.cli.page.document import render, write

__all__ = ["render", "write"]
