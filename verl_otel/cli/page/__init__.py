# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page of a run: one HTML file with everything in it, opened from disk without any service or network."""

from verl_otel.cli.page.document import render, write

__all__ = ["render", "write"]
