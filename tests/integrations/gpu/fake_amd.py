# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""AMD SMI without a GPU: the functions of ``amdsmi`` that are used, as ``amdsmi.json`` has recorded them."""

import json
from pathlib import Path
from types import SimpleNamespace

RECORDED = json.loads(Path(__file__).with_name("amdsmi.json").read_text("utf-8"))
CONSTANTS = RECORDED["constants"]


class AmdSmiLibraryException(Exception):  # noqa: N818 - its real name
    def __init__(self, err_code):
        super().__init__(err_code)
        self.err_code = abs(err_code)


class FakeGpu:
    """One GPU: what each function says, in the form of the API reference for an MI300X."""

    def __init__(self, number):
        self.uuid = f"{number:02x}ff74a1-0000-1000-80db-ddaad90bea68"
        self.activity = {"gfx_activity": 93, "umc_activity": 41, "mm_activity": "N/A"}
        self.vram = {"vram_total": 196_592, "vram_used": 65_536}
        self.power = {
            "socket_power": 690, "current_socket_power": 694, "average_socket_power": "N/A", "gfx_voltage": 0,
            "soc_voltage": 0, "mem_voltage": 0, "power_limit": 750_000_000,
        }  # fmt: skip
        self.energy = {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1}
        self.heat = {CONSTANTS["AMDSMI_TEMPERATURE_TYPE_HOTSPOT"]: 71, CONSTANTS["AMDSMI_TEMPERATURE_TYPE_VRAM"]: 58}
        self.clock = {"clk": 2104, "min_clk": 132, "max_clk": 2100, "clk_locked": False, "clk_deep_sleep": 0}
        self.ecc = {"correctable_count": 2, "uncorrectable_count": 0, "deferred_count": 0}
        self.fails = {}


class FakeAmd:
    """The module."""

    def __init__(self, count=1):
        self.AmdSmiLibraryException = AmdSmiLibraryException
        self.amdsmi_wrapper = SimpleNamespace(**CONSTANTS)
        self.AmdSmiTemperatureType = SimpleNamespace(
            HOTSPOT=CONSTANTS["AMDSMI_TEMPERATURE_TYPE_HOTSPOT"], VRAM=CONSTANTS["AMDSMI_TEMPERATURE_TYPE_VRAM"]
        )
        self.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=CONSTANTS["AMDSMI_TEMP_CURRENT"])
        self.AmdSmiClkType = SimpleNamespace(GFX=CONSTANTS["AMDSMI_CLK_TYPE_GFX"])
        self.gpus = [FakeGpu(number) for number in range(count)]
        self.inits = 0

    def enter(self, function, gpu):
        name = gpu.fails.get(function)
        if name:
            raise AmdSmiLibraryException(CONSTANTS[f"AMDSMI_STATUS_{name.upper()}"])

    def amdsmi_init(self, flag=2):
        self.inits += 1

    def amdsmi_shut_down(self):
        self.inits -= 1

    def amdsmi_get_processor_handles(self):
        return list(self.gpus)

    def amdsmi_get_gpu_device_uuid(self, processor_handle):
        self.enter("amdsmi_get_gpu_device_uuid", processor_handle)
        return processor_handle.uuid

    def amdsmi_get_gpu_asic_info(self, processor_handle):
        return {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002"}

    def amdsmi_get_gpu_activity(self, processor_handle):
        self.enter("amdsmi_get_gpu_activity", processor_handle)
        return processor_handle.activity

    def amdsmi_get_gpu_vram_usage(self, processor_handle):
        self.enter("amdsmi_get_gpu_vram_usage", processor_handle)
        return processor_handle.vram

    def amdsmi_get_power_info(self, processor_handle):
        self.enter("amdsmi_get_power_info", processor_handle)
        return processor_handle.power

    def amdsmi_get_energy_count(self, processor_handle):
        self.enter("amdsmi_get_energy_count", processor_handle)
        return processor_handle.energy

    def amdsmi_get_temp_metric(self, processor_handle, sensor_type, metric):
        self.enter("amdsmi_get_temp_metric", processor_handle)
        return processor_handle.heat[sensor_type]

    def amdsmi_get_clock_info(self, processor_handle, clock_type):
        self.enter("amdsmi_get_clock_info", processor_handle)
        return processor_handle.clock

    def amdsmi_get_gpu_total_ecc_count(self, processor_handle):
        self.enter("amdsmi_get_gpu_total_ecc_count", processor_handle)
        return processor_handle.ecc
