# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Installs single hooks of an integration in modules of a test."""


def install(hooks, module, *symbols):
    """Install the hooks of these symbols, or all of a table, in a module."""
    found = [hook for hook in hooks if not symbols or hook.symbol in symbols]
    assert len(found) >= len(symbols), symbols
    for hook in found:
        hook.install(module)
