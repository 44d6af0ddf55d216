# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One holder, a second one while the first is frozen, and the first again when it continues."""

import errno
import os

import pytest

from verl_otel.system import leader_lock
from verl_otel.system.leader_lock import LeaderLock


def refuse(handle, operation):
    """What `flock` answers on a file system without locks."""
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.fixture(params=["with file locks", "without"])
def locks(request, tmp_path, monkeypatch):
    """Three who could watch."""
    if request.param == "without":
        monkeypatch.setattr(leader_lock.fcntl, "flock", refuse)
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


def test_nodes_that_share_a_folder_have_their_own(tmp_path, locks):
    """The holder of another node does not matter."""
    other = LeaderLock(tmp_path, "there")
    assert locks[0].acquire()
    assert other.acquire()
    other.release()


@pytest.mark.full
def test_a_lock_without_file_locks_is_free_when_its_holder_dies(tmp_path, monkeypatch):
    """A socket that holds the name of a lock is closed with its process; a child that is forked does not keep it."""
    monkeypatch.setattr(leader_lock.fcntl, "flock", refuse)
    lock, other = LeaderLock(tmp_path, "here"), LeaderLock(tmp_path, "here")
    child = os.fork()
    if not child:
        os._exit(0 if LeaderLock(tmp_path, "here").acquire() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.acquire()
    assert not other.acquire()
    lock.release()


def test_without_locks_of_any_kind_it_raises(tmp_path, monkeypatch):
    """Otherwise the missing monitor would go unnoticed."""
    monkeypatch.setattr(leader_lock.fcntl, "flock", refuse)
    monkeypatch.setattr(leader_lock.socket, "socket", lambda *_: refuse(0, 0))
    lock = LeaderLock(tmp_path, "here")
    with pytest.raises(OSError, match="No locks"):
        lock.acquire()
    assert not lock.is_held


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
