# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The module that an import of ``rl_insight`` finds."""

import importlib

import pytest

from verl_otel.integrations import rl_insight as answers


@pytest.fixture
def insight():
    """The module that the import finds."""
    answers.install()
    return importlib.import_module("rl_insight")
