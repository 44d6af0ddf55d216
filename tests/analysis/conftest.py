# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stories and analysed runs as fixtures: test folders are no packages, so the modules are loaded by their paths."""

import importlib.util
from pathlib import Path

import pytest


def _load(name):
    spec = importlib.util.spec_from_file_location(f"verl_otel_test_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_STORIES = _load("stories")
_EXPLANATIONS = _load("explanations")


@pytest.fixture(scope="session")
def stories():
    """The module of stories."""
    return _STORIES


@pytest.fixture(scope="session")
def explanations():
    """The module that makes analysed runs without files."""
    return _EXPLANATIONS


@pytest.fixture
def story(tmp_path):
    """An empty story, to be written into a folder of this test."""
    return _STORIES.Story(tmp_path / "r1")
