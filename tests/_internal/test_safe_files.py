# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files of ours are private and never opened through links; files of others are opened without waiting and read within bounds."""

import errno
import io
import os
import stat
import threading

import pytest

from verl_otel._internal import safe_files
from verl_otel._internal.safe_files import (
    Access,
    DamagedError,
    check_folder,
    is_closed_to,
    make_folder,
    open_private,
    open_regular,
    parse_int64,
    parse_json,
    read_bytes,
    read_json,
    read_lines,
    read_tail,
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

    monkeypatch.setattr(safe_files.os, "fdopen", full)
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
        path.hardlink_to(victim)
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


@as_root
@pytest.mark.parametrize(
    "kind", ["folder of another user", "link of another user", "own link to a folder of another user"]
)
def test_a_folder_on_the_way_that_another_user_has_prepared_is_refused(shared, tmp_path, kind):
    """``VERL_OTEL_RUN_DIR=/tmp/x``: nothing is made there or behind it, and no file is opened."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    way = shared / "x"
    if kind == "folder of another user":
        way.mkdir()
        way.chmod(0o777)
        os.chown(way, OTHER, OTHER)
    elif kind == "link of another user":
        way.symlink_to(elsewhere)
        os.chown(way, OTHER, OTHER, follow_symlinks=False)
    else:
        (shared / "theirs").mkdir()
        os.chown(shared / "theirs", OTHER, OTHER)
        way = tmp_path / "link"
        way.symlink_to(shared / "theirs")
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_folder(way / "runs" / "r1")
    assert not list(way.resolve().iterdir())
    (way.resolve() / "runs").mkdir()
    with pytest.raises(PermissionError, match="VERL_OTEL_RUN_DIR"):
        open_private(way / "runs" / "file")
    assert not list((way.resolve() / "runs").iterdir())


@as_root
def test_a_link_that_another_user_has_put_into_an_open_folder_is_refused(shared, tmp_path):
    """The folder is of this user, and everyone can write it: the run's folder in it may be a link to another place."""
    runs = shared / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    make_folder(runs / "own")
    (tmp_path / "keys").mkdir()
    (runs / "r1").symlink_to(tmp_path / "keys")
    os.chown(runs / "r1", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_folder(runs / "r1" / "stacks")
    assert not list((tmp_path / "keys").iterdir())


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


@pytest.fixture
def handles(tmp_path):
    """Two descriptors of one folder, as two processes have them."""
    opened = [os.open(tmp_path, os.O_RDONLY) for _ in range(2)]
    yield opened
    for handle in opened:
        os.close(handle)


def test_a_lock_that_is_held_is_waited_for_until_its_limit(handles):
    """The second one fails with the reason."""
    safe_files.lock(handles[0], 0)
    with pytest.raises(TimeoutError, match="another process holds its lock"):
        safe_files.lock(handles[1], 0.05)


def test_a_lock_is_acquired_after_its_release(handles):
    """A close releases it, as the end of a process does."""
    held = handles.pop(0)
    safe_files.lock(held, 0)
    timer = threading.Timer(0.05, os.close, (held,))
    timer.start()
    safe_files.lock(handles[0], 60)
    timer.join()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"\xff\xfe\x00",
        b"\x00" * 100,
        b'"\xed\xa0"',
        b"\xef\xbb\xbf\xef\xbb\xbf{}",
        "[" * 100_000,
        "\ud800",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_json_is_one_kind_of_error(data):
    """Whatever the parser would raise, the caller gets one error, which is a ValueError."""
    with pytest.raises(DamagedError):
        parse_json(data)


@pytest.mark.parametrize("digits", [400, 10_000])
def test_a_number_that_no_float_holds_is_infinite(digits):
    """Arithmetic with it would raise, and what asks whether a number is finite refuses it."""
    assert parse_json(b"[-" + b"9" * digits + b"]") == [float("-inf")]


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    """A FIFO that no process writes to would be waited for without an end."""
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    for read in (open_regular, read_bytes, read_json, lambda path: read_tail(path, 10)):
        with pytest.raises(OSError):
            read(path)


def test_a_link_is_followed_only_where_that_is_allowed(tmp_path):
    """Runs that a user has put together out of links are read; in the folder of a running run there are none."""
    (tmp_path / "real").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert read_json(tmp_path / "link") == {}
    with pytest.raises(OSError):
        read_json(tmp_path / "link", follow=False)


def test_a_file_that_is_too_large_is_damaged(tmp_path):
    """It is not read further than to the bound."""
    (tmp_path / "x").write_bytes(b"1" * 11)
    assert read_bytes(tmp_path / "x", 11) == b"1" * 11
    with pytest.raises(DamagedError):
        read_bytes(tmp_path / "x", 10)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a\n", [(0, b"a\n", 2)]),
        (b"a\nb", [(0, b"a\n", 2), (2, b"b", 1)]),
        (b"12345678\nb\n", [(0, b"12345678\n", 9), (9, b"b\n", 2)]),
        (b"123456789\nb\n", [(0, None, 10), (10, b"b\n", 2)]),
        (b"1" * 1000 + b"\nb\n" + b"2" * 1000, [(0, None, 1001), (1001, b"b\n", 2), (1003, None, 1000)]),
    ],
)
def test_a_line_that_is_too_long_is_passed_over(monkeypatch, content, expected):
    """Where lines begin is known also behind a line that was not read."""
    monkeypatch.setattr(safe_files, "MAX_LINE", 8)
    monkeypatch.setattr(safe_files, "_BLOCK", 7)
    assert list(read_lines(io.BytesIO(content), 0, len(content))) == expected


@pytest.mark.parametrize("value", [None, True, 1.5, "x", "", "-", "9" * 30, 1 << 63, -(1 << 70), [], float("inf")])
def test_what_is_no_whole_number_of_64_bits_is_damaged(value):
    """Numbers that no clock shows would overflow where they are computed with."""
    with pytest.raises(DamagedError):
        parse_int64(value)


def test_a_whole_number_is_read_from_text_and_number():
    """OTLP writes 64 bits as text."""
    assert [parse_int64("17"), parse_int64(17), parse_int64("-3"), parse_int64((1 << 63) - 1)] == [
        17,
        17,
        -3,
        (1 << 63) - 1,
    ]


@as_root
def test_a_private_file_is_closed_to_another_user(public_path):
    """Modes of the file and of the folders above it; root, its owner and those whom a group may let in are not kept out."""
    file = public_path / "runs" / "a"
    file.parent.mkdir()
    file.touch()
    for file_mode, folder_mode, closed in (
        (0o600, 0o755, True), (0o640, 0o755, False), (0o644, 0o755, False), (0o644, 0o700, True), (0o644, 0o750, False),
    ):  # fmt: skip
        file.chmod(file_mode)
        file.parent.chmod(folder_mode)
        assert is_closed_to(file, OTHER) is closed
        assert not is_closed_to(file, 0)
    file.chmod(0o600)
    os.chown(file, OTHER, -1)
    assert not is_closed_to(file, OTHER)
