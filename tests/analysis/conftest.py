# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stories and analysed runs as fixtures."""

import pytest

from tests.builders import stories


@pytest.fixture
def story(tmp_path):
    """An empty story, to be written into a folder of this test."""
    return stories.Story(tmp_path / "r1")
