# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node as the collection sees them: devices that come, fail, hang and come back; the bound on series."""

import json
import threading

import pytest

from tests.integrations.gpu.fake_nvml import FakeNvml
from verl_otel.integrations.gpu.collector import COLLECTORS, GpuCollector, find_path
from verl_otel.integrations.gpu.nvml import NvmlDriver
from verl_otel.semconv.metric_names import METRICS


def devices(found):
    """Ids of the devices that say something of themselves."""
    return {key[1] for key in found if key[0] == "hw.power"}


def test_the_other_processes_are_told_the_numbers(make_source, place, library):
    """Which device has which number stands in a file of the node."""
    list(make_source().read(place))
    assert json.loads(find_path(place).read_text()) == {
        str(number): {"id": gpu.uuid, "model": gpu.name} for number, gpu in enumerate(library.gpus)
    }


def test_a_lost_device_disappears_with_a_reason_and_comes_back(make_source, place, library, values, search_now, caplog):
    """It has no series but the count of failures, the other device keeps its own, and it is one line in the log."""
    source = make_source()
    first, second = (gpu.uuid for gpu in library.gpus)
    assert devices(values(source.read(place))) == {first, second}
    library.gpus[0].fails["*"] = "gpu_is_lost"
    for times in (1, 2):
        found = values(source.read(place))
        assert devices(found) == {second}
        assert {key for key in found if key[1] == first} == {("verl.gpu.unreadable", first, "gpu_is_lost")}
        assert found["verl.gpu.unreadable", first, "gpu_is_lost"] == times
    assert [record.getMessage() for record in caplog.records] == [
        f"verl-otel: GPU {first} cannot be read: gpu_is_lost (logged once)"
    ]
    library.gpus[0].fails.clear()
    found = values(source.read(place))
    assert devices(found) == {first, second}
    assert found["verl.gpu.unreadable", first, "gpu_is_lost"] == 2


def test_a_driver_that_is_reset_is_found_again(make_source, place, library, values, search_now):
    """After the driver went away the library is started anew."""
    source = make_source()
    source.read(place)
    library.inits = 0
    found = values(source.read(place))
    assert devices(found) == set()
    assert found["verl.gpu.unreadable", library.gpus[0].uuid, "uninitialized"] == 1
    library.inits = 1  # what the shutdown before the search takes back
    assert len(devices(values(source.read(place)))) == 2


def test_a_device_that_hangs_is_named_while_it_does(make_source, place, library, values, wait_for, caplog):
    """Each collection meanwhile counts it with the reason, and one line in the log names it; what the driver answers at last is used."""
    source = make_source()
    first, second = (gpu.uuid for gpu in library.gpus)
    source.read(place)
    library.gpus[1].hangs = ("nvmlDeviceGetPowerUsage",)
    late = []
    thread = threading.Thread(target=lambda: late.extend(source.read(place)))
    thread.start()
    wait_for(lambda: library.calls.count("nvmlDeviceGetPowerUsage") == 4)
    for times in (1, 2):
        assert values(source.read_late()) == {("verl.gpu.unreadable", second, "timeout"): times}
    assert [record.getMessage() for record in caplog.records] == [
        f"verl-otel: GPU {second} cannot be read: timeout (logged once)"
    ]
    library.gpus[1].hangs = ()
    library.released.set()
    thread.join()
    assert devices(values(late)) == {first, second}


def test_numbers_that_could_not_be_written_are_written_later(make_source, place, library, caplog):
    """A folder that is not there at the time costs nothing but that time."""
    source, folder = make_source(), place.folder / "later"
    elsewhere = place._replace(folder=folder)
    for _ in range(2):
        source.read(elsewhere)
    assert len(caplog.records) == 1
    folder.mkdir()
    source.read(elsewhere)
    assert len(json.loads(find_path(elsewhere).read_text())) == 2
    written = find_path(elsewhere).stat()
    source.read(elsewhere)
    assert find_path(elsewhere).stat().st_mtime_ns == written.st_mtime_ns


@pytest.mark.full
def test_no_device_is_nothing(place, caplog):
    """Without a driver there are no values, threads, files or words."""
    before = threading.active_count()
    source = GpuCollector([lambda: None])
    assert list(source.read(place)) == []
    assert threading.active_count() == before
    assert not list(place.folder.iterdir())
    assert not caplog.records


def test_every_thing_that_is_named_was_announced(make_source, place, library):
    """What a source may name is in the catalogue, and what it names was announced."""
    library.gpus[0].fails["*"] = "unknown"
    library.gpus[1].bits = 0xFF
    source = make_source()
    source.read(place)
    assert {metric for metric, _, _ in source.read(place)} <= set(source.metrics)
    assert {metric for each in COLLECTORS for metric in each.metrics} <= set(METRICS)


@pytest.mark.parametrize(("count", "column"), [(1, 0), (8, 1)])
def test_the_series_stay_within_the_catalogue(place, count, column, make_source):
    """As many GPUs as a node has make no more series of any metric than the catalogue says."""
    library = FakeNvml(count)
    source = make_source(driver=NvmlDriver(library))
    for gpu in library.gpus:
        gpu.xids = [79, 13, 64, 94]
    source.read(place)
    rows = {}
    for metric, labels, _ in source.read(place):
        rows.setdefault(metric, set()).add(labels)
    for metric, series in rows.items():
        assert len(series) <= METRICS[metric].series[column], metric
    assert sum(map(len, rows.values())) <= 20 * count
