# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page on modes tells of the code that is here."""

import json
from types import SimpleNamespace

import pytest

from tests.end_to_end import modes, modes_page

pytestmark = pytest.mark.sources


@pytest.mark.matrix
def test_the_page_was_made_from_the_present_integrations():
    """A hook that changes asks for `make matrix` again, so that the page never tells of other code."""
    text = modes_page.PAGE.read_text("utf-8")
    assert f"{modes_page.STAMP}{modes_page.hash_integrations()}." in text, (
        "integrations changed since: run `make matrix`"
    )


@pytest.mark.matrix
def test_the_page_has_every_mode():
    """Each mode of the matrix has its row, but those of a commit of verl's repository, which may be out of reach."""
    text = modes_page.PAGE.read_text("utf-8")
    assert not [mode.title for mode in modes.MODES.values() if not mode.commit and f"| {mode.title} |" not in text]


def test_only_what_was_counted_with_this_code_has_a_row(monkeypatch, tmp_path):
    """A mode that was run with other integrations, failed since, or was never run has no row and is named as not run."""
    monkeypatch.setattr(modes_page, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(modes_page, "PAGE", tmp_path / "modes.md")
    training = SimpleNamespace(points=list, seconds=1.0)
    for name in ("sync", "legacy", "critic"):
        modes_page.keep(name, training, [])
    path = tmp_path / "kept" / "legacy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hash": "of other code"}))
    modes_page.forget("critic")
    modes_page.forget("critic")
    modes_page.keep_counts("kl", {"turns": "R", "tokens": "the bed has none"})
    modes_page.write_page()
    text = modes_page.PAGE.read_text("utf-8")
    assert [name for name, mode in modes.MODES.items() if f"| {mode.title} |" in text] == ["sync"]
    (line,) = (line for line in text.splitlines() if line.startswith("Not run for this table: "))
    assert [name for name, mode in modes.MODES.items() if mode.title not in line] == ["sync"]
    assert "of other code" not in text
    assert f"{modes_page.STAMP}{modes_page.hash_integrations()}." in text
    assert "| tokens | ? |" in text
    assert "* tokens, in `kl`: the bed has none." in text
    (line,) = (line for line in text.splitlines() if line.startswith("Not counted for this table: "))
    assert "`kl`" not in line
    assert "`crash`" in line
