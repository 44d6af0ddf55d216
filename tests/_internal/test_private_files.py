# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files are private, are never opened through links, and are not written where another user has prepared the folder."""

import errno
import os
import stat

import pytest

from verl_otel._internal import private_files
from verl_otel._internal.private_files import (
    Access,
    check_folder,
    make_folder,
    open_private,
    touch,
    use_group,
    write_atomically,
    write_secret,
)

IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can give a folder to another user")
OTHER = 65534
READ_WRITE = os.O_RDWR | os.O_CREAT


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True)
def no_group():
    """Leave no group behind."""
    yield
    Access.group = None


@pytest.fixture
def shared(tmp_path):
    """A folder such as /tmp, in which everyone can create names."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def home(shared):
    """The default folder of a user without a home folder."""
    return shared / f"verl-otel-{os.getuid()}"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_and_folders_are_private_whatever_the_umask_is(tmp_path, umask):
    """Folders 0700, files 0600, also those that replace others."""
    before = os.umask(umask)
    try:
        make_folder(tmp_path / "a" / "b")
        os.close(open_private(tmp_path / "a" / "b" / "c"))
        write_atomically(tmp_path / "a" / "b" / "d", "text")
    finally:
        os.umask(before)
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]
    assert [mode(path) for path in sorted((tmp_path / "a" / "b").iterdir())] == [0o600, 0o600]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_group_may_read(tmp_path, umask):
    """With a group folders are 0750 and files 0640 and belong to it."""
    group = OTHER if IS_ROOT else os.getgid()
    assert use_group(str(group)) == ""
    before = os.umask(umask)
    try:
        make_folder(tmp_path / "a" / "b")
        touch(tmp_path / "a" / "b" / "c")
        write_atomically(tmp_path / "a" / "b" / "d", "text")
    finally:
        os.umask(before)
    paths = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c", tmp_path / "a" / "b" / "d"]
    assert [mode(path) for path in paths] == [0o750, 0o750, 0o640, 0o640]
    assert {path.stat().st_gid for path in paths} == {group}
    write_secret(tmp_path / "a" / "token", "s3cret")
    assert (mode(tmp_path / "a" / "token"), (tmp_path / "a" / "token").read_text()) == (0o600, "s3cret")


def test_a_group_that_cannot_be_used_leaves_files_private(monkeypatch):
    """An unknown group, or one of which the user is no member, is told and not used."""
    assert "no group" in use_group("no-such-group-here")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "getgroups", list)
    assert "not a member" in use_group("54321")
    assert Access.group is None


def test_a_users_own_report_follows_the_umask(tmp_path):
    """What a user asks for with a file name has the mode that every program gives it."""
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "report.html", "text", private=False)
    finally:
        os.umask(before)
    assert mode(tmp_path / "report.html") == 0o644


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    """The old file stays, and nothing beside it."""
    write_atomically(tmp_path / "a", "old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(private_files.os, "fdopen", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(
    "flags", [READ_WRITE, READ_WRITE | os.O_TRUNC, os.O_RDWR, os.O_WRONLY | os.O_CREAT | os.O_APPEND]
)
@pytest.mark.parametrize(
    "kind", ["symbolic link", "dangling link", "hard link", "fifo", "fifo with a reader", "folder"]
)
def test_only_a_regular_file_with_one_name_is_opened(tmp_path, kind, flags):
    """A link, a second name of another file, a FIFO or a folder in the place of a file: refused at once, nothing is changed."""
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("precious")
    reader = -1
    if kind == "symbolic link":
        path.symlink_to(victim)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "absent")
    elif kind == "hard link":
        path.hardlink_to(victim) if hasattr(path, "hardlink_to") else os.link(victim, path)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
        if kind == "fifo with a reader":
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError) as caught:
        open_private(path, flags)
    assert caught.value.strerror
    assert victim.read_text() == "precious"
    assert not (tmp_path / "absent").exists()
    if reader >= 0:
        os.close(reader)


def test_a_replaced_link_leaves_what_it_pointed_to(tmp_path):
    """An atomic write replaces the link itself."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "new"


def test_an_open_with_truncation_empties_a_file_of_ours(tmp_path):
    """A regular file is emptied as asked."""
    (tmp_path / "log").write_text("old")
    os.close(open_private(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    assert (tmp_path / "log").read_text() == ""


def refused(home):
    """Return why the folder is refused, by each way that leads to it."""
    runs = home / "runs" / "r1"
    reasons = set()
    for attempt in (
        lambda: make_folder(runs),
        lambda: open_private(home / "file"),
        lambda: write_atomically(home / "x", ""),
    ):
        with pytest.raises(PermissionError) as caught:
            attempt()
        reasons.add(caught.value.strerror)
    (reason,) = reasons
    assert "VERL_OTEL_RUN_DIR" in reason
    return reason


@as_root
def test_a_default_folder_of_another_user_is_refused(home):
    """Another user has made the folder first."""
    home.mkdir()
    os.chown(home, OTHER, OTHER)
    assert f"belongs to another user (uid {OTHER})" in refused(home)
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_a_default_folder_that_is_a_link_is_refused(home, tmp_path):
    """A link leads to where another user wants."""
    (tmp_path / "elsewhere").mkdir()
    home.symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link" in refused(home)
    assert not [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()]


@pytest.mark.parametrize("writable", [0o722, 0o702, 0o720, 0o777])
def test_a_default_folder_that_others_can_write_is_refused(home, writable):
    """Others could put links into it."""
    home.mkdir()
    home.chmod(writable)
    assert "can be written by other users" in refused(home)


def test_a_default_folder_is_made_and_used_again(home):
    """Where nobody was first, it is made, and taken again by the next process."""
    for _ in range(2):
        make_folder(home / "runs")
    assert mode(home) == 0o700


@as_root
def test_a_run_folder_of_another_user_below_a_shared_one_is_refused(shared):
    """``VERL_OTEL_RUN_DIR=/tmp``: the run's folder is judged, too."""
    (shared / "targets").mkdir()
    os.chown(shared / "targets", OTHER, OTHER)
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_folder(shared / "targets")


def test_a_folder_that_a_user_has_chosen_is_not_judged(tmp_path):
    """A link to a disk, or a folder of a team, is the user's choice."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o775)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    make_folder(tmp_path / "runs" / "r1")
    check_folder(tmp_path / "runs")
    assert (tmp_path / "disk" / "r1").is_dir()


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path):
    """As of `Path.mkdir`."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError):
            make_folder(path)
