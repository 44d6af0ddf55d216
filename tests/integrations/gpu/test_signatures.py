# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The made-up drivers have the functions of the real ones, and what was recorded of these is still so where they are installed."""

import ast
import importlib.util
import inspect
import json
import re
from pathlib import Path

import pytest

from tests.integrations.gpu import fake_amd, fake_nvml
from verl_otel.integrations.gpu import amd, nvml

HERE = Path(__file__).parent
NVML = json.loads((HERE / "nvml.json").read_text("utf-8"))
AMD = json.loads((HERE / "amdsmi.json").read_text("utf-8"))


def describe(function):
    """Names of what a function takes, with ``=`` behind those that have a default."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name + ("=" if each.default is not each.empty else "") for each in parameters]


def used(pattern, *modules):
    """Names that our modules take from a library."""
    return {name for module in modules for name in re.findall(pattern, inspect.getsource(module))}


def test_the_fake_of_nvml_has_the_signatures_of_nvml():
    """Every recorded function is there with the same parameters, and no other."""
    fake = fake_nvml.FakeNvml()
    made = {name: describe(getattr(fake, name)) for name in vars(fake_nvml.FakeNvml) if name.startswith("nvml")}
    assert made == NVML["functions"]


def test_nothing_is_used_of_nvml_that_is_not_recorded():
    """A function or constant that our code names is one of the recorded ones."""
    names = used(r"\b(nvml[A-Z][A-Za-z_0-9]+|NVML_FI_\w+)\b", nvml)
    assert names > {"nvmlInit", "nvmlDeviceGetUUID"}
    old = {"nvmlClocksThrottleReason", "nvmlClocksEventReason", "nvmlReturn"}
    assert names - old <= set(NVML["functions"]) | set(NVML["constants"])
    assert {f"NVML_ERROR_{name}" for name in nvml._ABSENT} <= set(NVML["constants"])
    assert {f"nvmlClocksEventReason{name}" for name in nvml._THROTTLING.values()} <= set(NVML["constants"])


def test_the_fake_of_amdsmi_has_the_signatures_of_amdsmi():
    """Every recorded function is there with the same parameters, and our code uses no other."""
    fake = fake_amd.FakeAmd()
    made = {name: describe(getattr(fake, name)) for name in vars(fake_amd.FakeAmd) if name.startswith("amdsmi_")}
    assert made == AMD["functions"]
    assert used(r"\b(amdsmi_[a-z_]+)\b", amd) - {"amdsmi_wrapper"} == set(AMD["functions"])
    assert {f"AMDSMI_STATUS_{name}" for name in amd._ABSENT} <= set(AMD["constants"])


ADDED_LATER = {
    "NVML_ERROR_GPU_NOT_FOUND", "NVML_ERROR_INVALID_STATE", "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED", "usVal",
}  # fmt: skip
"""What the oldest nvidia-ml-py that is supported does not have."""


def test_what_was_recorded_of_nvml_is_so():
    """The installed nvidia-ml-py, which imports without a driver, has these functions, constants and structures."""
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    tree = ast.parse(Path(pynvml.__file__).read_text("utf-8"))
    real = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, parameters in NVML["functions"].items():
        names, defaults = [each.arg for each in real[name].args], len(real[name].defaults)
        plain = len(names) - defaults
        assert [each + "=" * (index >= plain) for index, each in enumerate(names)] == parameters, name
    known = {name: value for name, value in NVML["constants"].items() if hasattr(pynvml, name)}
    assert {name: getattr(pynvml, name) for name in known} == known
    assert NVML["constants"].keys() - known <= ADDED_LATER
    for name, fields in NVML["structures"].items():
        real_fields = [field[0] for field in getattr(pynvml, name)._fields_]
        assert [field for field in fields if field in real_fields or field not in ADDED_LATER] == real_fields, name


def test_what_was_recorded_of_amdsmi_is_so():
    """The installed amdsmi, which cannot be imported without ROCm, has these functions."""
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("amdsmi is not installed")
    source = Path(spec.submodule_search_locations[0]) / "amdsmi_interface.py"
    real = {
        node.name: node.args for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)
    }
    for name, parameters in AMD["functions"].items():
        assert [each.arg for each in real[name].args] == [each.rstrip("=") for each in parameters], name


def test_the_structures_of_the_fake_have_the_real_members():
    """What the fake returns in place of a structure has members of the real one, and no other."""
    fake = fake_nvml.FakeNvml()
    fake.nvmlInit()
    gpu = fake.gpus[0]
    gpu.xids.append(79)
    events = fake.nvmlEventSetCreate()
    fake.nvmlDeviceRegisterEvents(gpu, fake.nvmlEventTypeXidCriticalError, events)
    made = {
        "c_nvmlMemory_t": fake.nvmlDeviceGetMemoryInfo(gpu),
        "c_nvmlUtilization_t": fake.nvmlDeviceGetUtilizationRates(gpu),
        "c_nvmlFieldValue_t": fake.nvmlDeviceGetFieldValues(gpu, [83])[0],
        "c_nvmlValue_t": fake.nvmlDeviceGetFieldValues(gpu, [83])[0].value,
        "c_nvmlEventData_t": fake.nvmlEventSetWait(events, 0),
    }
    for name, value in made.items():
        assert set(vars(value)) <= set(NVML["structures"][name]), name
