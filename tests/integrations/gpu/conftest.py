# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Drivers that are made up, with the signatures of the real ones."""

import pytest

from tests.integrations.gpu.fake_nvml import FakeNvml
from verl_otel.integrations.gpu.collector import GpuCollector
from verl_otel.integrations.gpu.nvml import NvmlDriver
from verl_otel.system.collectors import NodeScope


@pytest.fixture
def library():
    """NVML with two GPUs."""
    return FakeNvml(2)


@pytest.fixture
def place(tmp_path):
    return NodeScope(tmp_path, "node-1")


@pytest.fixture
def values():
    """Return measurements as a dictionary from the metric and its label values, without what every GPU has."""

    def by_labels(measurements):
        found = {}
        for metric, labels, value in measurements:
            key = (metric, *(text for name, text in labels if name not in ("hw.type", "hw.gpu.task")))
            assert key not in found, f"{key} is there twice"
            found[key] = value
        return found

    return by_labels


@pytest.fixture
def make_source(library):
    """Make what reads the GPUs of a library, which is searched anew at each collection after a failure."""
    made = []

    def make(driver=None):
        source = GpuCollector([lambda: driver or NvmlDriver(library)])
        made.append(source)
        return source

    yield make
    library.released.set()
    for source in made:
        source.close()


@pytest.fixture
def search_now(monkeypatch):
    """Have a failed device looked for at the next collection."""
    monkeypatch.setattr("verl_otel.integrations.gpu.collector.SEARCH_SECONDS", 0.0)
