# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Text of others in log lines and tables: one line, bounded, and nothing that a terminal obeys."""

import logging

import pytest

from verl_otel._internal import error_boundary, printable

HOSTILE = "a\nverl-otel: CRASH forged\r\x1b[2J\x1b]0;title\x07\t\x9b1m\u202e\u2028\x00\ud800"
FORBIDDEN = set("\n\r\x1b\x07\t\x9b\u202e\u2028\x00\ud800")


def test_what_a_terminal_obeys_is_written_out():
    """Line breaks, control characters, escape sequences and marks of direction are written as code points."""
    shown = printable.show(HOSTILE)
    assert not FORBIDDEN & set(shown)
    assert shown.startswith(r"a\u000averl-otel: CRASH forged\u000d\u001b[2J")


@pytest.mark.parametrize("text", ["", "plain", "数学　ü é", "👩\u200d🔬", "a\\nb"])
def test_other_text_stays(text):
    """Text of any language stays as it is."""
    assert printable.show(text) == text


def test_text_is_bounded():
    """A long text is cut, and its end shows it."""
    assert printable.show("x" * 1_000, 10) == "x" * 9 + "…"
    assert len(printable.show_lines("x" * 100_000)) == printable.LONGEST


def test_several_lines_keep_their_breaks():
    """In a text of several lines the breaks stay, and each line is bounded."""
    assert printable.show_lines("a\tb\n" + "x" * 20, longest=10) == "a\\u0009b\n" + "x" * 9 + "…"


def test_a_log_line_is_one_line(caplog):
    """Values of log lines, errors among them, are shown in one bounded line; numbers keep their format."""
    caplog.set_level(logging.WARNING)
    error_boundary.warn_once(
        "place", "verl-otel: %s: %s, %d, %.1f", HOSTILE, ValueError("x" * 100_000 + HOSTILE), 7, 0.25
    )
    line = caplog.records[0].getMessage()
    assert not FORBIDDEN & set(line)
    assert len(line) < 5_000
    assert line.endswith(", 7, 0.2")


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (1, ("step",), "1 step"),
        (0, ("step",), "0 steps"),
        (2_000, ("process", "processes"), "2,000 processes"),
        (1, ("process", "processes"), "1 process"),
    ],
)
def test_numbers_have_their_noun(number, words, text):
    """One is singular, everything else plural, with separators of thousands."""
    assert printable.counted(number, *words) == text
