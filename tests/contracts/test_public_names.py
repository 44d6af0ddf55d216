# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The public face: these names and no others, loaded at their first use."""

import pytest

import verl_otel

pytestmark = pytest.mark.sources

NAMES = {
    "ConfigError", "VerlOtelError", "bind_context", "consume", "counter", "gauge", "histogram", "init", "llm", "log", "on_record", "phase", "reward", "rollout",
    "shutdown", "span", "step", "timed", "tool", "trajectory", "turn", "update",
}  # fmt: skip


def test_the_public_names_are_these():
    """Twenty-two names and the version. A new one is a promise: it needs a reason and this line."""
    assert set(verl_otel.__all__) == NAMES | {"__version__"}
    assert len(NAMES) == 22
    assert dir(verl_otel) == sorted(verl_otel.__all__)


def test_every_public_name_is_there_and_documented():
    """Each name can be had and says what it is."""
    for name in NAMES:
        assert getattr(verl_otel, name).__doc__, name
