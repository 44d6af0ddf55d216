# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What every exporter shares: counting what is lost, and saying it once."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from verl_otel._internal.safe_files import file_word
from verl_otel.exporting.base import Exporter


class Silent(Exporter):
    """An exporter that overrides nothing but what it must."""

    name = "silent"

    def open(self, resource, scope, state):
        """Do nothing."""


def test_what_is_lost_is_counted_by_reason():
    """Losses are added up by what and why; none and negative counts are none."""
    exporter = Silent()
    for what, count, reason in [
        ("spans", 2, "full"),
        ("spans", 3, "full"),
        ("spans", 1, "refused"),
        ("points", 7, "full"),
    ]:
        exporter.drop(what, count, reason)
    for count in (0, -5):
        exporter.drop("spans", count, "never")
    assert exporter.dropped("spans") == {"full": 5, "refused": 1}
    assert exporter.dropped("points") == {"full": 7}


def test_each_reason_is_said_once(caplog):
    """The first loss for a reason is a line that names exporter, reason and counter; the next ones are silent."""
    exporter = Silent()
    for reason in ("full", "full", "refused", "full"):
        exporter.drop("spans", 1, reason)
    first, second = (record.getMessage() for record in caplog.records)
    assert "silent exporter: full" in first
    assert "verl.otel.spans.dropped" in first
    assert "silent exporter: refused" in second


def test_losses_of_several_threads_add_up():
    """Losses that several threads count at once are all in the sum."""
    exporter = Silent()

    def lose():
        for _ in range(500):
            exporter.drop("spans", 1, "full")

    threads = [threading.Thread(target=lose) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exporter.dropped("spans") == {"full": 4000}


@given(st.text())
def test_any_text_becomes_a_part_of_a_files_name(text):
    """It leads to no other folder, hides no file, and is left alone the second time."""
    word = file_word(text)
    assert not set(word) & set("/\0 \n")
    assert not word.startswith(".")
    assert file_word(word) == word
    assert file_word("trainer-0.node") == "trainer-0.node"
