# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What every exporter shares: counting what is lost, and saying it once."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.exporting_records import RESOURCE, SCOPE, make_batch
from verl_otel._internal.deadline import remaining
from verl_otel._internal.safe_files import file_word
from verl_otel.exporting.base import Exporter, MetricState


class Silent(Exporter):
    """An exporter that overrides nothing but what it must."""

    name = "silent"

    def open(self, resource, scope, state):
        """Do nothing."""


@pytest.mark.full
def test_an_exporter_may_override_nothing():
    """An exporter that implements nothing but `open` can be driven like any other."""
    exporter = Silent()
    exporter.open(RESOURCE, SCOPE, MetricState())
    exporter.consume(make_batch(1))
    exporter.consume_metrics(b"")
    exporter.poll()
    exporter.flush(time.monotonic())
    exporter.close(time.monotonic())
    exporter.after_fork()
    assert (exporter.seconds, exporter.cpu_seconds) == (0.0, 0.0)


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


def test_the_answer_is_a_copy():
    """Who changes the answer does not change the counts."""
    exporter = Silent()
    exporter.drop("spans", 1, "full")
    exporter.dropped("spans").clear()
    assert exporter.dropped("spans") == {"full": 1}


@pytest.mark.full
def test_the_remaining_time_is_never_negative():
    """What remains until a deadline is 0 after it."""
    assert remaining(time.monotonic() - 5) == 0.0
    assert 0 < remaining(time.monotonic() + 5) <= 5


@given(st.text())
def test_any_text_becomes_a_part_of_a_files_name(text):
    """It leads to no other folder, hides no file, and is left alone the second time."""
    word = file_word(text)
    assert not set(word) & set("/\0 \n")
    assert not word.startswith(".")
    assert file_word(word) == word
    assert file_word("trainer-0.node") == "trainer-0.node"
