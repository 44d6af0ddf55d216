# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Foreign files are opened without waiting, read within bounds, and parsed with one kind of error."""

import io
import os
import sys

import pytest

from verl_otel._internal import untrusted_files
from verl_otel._internal.untrusted_files import (
    DamagedError,
    open_regular,
    parse_int64,
    parse_json,
    read_bytes,
    read_json,
    read_lines,
    read_tail,
)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" * 900 + b"]" * 900,
        b"[" * 66 + b"]" * 66,
        b"9" * 10_000,
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
    if sys.version_info < (3, 10, 7) and data[:1] == b"9":
        pytest.skip("this Python reads numbers of any length")
    with pytest.raises(DamagedError):
        parse_json(data)


@pytest.mark.parametrize("depth", [1, 10, 64])
def test_json_of_a_usual_depth_is_read(depth):
    """A line of spans is 10 levels deep."""
    data = b"[" * depth + b"]" * depth
    assert str(parse_json(data)) == data.decode()


def test_many_values_beside_each_other_are_not_deep():
    """Only what is inside of each other counts."""
    assert len(parse_json(b"[" + b",".join([b"[]"] * 10_000) + b"]")) == 10_000


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
    monkeypatch.setattr(untrusted_files, "MAX_LINE", 8)
    monkeypatch.setattr(untrusted_files, "_BLOCK", 7)
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
