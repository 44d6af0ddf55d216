# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: units, values that a model does not have, errors."""

import sys

import pytest

from tests.integrations.gpu.fake_amd import CONSTANTS, FakeAmd
from verl_otel.integrations.gpu.amd import AmdDriver, _load, find_driver
from verl_otel.integrations.gpu.device import Unreadable


@pytest.fixture
def amd():
    return FakeAmd(2)


def test_a_gpu_is_read_in_the_units_of_the_catalogue(amd, values):
    """Percent become shares, MiB bytes, MHz Hz, ticks Joule since the first reading."""
    first, second = AmdDriver(amd).find_devices()
    assert (first.name, second.name, first.model) == ("0", "1", "AMD Instinct MI300X")
    first.read()
    amd.gpus[0].energy["energy_accumulator"] += 2_000_000
    amd.gpus[0].ecc["correctable_count"] += 3
    found = values(first.read())
    identity = amd.gpus[0].uuid
    assert found == {
        ("hw.gpu.utilization", identity): 0.93,
        ("verl.gpu.memory.io.utilization", identity): 0.41,
        ("hw.gpu.memory.usage", identity): 64 * 1024**3,
        ("hw.gpu.memory.limit", identity): 196_592 * 1024**2,
        ("hw.power", identity): 694,
        ("hw.energy", identity): pytest.approx(30.6),
        ("hw.temperature", identity, "gpu"): 71,
        ("hw.temperature", identity, "memory"): 58,
        ("verl.gpu.clock", identity): 2.104e9,
        ("hw.errors", identity, "ecc_corrected"): 3,
        ("hw.errors", identity, "ecc_uncorrected"): 0,
    }


def test_what_a_model_does_not_have_is_left_out(amd, values):
    """Neither "N/A" nor an error that says "not supported" is a value, and neither makes the rest unreadable."""
    gpu = amd.gpus[0]
    gpu.activity |= {"gfx_activity": "N/A", "umc_activity": "N/A"}
    gpu.fails = {"amdsmi_get_energy_count": "not_supported", "amdsmi_get_gpu_total_ecc_count": "no_perm"}
    names = {key[0] for key in values(AmdDriver(amd).find_devices()[0].read())}
    assert names == {"hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.power", "hw.temperature", "verl.gpu.clock"}


def test_a_value_that_fails_costs_only_itself(amd, values):
    """A model of which one value cannot be read has all others."""
    amd.gpus[0].fails = {"amdsmi_get_power_info": "busy"}
    names = {key[0] for key in values(AmdDriver(amd).find_devices()[0].read())}
    assert "hw.power" not in names
    assert {"hw.gpu.utilization", "hw.gpu.memory.usage", "hw.temperature"} <= names


def test_a_driver_that_restarts_makes_the_device_unreadable(amd):
    """A device whose driver restarts says nothing, and why."""
    amd.gpus[0].fails = {"amdsmi_get_power_info": "amdgpu_restart_err"}
    with pytest.raises(Unreadable, match="amdgpu_restart_err"):
        AmdDriver(amd).find_devices()[0].read()


def test_a_device_that_is_lost_hides_no_other(values):
    """It keeps its number and its id, has no values but a reason, and is found again by a later search; an id that was never said is none."""
    amd = FakeAmd(8)
    driver = AmdDriver(amd)
    driver.find_devices()
    amd.gpus[2].fails = {"amdsmi_get_gpu_device_uuid": "amdgpu_restart_err"}
    found = driver.find_devices()
    assert [(each.id, each.name) for each in found] == [(gpu.uuid, str(n)) for n, gpu in enumerate(amd.gpus)]
    with pytest.raises(Unreadable, match="amdgpu_restart_err"):
        found[2].read()
    assert all(values(each.read())["hw.power", each.id] == 694 for each in found if each is not found[2])
    assert AmdDriver(amd).find_devices()[2].id == "number 2"
    amd.gpus[2].fails = {}
    assert values(driver.find_devices()[2].read())["hw.power", amd.gpus[2].uuid] == 694


def test_a_driver_that_does_not_answer_is_unreadable_as_a_whole(amd, monkeypatch):
    """Where the library cannot even say which devices there are, that is the reason."""

    def fail(flag=2):
        raise amd.AmdSmiLibraryException(CONSTANTS["AMDSMI_STATUS_AMDGPU_RESTART_ERR"])

    monkeypatch.setattr(amd, "amdsmi_init", fail)
    with pytest.raises(Unreadable, match="amdgpu_restart_err"):
        AmdDriver(amd).find_devices()


def test_the_library_is_shut_down_as_often_as_it_was_started(amd):
    """A driver that is closed, and one that is closed twice, leave nothing open."""
    driver = AmdDriver(amd)
    driver.find_devices()
    driver.close()
    driver.close()
    assert amd.inits == 0


def test_without_the_driver_there_is_nothing(monkeypatch, capfd):
    """Where the kernel has no such device nothing is imported or said."""
    monkeypatch.setattr("verl_otel.integrations.gpu.amd.PRESENT", [])
    assert find_driver() is None
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A node with the driver, and with a module that prints when it is imported; whether its library is there is asked of the folder."""
    module = tmp_path / "amdsmi"
    module.mkdir()
    (module / "__init__.py").write_text("print('Unable to find it')\nraise KeyError('ROCM_HOME')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("verl_otel.integrations.gpu.amd.PRESENT", ["/"])
    for name in ("ROCM_PATH", "ROCM_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "rocm"))
    loaded = sys.modules.pop("amdsmi", None)
    _load.cache_clear()
    yield module
    _load.cache_clear()
    sys.modules.pop("amdsmi", None)
    if loaded is not None:
        sys.modules["amdsmi"] = loaded


def test_without_its_library_the_module_is_not_imported(node, capfd, caplog):
    """Nothing is printed, and one line says why there are no values."""
    for _ in range(3):
        assert find_driver() is None
    assert capfd.readouterr() == ("", "")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "this node has AMD GPUs, and amdsmi of ROCm cannot be loaded: libamd_smi.so is not found"
    ]
