# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One holder, a second one while the first is frozen, and the first again when it continues."""

import errno
import os

import pytest

from verl_otel.system import leader_lock
from verl_otel.system.leader_lock import LeaderLock


@pytest.fixture
def locks(tmp_path):
    """Three who could watch."""
    locks = [LeaderLock(tmp_path, "here") for _ in range(3)]
    yield locks
    for lock in locks:
        lock.release()


def freeze(folder, number):
    """Have a lock look untouched for long."""
    path = folder / f"watcher-here-{number}.lock"
    os.utime(path, (0, path.stat().st_mtime - 10 * leader_lock.STALE_SECONDS))


def test_one_process_holds_the_lock(locks):
    """The first acquires the lock, the others do not; it is free again when the first releases it."""
    first, second, _ = locks
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    assert (first.is_held, second.is_held) == (False, True)


def test_a_frozen_holder_has_one_successor_until_it_is_back(locks, tmp_path):
    """The next process acquires the second lock, a third does not; the second steps down after the next renewal."""
    first, successor, third = locks
    first.acquire()
    freeze(tmp_path, 0)
    assert successor.acquire()
    assert not third.acquire()
    assert not successor.should_step_down()
    first.renew()
    assert successor.should_step_down()
    assert not first.should_step_down()


def test_a_frozen_successor_has_a_successor(locks, tmp_path):
    """With two frozen holders a third process acquires a lock."""
    for number, lock in enumerate(locks[:2]):
        assert lock.acquire()
        freeze(tmp_path, number)
    assert locks[2].acquire()


def test_nodes_that_share_a_folder_have_their_own(tmp_path, locks):
    """The holder of another node does not matter."""
    other = LeaderLock(tmp_path, "there")
    assert locks[0].acquire()
    assert other.acquire()
    other.release()


def test_a_file_system_without_locks_raises_and_is_not_taken_for_a_held_lock(locks, monkeypatch):
    """Otherwise the missing monitor would go unnoticed."""

    def fail(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(leader_lock.fcntl, "flock", fail)
    with pytest.raises(OSError, match="No locks"):
        locks[0].acquire()
    assert not locks[0].is_held


def test_the_renewal_uses_the_clock_of_this_node(locks, tmp_path, monkeypatch):
    """A file server's clock may be minutes away; a holder would look frozen."""
    locks[0].acquire()
    monkeypatch.setattr(leader_lock.time, "time_ns", lambda: 10**18)
    locks[0].renew()
    assert (tmp_path / "watcher-here-0.lock").stat().st_mtime_ns == 10**18


def test_a_released_lock_is_not_renewed(locks, tmp_path):
    """A round that went on while its session ended is no failure, and does not touch the file that got the same number."""
    first, *_ = locks
    assert first.acquire()
    number = first._handle
    first.release()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == number
    os.utime(tmp_path / "other", (0, 0))
    first.renew()
    assert (tmp_path / "other").stat().st_mtime == 0
    os.close(other)


def test_a_renewal_during_the_release_is_no_failure_and_any_other_is(locks, monkeypatch):
    """Only the holder may fail to renew its lock."""
    first, *_ = locks
    assert first.acquire()
    utime = os.utime

    def late(handle, ns):
        first.release()
        utime(handle, ns=ns)

    monkeypatch.setattr(os, "utime", late)
    first.renew()
    monkeypatch.setattr(os, "utime", utime)
    assert first.acquire()

    def fail(_, ns):
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(os, "utime", fail)
    with pytest.raises(OSError, match="read-only"):
        first.renew()
