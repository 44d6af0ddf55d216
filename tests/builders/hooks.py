# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Installs single hooks of an integration in modules of a test, and verl's timer with its hook."""

import contextlib
import time

from verl_otel.integrations.verl import timers


def install(hooks, module, *symbols):
    """Install the hooks of these symbols, or all of a table, in a module."""
    found = [hook for hook in hooks if not symbols or hook.symbol in symbols]
    assert len(found) >= len(symbols), symbols
    for hook in found:
        hook.install(module)


@contextlib.contextmanager
def plain_timer(name, timing_raw, color=None, domain=None, category=None):
    """Time a block as verl's plain ``marked_timer`` does."""
    start = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0) + time.perf_counter() - start


marked_timer = timers.wrap_timer(plain_timer)
