# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Locks of other libraries are replaced wherever they are reached, and nothing else is touched."""

import threading

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from verl_otel.exporting import fork_locks


class Foreign:
    """An object of a class that is not searched."""

    def __init__(self):
        self.lock = threading.Lock()


@pytest.mark.full
def test_every_lock_of_a_meter_provider_is_replaced():
    """Locks that were held before are free: instruments, meters and readers work."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    meter = provider.get_meter("mine")
    counter, histogram = meter.create_counter("counter"), meter.create_histogram("histogram")
    counter.add(1)
    histogram.record(1)
    for each in find_locks(provider):
        each.acquire()
    fork_locks.renew(provider)
    done = threading.Thread(target=use, args=(provider, counter, histogram, reader), daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()


def use(provider, counter, histogram, reader):
    counter.add(2, {"a": "b"})
    histogram.record(2)
    provider.get_meter("other").create_observable_gauge("gauge", [lambda _: []])
    assert reader.get_metrics_data() is not None


def find_locks(provider):
    """The locks of a provider by their way from it, as of the versions that are supported."""
    found, waiting, seen = [], [provider], set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if type(thing) in fork_locks.LOCKS:
            found.append(thing)
        elif isinstance(thing, dict):
            waiting += thing.values()
        elif isinstance(thing, (list, tuple)):
            waiting += thing
        elif type(thing).__module__.startswith("opentelemetry.sdk"):
            waiting += vars(thing).values() if hasattr(thing, "__dict__") else ()
    assert len(found) > 3
    return found


def test_a_registry_that_was_held_takes_collectors_again():
    """The lock of a registry of `prometheus_client` is replaced; what is registered stays."""
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("mine", "text", registry=registry).inc()
    registry._lock.acquire()
    fork_locks.renew(registry)
    prometheus_client.Counter("other", "text", registry=registry)
    assert registry.get_sample_value("mine_total") == 1


def test_objects_of_others_keep_their_locks():
    """The search stays within the packages that it is for."""
    registry = prometheus_client.CollectorRegistry()
    registry.foreign = foreign = Foreign()
    kept = foreign.lock
    fork_locks.renew(registry)
    assert foreign.lock is kept
