# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A series whose buffer another thread folds for as long as a test likes."""

import contextlib


@contextlib.contextmanager
def hold(lock):
    """Hold a `FoldLock` for a block."""
    items = lock._items
    del items[0]
    try:
        yield
    finally:
        items.append(True)
