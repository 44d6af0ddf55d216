# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs and hosts: what the hardware did, by the process that used it, and which phase was open meanwhile.

GPUs are read by one process of each node (NVML) or by the DCGM exporter, whose series have no run: both are joined with
``verl_gpu_owner``, the processes that compute on a GPU. Two processes that share a GPU show the same values.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards import hosts
from dashboards.parts import links, panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.names import label, legend, metric
from dashboards.parts.panels import Panel, Target
from dashboards.parts.queries import grouped, part, plain, query
from dashboards.parts.thresholds import find_threshold

_BY_UUID: Final = (
    f'label_replace({{{{__name__="{{name}}", __name__=~"$gpus"}}}}, "{label.HW_ID}", "$1", "UUID", "(.+)")'
)
_BY_ID: Final = '{{__name__="{name}", __name__=~"$gpus"}}'
_JOINED: Final = f"{metric.GPU_OWNER}{{process}} * on ({label.HW_ID}) group_left () max by ({label.HW_ID}) "
_OWNED: Final = f"and on ({label.HW_ID}) {metric.GPU_OWNER}{{process}}"
"""What keeps the GPUs of the chosen processes, where a join would find two owners of one."""
_UTILIZATION: Final = (
    (None, "red"), (find_threshold("gpu_utilization_low"), "orange"), (find_threshold("gpu_utilization_fair"), "green"),
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


def _both(nvml: str, dcgm: str) -> list[Target]:
    """Return two queries, of which the variable `gpus` makes one return series."""
    name = f"{{{{instance}}}} {legend.HW_NAME}"
    return [query(nvml, name), query(dcgm, f"{name} (DCGM)")]


_USE: Final = (_nvml(metric.HW_GPU_UTILIZATION), f"({_dcgm('DCGM_FI_DEV_GPU_UTIL')}) / 100")


def utilization() -> Panel:
    """Is each GPU used?"""
    text = (
        "Share of the last sample period in which something ran on the GPU, by the process that owns it. 100 % means that some kernel ran, "
        "not that the GPU was full: a small kernel counts like a big one. It falls in waits that are normal; see the panel beside it."
    )
    return panels.timeseries(
        "GPU utilisation, by rank", text, "percentunit", *_both(*_USE), width=12, low=0, high=1, steps=_UTILIZATION
    )


def while_working() -> Panel:
    """Is a GPU used while its role has work?"""
    text = (
        "Utilisation of each role, only while a phase of that role is open: an idle critic during the rollout is not counted. "
        "Below 50 % in its own phase there is something to win."
    )
    targets = []
    for suffix, use in zip(("", " (DCGM)"), _USE, strict=True):
        for roles, phases in _DUTIES.items():
            at_work = f'(sum by ({label.RUN_ID}) ({metric.PHASE_ACTIVE}{{run, {label.PHASE}=~"{phases}"}}) > 0)'
            of_role = use.replace(
                f"{metric.GPU_OWNER}{{process}}", f'{metric.GPU_OWNER}{{process, {label.ROLE}=~"{roles}"}}'
            )
            mean = f"avg by ({label.RUN_ID}, {label.ROLE}) ({of_role})"
            targets.append(query(f"{mean} and on ({label.RUN_ID}) {at_work}", f"{legend.RUN_ID} {legend.ROLE}{suffix}"))
    title = "GPU utilisation while the role has work"
    return panels.timeseries(title, text, "percentunit", *targets, width=12, low=0, high=1, steps=_UTILIZATION)


def by_phase() -> Panel:
    """In which phase are GPUs idle?"""
    text = (
        "Mean utilisation of all GPUs of a run, by the phase that is open. A phase that is shorter than the sample period shows the values "
        "of its neighbours."
    )
    targets = []
    for suffix, use in zip(("", " (DCGM)"), _USE, strict=True):
        opened = f"(max by ({label.RUN_ID}, {label.PHASE}) ({metric.PHASE_ACTIVE}{{run}}) > bool 0 == 1)"
        mean = f"avg by ({label.RUN_ID}) ({use})"
        targets.append(
            query(f"{opened} * on ({label.RUN_ID}) group_left () {mean}", f"{legend.RUN_ID} {legend.PHASE}{suffix}")
        )
    link = links.to_board("steps", "Anatomy of the steps of this run")
    return panels.timeseries(
        "GPU utilisation, by open phase", text, "percentunit", *targets, width=12, low=0, high=1, links=[link]
    )


def memory_io() -> Panel:
    """Is the memory of each GPU busy?"""
    text = (
        "Share of the last sample period in which the GPU's memory was read or written, by the process that owns it. High while utilisation is "
        "high too: the work is bound by memory bandwidth, as generation is. How much of the memory is in use is a row below."
    )
    dcgm = f"({_dcgm('DCGM_FI_DEV_MEM_COPY_UTIL')}) / 100"
    targets = _both(_nvml(metric.GPU_MEMORY_IO_UTILIZATION), dcgm)
    return panels.timeseries("GPU memory, reads and writes", text, "percentunit", *targets, low=0, high=1)


def ledger() -> Panel:
    """How much GPU time was lost?"""
    text = "Share of the GPU time that was not productive, by cause, as far as the trainer can know it. The whole is on the overview."
    whole = f"sum by ({label.RUN_ID}) (rate({metric.GPU_TIME}{{run}}[window]))"
    lost = f'sum by ({label.RUN_ID}, {label.GPU_CAUSE}) (rate({metric.GPU_TIME}{{run, {label.GPU_STATE}!="productive"}}[window]))'
    target = query(part(lost, whole), f"{legend.RUN_ID} {legend.GPU_CAUSE}")
    return panels.timeseries("GPU time lost, by cause", text, "percentunit", target, width=12, low=0)


def sides() -> Panel:
    """Which side of an asynchronous training is short of GPUs?"""
    text = (
        "Share of the last step that the GPUs of one side waited for the other: the trainer's for samples of open trajectories, those of the "
        "rollouts for the trainer. High for the trainer: give the rollouts GPUs, or more trajectories at a time; high for the rollouts: give the "
        "trainer GPUs, or allow older samples. High for both: the trainer waited and no trajectory was open; submit more ahead, more GPUs do "
        "not help. Empty where both share their GPUs."
    )
    target = query(f"{metric.GPU_WAITING_SHARE}{{run}}", f"{legend.RUN_ID} {legend.GPU_SIDE}")
    return panels.timeseries("Wait for the other side", text, "percentunit", target, width=12, low=0, high=1)


def memory() -> Panel:
    """How full is each GPU?"""
    text = (
        "Memory of the whole GPU, of all processes: the engine's KV cache, the framework, others, and what an engine keeps while it sleeps. "
        "Near the limit an allocation fails."
    )
    used, limit = _nvml(metric.HW_GPU_MEMORY_USAGE), _nvml(metric.HW_GPU_MEMORY_LIMIT)
    targets = [
        *_both(used, f"({_dcgm('DCGM_FI_DEV_FB_USED')}) * 1048576"),
        query(limit, f"{{{{instance}}}} {legend.HW_NAME} limit"),
        query(f"{metric.ENGINE_MEMORY_ASLEEP}{{run}}", f"{{{{instance}}}} {legend.HW_ID} kept by a sleeping engine"),
    ]
    return panels.timeseries("GPU memory", text, "bytes", *targets, low=0)


def allocator() -> Panel:
    """How much memory does the framework hold on each rank?"""
    text = (
        "What the framework's allocator holds (reserved) and what tensors occupy (used), for each process. Much reserved and little used "
        "is fragmentation. The engine's own memory is not in it."
    )
    names = {metric.GPU_MEMORY_USED: "used", metric.GPU_MEMORY_RESERVED: "reserved"}
    targets = plain(names, "instance, device", "{process}")
    return panels.timeseries("Framework memory, by rank", text, "bytes", *targets, low=0)


def peak() -> Panel:
    """How near was the allocator to the limit?"""
    text = "The most that the framework held since its process began, as verl logs it: it never falls, and is rank 0's in most modes."
    target = query(f"{metric.GPU_MEMORY_PEAK}{{run}}", f"{legend.RUN_ID} {legend.UPDATE_ROLE} {legend.MEMORY_TYPE}")
    return panels.timeseries("Framework memory, peak", text, "bytes", target, low=0)


def power() -> Panel:
    """How much power does each GPU draw?"""
    text = "A better sign of work than utilisation: a waiting kernel draws little. The bound is that of the model, or one that an operator set."
    return panels.timeseries(
        "Power", text, "watt", *_both(_nvml(metric.HW_POWER), _dcgm("DCGM_FI_DEV_POWER_USAGE")), low=0
    )


def temperature() -> Panel:
    """How hot is each GPU?"""
    text = "Temperature of the chip and of its memory, whichever is higher. Where it throttles depends on the model: see throttling."
    targets = _both(_nvml(metric.HW_TEMPERATURE), _dcgm("DCGM_FI_DEV_GPU_TEMP"))
    return panels.timeseries("Temperature", text, "celsius", *targets)


def throttling() -> Panel:
    """Is a GPU slowed down?"""
    text = (
        "Share of the time in which a GPU of the chosen processes ran slower than it could, by reason, and what slows it down now, for drivers "
        "that do not count. NVML only: DCGM counts it if it is configured to."
    )
    spent = f"sum by ({label.HW_ID}, reason) (rate({metric.GPU_THROTTLED}[rate]))"
    now = f"max by ({label.HW_ID}, reason) ({metric.GPU_THROTTLING})"
    targets = [
        query(f"{expression} {_OWNED}", f"{legend.HW_ID} {{{{reason}}}}{suffix}")
        for expression, suffix in ((spent, ""), (now, " now"))
    ]
    return panels.timeseries("Throttled", text, "percentunit", *targets, low=0)


def errors() -> Panel:
    """Has a GPU errors?"""
    text = (
        "Errors in the window of GPUs of the chosen processes, by kind (XID, ECC, and so on). One corrected ECC error is nothing; an uncorrected "
        "one or an XID ends a training sooner or later. DCGM tells the number of the last XID, 0 for none."
    )
    counted = f'increase({{__name__="{metric.HW_ERRORS}", __name__=~"$gpus", {label.HW_TYPE}="gpu"}}[window])'
    nvml = f"sum by ({label.HW_ID}, {label.ERROR_TYPE}) ({counted}) {_OWNED}"
    targets = [
        query(nvml, f"{legend.HW_ID} {legend.ERROR_TYPE}"),
        query(_dcgm("DCGM_FI_DEV_XID_ERRORS"), "{{instance}} last XID (DCGM)"),
    ]
    return panels.timeseries("GPU errors", text, "short", *targets, low=0)


def energy() -> Panel:
    """How much energy did the run use?"""
    text = "Power of all GPUs of a run, from their energy counters: what a meter would show, without hosts and cooling."
    owner = f"max by ({label.HW_ID}, {label.RUN_ID}) ({metric.GPU_OWNER}{{process}})"
    nvml = f'max by ({label.HW_ID}) (rate({{__name__="{metric.HW_ENERGY}", __name__=~"$gpus"}}[rate]))'
    counted = 'rate({__name__="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", __name__=~"$gpus"}[rate])'
    dcgm = f'max by ({label.HW_ID}) (label_replace({counted}, "{label.HW_ID}", "$1", "UUID", "(.+)")) / 1000'
    targets = [
        query(
            f"sum by ({label.RUN_ID}) ({owner} * on ({label.HW_ID}) group_left () {expression})",
            f"{legend.RUN_ID}{suffix}",
        )
        for expression, suffix in ((nvml, ""), (dcgm, " (DCGM)"))
    ]
    return panels.timeseries("Power of all GPUs", text, "watt", *targets, low=0)


def clock() -> Panel:
    """How fast does each GPU run?"""
    text = "Clock of the multiprocessors. It falls when there is no work, and when the GPU is too hot or draws too much: see throttling."
    targets = _both(_nvml(metric.GPU_CLOCK), f"({_dcgm('DCGM_FI_DEV_SM_CLOCK')}) * 1000000")
    return panels.timeseries("Clock", text, "hertz", *targets, low=0)


def links_io() -> Panel:
    """How much goes over NVLink?"""
    text = "Bytes for a second over all NVLinks of a GPU, without protocol. Empty where the GPU has none or the driver does not count."
    target = query(_nvml(metric.GPU_LINK_IO, "[rate]"), f"{{{{instance}}}} {legend.HW_NAME}")
    return panels.timeseries("NVLink", text, "Bps", target, low=0)


def unreadable() -> Panel:
    """Could a GPU not be read?"""
    text = "Collections in which a GPU could not be read, by reason. Its other curves have gaps there: that is not idleness."
    target = grouped(
        "sum", f"{label.RUN_ID}, {label.HW_ID}, reason", f"increase({metric.GPU_UNREADABLE}{{run}}[window])"
    )
    return panels.timeseries("GPUs that could not be read", text, "short", target, low=0)


BOARD: Final = Board(
    name="gpus",
    title="verl / GPU and hosts",
    text="What the hardware did, by the process that used it, and which phase was open meanwhile.",
    rows=(
        Row("Use", (utilization, while_working, by_phase, memory_io, ledger, sides)),
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
