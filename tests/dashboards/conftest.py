# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Modules beside these tests are found by their folder; `dashboards` stands beside `verl_otel`."""

from pathlib import Path

HERE = Path(__file__).resolve().parent

import pytest

from tests.builders.programs import need_programs


def pytest_collection_modifyitems(items):
    """Mark what needs promtool or the Prometheus that is built with it: such tests are in ``make test-full``."""
    for item in items:
        if HERE in item.path.parents and "promtool" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.collector)


@pytest.fixture(scope="session")
def promtool():
    """promtool, of this state of the sources; without it the test is skipped, with the reason."""
    return need_programs("prometheus") / "promtool"
