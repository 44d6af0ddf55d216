# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs: units, counters since the first reading, MIG, XIDs, what a device does not have, what fails in the middle."""

import itertools
import os
import subprocess
import sys

import pytest

from tests.integrations.gpu.fake_nvml import GIB, FakeGpu
from verl_otel.integrations.gpu.device import Unreadable
from verl_otel.integrations.gpu.nvml import PRESENT, NvmlDriver, find_driver
from verl_otel.semconv.metric_names import METRICS


@pytest.fixture
def driver(library):
    return NvmlDriver(library)


def test_a_gpu_is_read_in_the_units_of_the_catalogue(library, driver, values):
    """Percent become shares, mW Watt, mJ Joule, MHz Hz, KiB bytes, ns seconds; counters begin at 0."""
    device, _ = driver.find_devices()
    identity, gpu = device.id, library.gpus[0]
    assert (identity, device.name, device.model) == (gpu.uuid, "0", "NVIDIA H100 80GB HBM3")
    assert values(device.read()) == {
        ("hw.gpu.memory.usage", identity): 10 * GIB,
        ("hw.gpu.memory.limit", identity): 80 * GIB,
        ("hw.gpu.utilization", identity): 0.87,
        ("verl.gpu.memory.io.utilization", identity): 0.33,
        ("hw.power", identity): 512.345,
        ("hw.energy", identity): 0,
        ("hw.temperature", identity, "gpu"): 61,
        ("hw.temperature", identity, "memory"): 72,
        ("verl.gpu.clock", identity): 1.755e9,
        ("hw.errors", identity, "ecc_corrected"): 0,
        ("hw.errors", identity, "ecc_uncorrected"): 0,
        ("hw.errors", identity, "link"): 0,
        ("hw.errors", identity, "xid"): 0,
        ("hw.errors", identity, "xid_application"): 0,
        ("verl.gpu.throttled", identity, "power"): 0,
        ("verl.gpu.throttled", identity, "thermal"): 0,
        ("verl.gpu.link.io", identity, "transmit"): 0,
        ("verl.gpu.link.io", identity, "receive"): 0,
    }
    gpu.millijoules += 1500
    for name, more in {
        "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": 1,
        "NVML_FI_DEV_PCIE_REPLAY_COUNTER": 2,
        "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 3,
        "NVML_FI_DEV_PERF_POLICY_RELIABILITY": 500_000_000,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 8,
    }.items():
        gpu.fields[name] += more
    found = values(device.read())
    assert found["hw.energy", identity] == 1.5
    assert found["hw.errors", identity, "ecc_uncorrected"] == 1
    assert found["hw.errors", identity, "link"] == 5
    assert found["verl.gpu.throttled", identity, "reliability"] == 0.5
    assert found["verl.gpu.link.io", identity, "transmit"] == 8192


def test_every_value_has_the_labels_of_the_catalogue(library, driver):
    """Names and labels are those of the rows, in their order."""
    library.gpus[0].bits = library.nvmlClocksEventReasonSwPowerCap | library.nvmlClocksEventReasonHwSlowdown
    for metric, labels, _ in driver.find_devices()[0].read():
        names = [name for name, _ in labels]
        assert names == [name for name in METRICS[metric].labels if name in names], metric


def test_a_gpu_that_is_slowed_down_says_why(library, driver, values):
    """There is a series for each reason that holds now, and none for one that does not; being idle is no reason."""
    device, _ = driver.find_devices()
    library.gpus[0].bits = 1 | library.nvmlClocksEventReasonHwPowerBrakeSlowdown
    found = values(device.read())
    assert [key[2] for key in found if key[0] == "verl.gpu.throttling"] == ["hw_power_brake"]


def test_an_old_driver_that_knows_less(library, driver, values):
    """Functions and fields that it does not have are left out, and the older name of one is used."""
    gpu = library.gpus[0]
    gpu.fails = dict.fromkeys(
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEnergyConsumption"), "function_not_found"
    )
    gpu.fails["nvmlDeviceRegisterEvents"] = "not_supported"
    gpu.fields = {}
    gpu.bits = library.nvmlClocksEventReasonHwThermalSlowdown
    device, _ = driver.find_devices()
    names = {key[0] for key in values(device.read())}
    assert names == {
        "hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.gpu.utilization", "hw.power", "hw.temperature",
        "verl.gpu.clock", "verl.gpu.memory.io.utilization", "verl.gpu.throttling",
    }  # fmt: skip
    assert library.open_sets == 1  # the other GPU's


def test_parts_of_a_gpu_have_their_own_memory(library, driver, values):
    """A MIG device is read beside the GPU that it is a part of, and says whose part it is."""
    gpu = library.gpus[0]
    gpu.parts = [FakeGpu(17, gpu), None, FakeGpu(18, gpu)]
    gpu.fails["nvmlDeviceGetUtilizationRates"] = "not_supported"
    whole, first, second, other = driver.find_devices()
    assert [each.name for each in (whole, first, second, other)] == ["0", "0:0", "0:2", "1"]
    assert values(first.read()) == {
        ("hw.gpu.memory.usage", first.id, whole.id): 27 * GIB,
        ("hw.gpu.memory.limit", first.id, whole.id): 80 * GIB,
    }
    found = values(whole.read())
    assert ("hw.power", whole.id) in found
    assert ("hw.gpu.utilization", whole.id) not in found
    assert ("verl.gpu.memory.io.utilization", whole.id) not in found


def test_xids_are_counted_by_who_is_to_blame(library, driver, values, caplog):
    """Those of programs are told from the others, each number is in the log once, and nothing waits for one."""
    device, _ = driver.find_devices()
    library.gpus[0].xids = [79, 31, 79]
    found = values(device.read())
    assert found["hw.errors", device.id, "xid"] == 2
    assert found["hw.errors", device.id, "xid_application"] == 1
    assert values(device.read())["hw.errors", device.id, "xid"] == 2
    assert [record.getMessage().count("XID 79") for record in caplog.records] == [1, 0]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        *itertools.product(
            ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues", "*"],
            ["gpu_is_lost", "reset_required", "uninitialized"],
        ),
        ("*", "unknown"),
        ("*", "irq_issue"),
    ],
)
def test_a_device_that_is_lost_or_cannot_be_read_says_nothing_at_all(library, driver, function, name):
    """Wherever it is lost there are no values of it, and the reason is a word; the other device goes on."""
    first, second = driver.find_devices()
    library.gpus[0].fails[function] = name
    with pytest.raises(Unreadable, match=name):
        first.read()
    assert second.read()


@pytest.mark.parametrize("name", ["unknown", "irq_issue", "timeout", "memory", "in_use"])
@pytest.mark.parametrize(
    ("function", "metric"),
    [("nvmlDeviceGetMemoryInfo", "hw.gpu.memory.usage"), ("nvmlDeviceGetPowerUsage", "hw.power")],
)
def test_a_value_that_fails_costs_only_itself(library, driver, values, caplog, function, metric, name):
    """A GPU of which one value cannot be read, as on some clouds (SwanLab 773, aim 2420), has all others, and one line names the value."""
    device, _ = driver.find_devices()
    whole = {key[0] for key in values(device.read())}
    library.gpus[0].fails[function] = name
    for _ in range(2):
        assert metric in whole - {key[0] for key in values(device.read())}
    assert "hw.gpu.utilization" in {key[0] for key in values(device.read())}
    (line,) = [record.getMessage() for record in caplog.records]
    assert function in line
    assert name in line


def test_a_field_that_says_that_the_device_is_lost(library, driver, monkeypatch):
    """An error inside of an answer counts like one of the call."""
    device, _ = driver.find_devices()
    monkeypatch.setitem(library.gpus[0].fields, "NVML_FI_DEV_MEMORY_TEMP", 0)
    real = library.nvmlDeviceGetFieldValues

    def lost(handle, fieldIds):
        answers = real(handle, fieldIds)
        answers[0].nvmlReturn = library.NVML_ERROR_GPU_IS_LOST
        return answers

    library.nvmlDeviceGetFieldValues = lost
    with pytest.raises(Unreadable, match="gpu_is_lost"):
        device.read()


def test_a_device_that_is_lost_at_a_search_keeps_its_id_and_counts(library, driver, values):
    """It is the same device before, while and after it is lost; what it has counted goes on."""
    device = driver.find_devices()[1]
    device.read()
    gpu = library.gpus[1]
    gpu.millijoules += 1000
    device.read()
    driver.close()
    gpu.fails["*"] = "gpu_is_lost"
    lost = driver.find_devices()[1]
    assert (lost.id, lost.name) == (gpu.uuid, "1")
    with pytest.raises(Unreadable, match="gpu_is_lost"):
        lost.read()
    driver.close()
    gpu.fails.clear()
    gpu.millijoules += 2000
    assert values(driver.find_devices()[1].read())["hw.energy", gpu.uuid] == 3


def test_nothing_stays_open(library, driver):
    """A driver that is closed has freed its sets of events and has shut the library down as often as it was started."""
    driver.find_devices()
    assert (library.inits, library.open_sets) == (1, 2)
    driver.close()
    driver.close()
    assert (library.inits, library.open_sets) == (0, 0)


def test_a_driver_without_a_device_is_no_failure(library, driver):
    """A container that was given no GPU sees none, and nobody is told of an error."""
    library.started = False
    assert driver.find_devices() == []


"""What a counter says from a reset to the next."""


@pytest.mark.full
def test_without_a_driver_nothing_is_imported():
    """A process on a node without a GPU does not load the library and says nothing."""
    code = (
        "import sys; from verl_otel.integrations.gpu import nvml; nvml.PRESENT.clear();"
        "assert nvml.find_driver() is None; assert 'pynvml' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_gpu_without_the_library_is_said_once(monkeypatch, tmp_path, caplog):
    """Whoever has a GPU and not the extra is told what to install."""
    monkeypatch.setattr("verl_otel.integrations.gpu.nvml.PRESENT", [str(tmp_path)])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_driver() is None
    assert find_driver() is None
    assert [record.getMessage() for record in caplog.records] == [
        "verl-otel: this node has NVIDIA GPUs, and nothing to read them with: pip install nvidia-ml-py"
    ]


def test_the_real_library_without_a_driver_finds_nothing(monkeypatch, tmp_path, caplog):
    """nvidia-ml-py on a machine that has no driver, as in a container that was given no GPU: no device, and no word."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    if any(map(os.path.exists, PRESENT)):
        pytest.skip("this machine has a driver")
    monkeypatch.setattr("verl_otel.integrations.gpu.nvml.PRESENT", [str(tmp_path)])
    found = find_driver()
    assert found.find_devices() == []
    found.close()
    assert not caplog.records
