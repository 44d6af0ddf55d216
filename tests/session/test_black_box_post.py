# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One watcher, a deputy for a frozen one, and the first again when it thaws."""

import errno
import os

import pytest

from verl_otel.session.black_box import post
from verl_otel.session.black_box.post import Post


@pytest.fixture
def posts(tmp_path):
    """Three who could watch."""
    made = [Post(tmp_path, "here") for _ in range(3)]
    yield made
    for each in made:
        each.leave()


def freeze(folder, number):
    """Have a lock look untouched for long."""
    path = folder / f"watcher-here-{number}.lock"
    os.utime(path, (0, path.stat().st_mtime - 10 * post.STALE))


def test_one_watches(posts):
    """The first takes the post, nobody else does; it is free again when the first leaves."""
    first, second, _ = posts
    assert first.take()
    assert not second.take()
    first.leave()
    assert second.take()
    assert (first.is_held, second.is_held) == (False, True)


def test_a_frozen_watcher_has_one_deputy_until_it_is_back(posts, tmp_path):
    """Whoever finds the lock untouched stands in; a third does not; the deputy is relieved by the next touch."""
    first, deputy, third = posts
    first.take()
    freeze(tmp_path, 0)
    assert deputy.take()
    assert not third.take()
    assert not deputy.is_relieved()
    first.touch()
    assert deputy.is_relieved()
    assert not first.is_relieved()


def test_a_frozen_deputy_has_a_deputy(posts, tmp_path):
    """Two frozen watchers are no reason not to watch."""
    for number, each in enumerate(posts[:2]):
        assert each.take()
        freeze(tmp_path, number)
    assert posts[2].take()


def test_nodes_that_share_a_folder_have_their_own(tmp_path, posts):
    """A watcher of another node is not in the way."""
    other = Post(tmp_path, "there")
    assert posts[0].take()
    assert other.take()
    other.leave()


def test_a_file_system_without_locks_is_said_and_not_taken_for_a_held_post(posts, monkeypatch):
    """Nobody would watch, and nobody would know."""

    def fail(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(post.fcntl, "flock", fail)
    with pytest.raises(OSError, match="No locks"):
        posts[0].take()
    assert not posts[0].is_held


def test_the_touch_is_by_the_clock_of_this_node(posts, tmp_path, monkeypatch):
    """A file server's clock may be minutes away; a watcher there would look frozen."""
    posts[0].take()
    monkeypatch.setattr(post.time, "time_ns", lambda: 10**18)
    posts[0].touch()
    assert (tmp_path / "watcher-here-0.lock").stat().st_mtime_ns == 10**18


def test_who_has_left_touches_nothing(posts, tmp_path):
    """A round that went on while its session ended is no failure, and does not touch the file that got the same number."""
    first, *_ = posts
    assert first.take()
    number = first._handle
    first.leave()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == number
    os.utime(tmp_path / "other", (0, 0))
    first.touch()
    assert (tmp_path / "other").stat().st_mtime == 0
    os.close(other)


def test_a_touch_during_the_farewell_is_no_failure_and_any_other_is(posts, monkeypatch):
    """Only who still has the post may fail to touch its file."""
    first, *_ = posts
    assert first.take()
    touch = os.utime

    def late(handle, ns):
        first.leave()
        touch(handle, ns=ns)

    monkeypatch.setattr(os, "utime", late)
    first.touch()
    monkeypatch.setattr(os, "utime", touch)
    assert first.take()

    def fail(_, ns):
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(os, "utime", fail)
    with pytest.raises(OSError, match="read-only"):
        first.touch()
