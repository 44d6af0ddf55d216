# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Modules beside these tests are found by their folder; `dashboards` stands beside `verl_otel`."""

from pathlib import Path

HERE = Path(__file__).resolve().parent

import pytest


def pytest_collection_modifyitems(items):
    """Mark what needs promtool or the Prometheus that is built with it: such tests are in the step of programs of ``make test``."""
    for item in items:
        if HERE in item.path.parents and "promtool" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.collector("prometheus"))


@pytest.fixture(scope="session")
def promtool():
    """promtool, of this state of the sources; without it the test is skipped, with the reason."""
    from tests.dashboards import scenes

    return scenes.need_promtool()
