# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The memory of the framework's allocator: asked only where it is in use, and not while it gives memory back."""

import sys
import threading
from types import SimpleNamespace

import pytest

from verl_otel.integrations.gpu.allocator import AllocatorCollector


class FakeCuda:
    """The part of ``torch.cuda`` that is asked; asking for more would begin to use the devices."""

    def __init__(self, begun=True):
        self.begun = begun
        self.asked = []

    def is_initialized(self):
        return self.begun

    def device_count(self):
        self.asked.append("count")
        return 2

    def memory_allocated(self, device=None):
        self.asked.append("allocated")
        return 100 * device

    def memory_reserved(self, device=None):
        self.asked.append("reserved")
        return 200 * device


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
    return fake


def test_devices_in_use_are_said_by_their_name(cuda, place):
    """A device of which this process holds nothing has no series."""
    assert AllocatorCollector().read(place) == [
        ("verl.gpu.memory.used", (("device", "cuda:1"),), 100),
        ("verl.gpu.memory.reserved", (("device", "cuda:1"),), 200),
    ]


def test_a_framework_that_has_not_begun_is_not_made_to(cuda, place):
    """Nothing but whether it has begun is asked."""
    cuda.begun = False
    assert AllocatorCollector().read(place) == []
    assert cuda.asked == []


@pytest.mark.parametrize("torch", [None, SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace())])
def test_no_framework_and_half_of_one(monkeypatch, place, torch):
    """A process without PyTorch, or one that is just importing it, has no values, and nothing is imported."""
    if torch is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", torch)
    assert AllocatorCollector().read(place) == []
    assert torch is not None or "torch" not in sys.modules


def test_an_allocator_that_does_not_count(cuda, place):
    """One of the user's own raises; there are no values then, and no error."""

    def fail(device=None):
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    cuda.memory_allocated = fail
    assert AllocatorCollector().read(place) == []


def test_it_is_not_asked_while_memory_is_given_back(cuda, place, wait_for):
    """A thread inside of ``empty_cache`` may hold the allocator's lock for long, and nobody waits for it."""
    gate, inside = threading.Event(), threading.Event()

    def empty_cache():
        inside.set()
        gate.wait()

    thread = threading.Thread(target=empty_cache)
    thread.start()
    inside.wait()
    try:
        assert AllocatorCollector().read(place) == []
        assert "allocated" not in cuda.asked
    finally:
        gate.set()
        thread.join()
    assert AllocatorCollector().read(place)


def test_an_allocator_that_calls_python_under_its_lock_is_not_read(cuda, place, monkeypatch):
    """That of vLLM's sleep mode waits for the interpreter lock, which the reader would hold."""
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.cumem", SimpleNamespace())
    assert AllocatorCollector().read(place) == []
    assert cuda.asked == []


def test_the_real_framework_on_a_cpu(place):
    """PyTorch without a GPU is asked whether it has begun, and has not."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert AllocatorCollector().read(place) == []
    assert not sys.modules["torch"].cuda.is_initialized()
