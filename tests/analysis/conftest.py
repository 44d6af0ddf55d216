# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stories as a fixture: test folders are no packages, so the module is loaded by its path."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("verl_otel_test_stories", Path(__file__).with_name("stories.py"))
_STORIES = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_STORIES)


@pytest.fixture(scope="session")
def stories():
    """The module of stories."""
    return _STORIES


@pytest.fixture
def story(tmp_path):
    """An empty story, to be written into a folder of this test."""
    return _STORIES.Story(tmp_path / "r1")
