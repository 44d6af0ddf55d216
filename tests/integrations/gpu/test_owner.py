# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Who computes on which GPU: by the numbers that Ray gives a process and the ids that the reader of the node has found."""

import sys
from types import SimpleNamespace

import pytest

from verl_otel.integrations.gpu.collector import OwnerCollector, write_devices
from verl_otel.model import Resource


@pytest.fixture
def owner(monkeypatch):
    """Make the source of a process that has these GPUs."""

    def make(*ids):
        resource = Resource({"verl.gpu.ids": ids} if ids else {})
        monkeypatch.setattr(
            "verl_otel.integrations.gpu.collector.current_session",
            lambda: SimpleNamespace(outputs=SimpleNamespace(resource=resource)),
        )
        return OwnerCollector()

    return make


DEVICES = [SimpleNamespace(id=f"GPU-{letter}", name=str(number), model="H100") for number, letter in enumerate("abc")]


def test_numbers_become_ids(owner, place):
    """Each number of the process is one series with the id that the GPU's own series have."""
    write_devices(place, DEVICES)
    assert owner("0", "2").read(place) == [
        ("verl.gpu.owner", (("hw.id", "GPU-a"), ("hw.name", "0"), ("hw.model", "H100")), 1),
        ("verl.gpu.owner", (("hw.id", "GPU-c"), ("hw.name", "2"), ("hw.model", "H100")), 1),
    ]


def test_a_process_that_was_given_ids_has_them(owner, place):
    """Where CUDA's variable holds ids they are said as they are, with the number where it is known."""
    assert owner("GPU-b", "MIG-x").read(place) == [
        ("verl.gpu.owner", (("hw.id", "GPU-b"),), 1),
        ("verl.gpu.owner", (("hw.id", "MIG-x"),), 1),
    ]
    write_devices(place, DEVICES)
    assert owner("GPU-b").read(place)[0][1] == (("hw.id", "GPU-b"), ("hw.name", "1"), ("hw.model", "H100"))


def test_without_ray_it_is_the_gpus_on_which_pytorch_has_memory(owner, place, monkeypatch):
    """A process that Ray gave no numbers has the devices that its allocator uses; of those that were not read there is no series."""
    uuids = {0: "a", 1: "c", 2: "unread"}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        memory_allocated=lambda _number: 1,
        memory_reserved=lambda number: 2 * number,
        get_device_properties=lambda number: SimpleNamespace(uuid=uuids[number]),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    source = owner()
    assert source.read(place) == []
    write_devices(place, DEVICES)
    assert source.read(place) == [("verl.gpu.owner", (("hw.id", "GPU-c"), ("hw.name", "2"), ("hw.model", "H100")), 1)]
    assert owner("0").read(place)[0][1][0] == ("hw.id", "GPU-a")


def test_nothing_is_said_before_the_numbers_are_known(owner, place):
    """A process without a GPU, and one whose node nobody has read yet, say nothing; it follows when the file is there and changes."""
    assert owner().read(place) == []
    source = owner("1")
    assert source.read(place) == []
    write_devices(place, DEVICES)
    assert source.read(place)[0][1][0] == ("hw.id", "GPU-b")
    write_devices(place, [SimpleNamespace(id="GPU-z", name="1", model="H200")])
    assert source.read(place)[0][1][0] == ("hw.id", "GPU-z")
    (place.folder / "gpus-node-1.json").write_text("{")
    assert source.read(place)[0][1][0] == ("hw.id", "GPU-z")
