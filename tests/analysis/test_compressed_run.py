# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run whose older files are compressed is read as if they were not."""

import pytest

from tests.analysis import big_run
from tests.builders.compressed_run import compress
from verl_otel.analysis import reader

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run of some steps on two hosts in files that are not compressed, with a line for each few spans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(big_run, "LINE_SPANS", 4)
        return big_run.write(tmp_path_factory.mktemp("plain"), 60, 16, 2)


@pytest.fixture
def compressed(plain, tmp_path, monkeypatch):
    return compress(plain, tmp_path / "compressed", monkeypatch)


def explain(folder):
    """Return the explanation without the steps that are held in the form in which they were read."""
    return reader.read([folder])[0]._replace(folders=(), recent_steps=())


def test_the_explanation_is_the_same(plain, compressed, monkeypatch):
    """Steps, verdicts, scalars and counts are equal, in one piece and in many."""
    expected = explain(plain)
    assert explain(compressed) == expected
    monkeypatch.setattr(reader, "PIECE_BYTES", 500_000)
    assert explain(compressed) == expected


def test_a_damaged_part_is_a_problem_and_the_rest_is_used(compressed):
    """A compressed file that was cut off, and one that is something else, are named; everything else is explained."""
    whole = explain(compressed)
    parts = sorted(compressed.glob("traces-*.gz"))
    data = parts[0].read_bytes()
    parts[0].write_bytes(data[: len(data) // 2])
    parts[-1].write_bytes(b"no gzip")
    damaged = explain(compressed)
    assert 0 < damaged.counts.spans < whole.counts.spans
    for part in (parts[0], parts[-1]):
        assert any(part.name in problem and "damaged" in problem for problem in damaged.problems)
