# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs and hosts: what the hardware did, by the process that used it, and which phase was open meanwhile.

GPUs are read by one process of each node (NVML) or by the DCGM exporter, which knows no runs: both are joined with
``verl_gpu_owner``, the processes that compute on a GPU. Two processes that share a GPU show the same values.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards import hosts
from dashboards.parts import links, panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.bounds import find as find_bound
from dashboards.parts.panels import Panel, Target
from dashboards.parts.queries import grouped, part, plain, query

_BY_UUID: Final = 'label_replace({{__name__="{name}", __name__=~"$gpus"}}, "hw_id", "$1", "UUID", "(.+)")'
_BY_ID: Final = '{{__name__="{name}", __name__=~"$gpus"}}'
_JOINED: Final = "verl_gpu_owner{process} * on (hw_id) group_left () max by (hw_id) "
_OWNED: Final = "and on (hw_id) verl_gpu_owner{process}"
"""What keeps the GPUs of the chosen processes, where a join would find two owners of one."""
_UTILIZATION: Final = (
    (None, "red"), (find_bound("gpu_utilization_low"), "orange"), (find_bound("gpu_utilization_fair"), "green"),
)  # fmt: skip
_DUTIES: Final = {
    "actor_rollout_ref": "old_log_prob|ref|update_actor",
    "critic": "values|update_critic",
    "llm_server": "gen|generate_async",
}
"""Phases of the trainer in which GPUs of a role have work, as the alert GPUUnderused has them. In the others they wait by design."""


def _nvml(name: str, window: str = "") -> str:
    """Return a metric of NVML for each owner; a counter for a second, if there is a window."""
    selector = _BY_ID.format(name=name)
    return f"{_JOINED}(rate({selector}{window}))" if window else f"{_JOINED}({selector})"


def _dcgm(name: str) -> str:
    """Return a field of DCGM for each owner."""
    return f"{_JOINED}({_BY_UUID.format(name=name)})"


def _both(nvml: str, dcgm: str, legend: str = "{{instance}} {{hw_name}}") -> list[Target]:
    """Return the two queries of which the variable `gpus` lets one find something."""
    return [query(nvml, legend), query(dcgm, f"{legend} (DCGM)")]


_USE: Final = (_nvml("hw_gpu_utilization_ratio"), f"({_dcgm('DCGM_FI_DEV_GPU_UTIL')}) / 100")


def utilization() -> Panel:
    """Is each GPU used?"""
    text = (
        "Share of the last sample period in which something ran on the GPU, by the process that owns it. 100 % means that some kernel ran, "
        "not that the GPU was full: a small kernel counts like a big one. It falls in waits that are normal; see the panel beside it."
    )
    return panels.lines(
        "GPU utilisation, by rank", text, "percentunit", *_both(*_USE), width=12, low=0, high=1, steps=_UTILIZATION
    )


def while_working() -> Panel:
    """Is a GPU used while its role has work?"""
    text = (
        "Utilisation of each role, only while a phase of that role is open: an idle critic during the rollout is not counted. "
        "Below 50 % in its own phase there is something to win."
    )
    asked = []
    for said, use in zip(("", " (DCGM)"), _USE, strict=True):
        for roles, phases in _DUTIES.items():
            at_work = f'(sum by (verl_run_id) (verl_phase_active{{run, verl_phase=~"{phases}"}}) > 0)'
            of_role = use.replace("verl_gpu_owner{process}", f'verl_gpu_owner{{process, verl_role=~"{roles}"}}')
            mean = f"avg by (verl_run_id, verl_role) ({of_role})"
            asked.append(
                query(f"{mean} and on (verl_run_id) {at_work}", f"{{{{verl_run_id}}}} {{{{verl_role}}}}{said}")
            )
    title = "GPU utilisation while the role has work"
    return panels.lines(title, text, "percentunit", *asked, width=12, low=0, high=1, steps=_UTILIZATION)


def by_phase() -> Panel:
    """In which phase are GPUs idle?"""
    text = (
        "Mean utilisation of all GPUs of a run, by the phase that is open. A phase that is shorter than the sample period shows the values "
        "of its neighbours."
    )
    asked = []
    for said, use in zip(("", " (DCGM)"), _USE, strict=True):
        opened = "(max by (verl_run_id, verl_phase) (verl_phase_active{run}) > bool 0 == 1)"
        mean = f"avg by (verl_run_id) ({use})"
        asked.append(
            query(f"{opened} * on (verl_run_id) group_left () {mean}", f"{{{{verl_run_id}}}} {{{{verl_phase}}}}{said}")
        )
    link = links.to_board("steps", "Anatomy of the steps of this run")
    return panels.lines(
        "GPU utilisation, by open phase", text, "percentunit", *asked, width=12, low=0, high=1, links=[link]
    )


def ledger() -> Panel:
    """How much GPU time was lost?"""
    text = "Share of the GPU time that was not productive, by cause, as far as the trainer can know it. The whole is on the overview."
    whole = "sum by (verl_run_id) (rate(verl_gpu_time_seconds_total{run}[window]))"
    lost = 'sum by (verl_run_id, verl_gpu_cause) (rate(verl_gpu_time_seconds_total{run, verl_gpu_state!="productive"}[window]))'
    asked = query(part(lost, whole), "{{verl_run_id}} {{verl_gpu_cause}}")
    return panels.lines("GPU time lost, by cause", text, "percentunit", asked, width=12, low=0)


def memory() -> Panel:
    """How full is each GPU?"""
    text = "Memory of the whole GPU, whoever holds it: the engine's KV cache, the framework, others. Near the limit an allocation fails."
    used, limit = _nvml("hw_gpu_memory_usage_bytes"), _nvml("hw_gpu_memory_limit_bytes")
    asked = [
        *_both(used, f"({_dcgm('DCGM_FI_DEV_FB_USED')}) * 1048576"),
        query(limit, "{{instance}} {{hw_name}} limit"),
    ]
    return panels.lines("GPU memory", text, "bytes", *asked, low=0)


def allocator() -> Panel:
    """How much memory does the framework hold on each rank?"""
    text = (
        "What the framework's allocator holds (reserved) and what tensors occupy (used), for each process. Much reserved and little used "
        "is fragmentation. The engine's own memory is not in it."
    )
    names = {"verl_gpu_memory_used_bytes": "used", "verl_gpu_memory_reserved_bytes": "reserved"}
    asked = plain(names, "instance, device", "{process}")
    return panels.lines("Framework memory, by rank", text, "bytes", *asked, low=0)


def peak() -> Panel:
    """How near was the allocator to the limit?"""
    text = "The most that the framework held since its process began, as verl logs it: it never falls, and is rank 0's in most modes."
    asked = query("verl_gpu_memory_peak_bytes{run}", "{{verl_run_id}} {{verl_update_role}} {{verl_memory_type}}")
    return panels.lines("Framework memory, peak", text, "bytes", asked, low=0)


def power() -> Panel:
    """How much power does each GPU draw?"""
    text = "A better sign of work than utilisation: a waiting kernel draws little. The bound is that of the model, or one that an operator set."
    return panels.lines("Power", text, "watt", *_both(_nvml("hw_power_watts"), _dcgm("DCGM_FI_DEV_POWER_USAGE")), low=0)


def temperature() -> Panel:
    """How hot is each GPU?"""
    text = "Temperature of the chip and of its memory, whichever is higher. Where it throttles depends on the model: see throttling."
    asked = _both(_nvml("hw_temperature_celsius"), _dcgm("DCGM_FI_DEV_GPU_TEMP"))
    return panels.lines("Temperature", text, "celsius", *asked)


def throttling() -> Panel:
    """Is a GPU slowed down?"""
    text = (
        "Share of the time in which a GPU of the chosen processes ran slower than it could, by reason, and what slows it down now, for drivers "
        "that do not count. NVML only: DCGM counts it if it is told to."
    )
    spent = "sum by (hw_id, reason) (rate(verl_gpu_throttled_seconds_total[rate]))"
    now = "max by (hw_id, reason) (verl_gpu_throttling)"
    asked = [
        query(f"{each} {_OWNED}", f"{{{{hw_id}}}} {{{{reason}}}}{said}") for each, said in ((spent, ""), (now, " now"))
    ]
    return panels.lines("Throttled", text, "percentunit", *asked, low=0)


def errors() -> Panel:
    """Has a GPU errors?"""
    text = (
        "Errors in the window of GPUs of the chosen processes, by kind (XID, ECC, and so on). One corrected ECC error is nothing; an uncorrected "
        "one or an XID ends a training sooner or later. DCGM tells the number of the last XID, 0 for none."
    )
    counted = 'increase({__name__="hw_errors_total", __name__=~"$gpus", hw_type="gpu"}[window])'
    nvml = f"sum by (hw_id, error_type) ({counted}) {_OWNED}"
    asked = [
        query(nvml, "{{hw_id}} {{error_type}}"),
        query(_dcgm("DCGM_FI_DEV_XID_ERRORS"), "{{instance}} last XID (DCGM)"),
    ]
    return panels.lines("GPU errors", text, "short", *asked, low=0)


def energy() -> Panel:
    """How much energy did the run use?"""
    text = "Power of all GPUs of a run, from their energy counters: what a meter would show, without hosts and cooling."
    owner = "max by (hw_id, verl_run_id) (verl_gpu_owner{process})"
    nvml = 'max by (hw_id) (rate({__name__="hw_energy_joules_total", __name__=~"$gpus"}[rate]))'
    counted = 'rate({__name__="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", __name__=~"$gpus"}[rate])'
    dcgm = f'max by (hw_id) (label_replace({counted}, "hw_id", "$1", "UUID", "(.+)")) / 1000'
    asked = [
        query(f"sum by (verl_run_id) ({owner} * on (hw_id) group_left () {each})", f"{{{{verl_run_id}}}}{said}")
        for each, said in ((nvml, ""), (dcgm, " (DCGM)"))
    ]
    return panels.lines("Power of all GPUs", text, "watt", *asked, low=0)


def clock() -> Panel:
    """How fast does each GPU run?"""
    text = "Clock of the multiprocessors. It falls when there is no work, and when the GPU is too hot or draws too much: see throttling."
    asked = _both(_nvml("verl_gpu_clock_hertz"), f"({_dcgm('DCGM_FI_DEV_SM_CLOCK')}) * 1000000")
    return panels.lines("Clock", text, "hertz", *asked, low=0)


def links_io() -> Panel:
    """How much goes over NVLink?"""
    text = "Bytes for a second over all NVLinks of a GPU, without protocol. Empty where the GPU has none or the driver does not count."
    asked = query(_nvml("verl_gpu_link_io_bytes_total", "[rate]"), "{{instance}} {{hw_name}}")
    return panels.lines("NVLink", text, "Bps", asked, low=0)


def unreadable() -> Panel:
    """Could a GPU not be read?"""
    text = "Collections in which a GPU could not be read, by reason. Its other curves have gaps there: that is not idleness."
    asked = grouped("sum", "verl_run_id, hw_id, reason", "increase(verl_gpu_unreadable_total{run}[window])")
    return panels.lines("GPUs that could not be read", text, "short", asked, low=0)


BOARD: Final = Board(
    name="gpus",
    title="verl / GPU and hosts",
    text="What the hardware did, by the process that used it, and which phase was open meanwhile.",
    rows=(
        Row("Use", (utilization, while_working, by_phase, ledger)),
        Row("Memory", (memory, allocator, peak)),
        Row("Health", (power, temperature, throttling, errors, energy, clock, links_io, unreadable)),
        Row("Hosts", hosts.PANELS),
    ),
    variables=(
        variables.data_source,
        *variables.RUNS,
        variables.role,
        variables.instance,
        variables.gpu_source,
        variables.window,
    ),
)
