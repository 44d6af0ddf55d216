# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A lock is waited for with a limit, and is acquired as soon as its holder releases it."""

import os
import threading

import pytest

from verl_otel._internal import file_lock


@pytest.fixture
def handles(tmp_path):
    """Two descriptors of one folder, as two processes have them."""
    opened = [os.open(tmp_path, os.O_RDONLY) for _ in range(2)]
    yield opened
    for handle in opened:
        os.close(handle)


def test_a_lock_that_is_held_is_waited_for_until_its_limit(handles):
    """The second one fails with the reason."""
    file_lock.acquire(handles[0], 0)
    with pytest.raises(TimeoutError, match="another process holds its lock"):
        file_lock.acquire(handles[1], 0.05)


def test_a_lock_is_acquired_after_its_release(handles):
    """A close releases it, as the end of a process does."""
    held = handles.pop(0)
    file_lock.acquire(held, 0)
    timer = threading.Timer(0.05, os.close, (held,))
    timer.start()
    file_lock.acquire(handles[0], 60)
    timer.join()
