# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed files of blocks: what is read is what was written, from any place, and damage is an error."""

import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel._internal import rotated_files
from verl_otel._internal.rotated_files import CompressedLines, encode_block, read_index

LINE = b'{"startTimeUnixNano":"3","endTimeUnixNano":"%d"}\n'


def open_blocks(blocks):
    """Return the lines of a compressed file with these blocks."""
    return CompressedLines(io.BytesIO(b"".join(map(encode_block, blocks))))


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.lists(st.integers(0, 2500), max_size=8))
def test_every_place_reads_as_in_the_original(blocks, places):
    """The file is read as the text that was compressed, as a whole, by line and from any offset, and `gzip` reads it, too."""
    content = b"".join(blocks)
    assert gzip.decompress(b"".join(map(encode_block, blocks))) == content
    with io.BufferedReader(open_blocks(blocks), 16) as file:
        assert list(file) == content.splitlines(keepends=True) if b"\r" not in content else True
        for place in places:
            file.seek(place)
            assert file.read(100) == content[place : place + 100]
            assert file.tell() == max(place, min(place + 100, len(content)))
        assert file.seek(0, io.SEEK_END) == len(content)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 1000))
def test_the_beginning_is_read_without_the_rest(blocks, length):
    """It is that of the lines, over as many blocks as it takes."""
    raw = io.BytesIO(b"".join(map(encode_block, blocks)))
    assert rotated_files.read_beginning(raw, length) == b"".join(blocks)[:length]


def test_the_index_has_the_first_time_of_a_block():
    """A block has the first end of a span, or the time of a point; one that begins in a line or has no time has none."""
    blocks = [encode_block(LINE % 7 + LINE % 8), encode_block(b'{"timeUnixNano": "9"}\n'), encode_block(b"x\n")]
    blocks.append(encode_block(LINE % 10, begins_line=False))
    index, is_whole = read_index(io.BytesIO(b"".join(blocks)))
    assert is_whole
    assert [block.time_ns for block in index] == [7, 9, 0, 0]


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_file_is_an_error_or_right(data):
    """However a file is cut or changed, what is read is a beginning of the lines that were written, or an `OSError`."""
    content = b"".join(LINE % number for number in range(30))
    blocks = [content[begin : begin + 400] for begin in range(0, len(content), 400)]
    raw = bytearray(b"".join(map(encode_block, blocks)))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(1, 255))
    file = io.BufferedReader(CompressedLines(io.BytesIO(bytes(raw))), 64)
    read = b""
    try:
        while piece := file.read1(100):
            read += piece
    except OSError:
        assert content.startswith(read)
    else:
        assert content.startswith(read)
        assert read == content or len(raw) in _whole_sizes(blocks)


def _whole_sizes(blocks):
    sizes = [len(encode_block(block)) for block in blocks]
    return [sum(sizes[:number]) for number in range(len(sizes) + 1)]


@pytest.mark.parametrize(
    "raw", [b"x", b"\x1f\x8b\x08\x00" + bytes(60), gzip.compress(b"line\n")], ids=["text", "empty", "standard"]
)
def test_other_gzip_files_are_refused(raw):
    """A file without our index cannot be read, and says so where it is read."""
    file = CompressedLines(io.BytesIO(raw))
    assert file.size == 1
    with pytest.raises(OSError, match="damaged"):
        file.read(10)


def test_a_block_does_not_expand_beyond_its_declared_size():
    """A member that expands to more than it declares, and one that declares too much, are errors, and are not held in memory."""
    raw = bytearray(encode_block(bytes(1 << 20)))
    head = list(rotated_files._HEAD.unpack_from(raw))
    for length in (1000, rotated_files.MAX_BLOCK + 1):
        head[-2] = length
        rotated_files._HEAD.pack_into(raw, 0, *head)
        with pytest.raises(OSError, match="damaged"):
            CompressedLines(io.BytesIO(bytes(raw))).read(10)
