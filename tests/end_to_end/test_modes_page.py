# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page on modes tells of the code that is here."""

import modes
import modes_page
import pytest

pytestmark = [pytest.mark.gate, pytest.mark.matrix]


def test_the_page_was_made_from_the_present_integrations():
    """A hook that changes asks for `make matrix` again, so that the page never tells of other code."""
    text = modes_page.PAGE.read_text("utf-8")
    assert f"{modes_page.STAMP}{modes_page.hash_integrations()}." in text, (
        "integrations changed since: run `make matrix`"
    )


def test_the_page_has_every_mode():
    """Each mode of the matrix has its row."""
    text = modes_page.PAGE.read_text("utf-8")
    assert not [mode.title for mode in modes.MODES.values() if mode.title not in text]
