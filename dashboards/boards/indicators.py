# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The five core indicators of older guides, each with the band in which it is healthy.

Bands are the series ``verl:threshold``, which Prometheus records from the profile in use. Without rules, or where the profile has no band,
only the indicator is drawn.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from dashboards.parts import panels
from dashboards.parts.board import Make
from dashboards.parts.names import label, metric, scalar
from dashboards.parts.panels import Panel, Target
from dashboards.parts.queries import grouped, query

LOW: Final = "healthy from"
HIGH: Final = "healthy up to"
_ENDS: Final = {LOW: "low", HIGH: "high"}


def _draw(title: str, text: str, unit: str, indicator: Target, *ends: Target) -> Panel:
    """Return a panel of an indicator with its band."""
    panel = panels.timeseries(title, text, unit, indicator, *ends, width=8)
    line = [
        DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [6, 6]}),
        DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": "green"}),
    ]
    panel.override_by_regexp(f"/{LOW}$/", line)
    fill = [
        DynamicConfigValue(id_val="custom.fillBelowTo", value=LOW),
        DynamicConfigValue(id_val="custom.fillOpacity", value=8),
    ]
    return panel.override_by_regexp(f"/{HIGH}$/", [*line, *fill])


def _band(stem: str) -> list[Target]:
    """Return the ends of a band; those that are off are NaN and left out."""
    return [query(f'verl:threshold{{name="{stem}_{end}"}} > -Inf', text) for text, end in _ENDS.items()]


def _threshold(name: str, text: str) -> Target:
    return query(f'verl:threshold{{name="{name}"}} > -Inf', text)


def reward() -> Panel:
    """Is the mean reward where it should be?"""
    text = (
        "Mean reward of each step. It should rise and end within its band, which depends on the scale of the reward: the default profile has none. "
        "A reward of exactly 0, or one that scatters by more than half of its mean, is an alert of its own."
    )
    return _draw(
        "1: mean reward",
        text,
        "short",
        grouped("avg", label.RUN_ID, f"{metric.AVERAGE_REWARD}{{run}}"),
        *_band("reward_band"),
    )


def policy_kl() -> Panel:
    """Does the policy move at the right pace?"""
    text = (
        "KL between the policy before and after a step. Above the band steps are aggressive, below it the training hardly moves. With one update "
        "per batch it is 0 by definition. A fall in steps is normal where the KL coefficient adapts."
    )
    return _draw("2: policy KL", text, "short", query(f"{scalar('actor/ppo_kl')}{{run}}"), *_band("policy_kl_band"))


def policy_loss() -> Panel:
    """Is the policy loss sane?"""
    text = "Loss of the policy gradient. Its size depends on the advantages and on how tokens are averaged, so the default profile has no band."
    return _draw(
        "3: policy loss", text, "short", query(f"{scalar('actor/pg_loss')}{{run}}"), *_band("policy_loss_band")
    )


def response_length() -> Panel:
    """Are the responses neither cut off nor too short?"""
    text = (
        "Mean number of tokens of a response as a share of the configured bound. Far below 1 answers end early, close to 1 many are cut off. Which "
        "band is healthy depends on the task: the default profile has none."
    )
    bound = f'max by ({label.RUN_ID}) ({metric.LIMIT}{{run, {label.LIMIT}="response_tokens"}})'
    share = f"max by ({label.RUN_ID}) ({scalar('response_length/mean')}{{run}}) / on ({label.RUN_ID}) {bound}"
    return _draw("4: response length", text, "percentunit", query(share), *_band("response_band"))


def _used(aggregation: str, nvml: str, dcgm: str) -> Target:
    """Return a value of the GPUs that a run computes on: of NVML, or of DCGM's exporter where only that reads a GPU."""
    by_id = f'label_replace({dcgm}, "{label.HW_ID}", "$1", "UUID", "(.+)")'
    values = f"max by ({label.HW_ID}) ({nvml}) or max by ({label.HW_ID}) ({by_id})"
    owners = f"max by ({label.RUN_ID}, {label.HW_ID}) ({metric.GPU_OWNER}{{run}})"
    return grouped(aggregation, label.RUN_ID, f"{owners} * on ({label.HW_ID}) group_left () ({values})")


def gpu_use() -> Panel:
    """Are the GPUs used?"""
    text = (
        "Mean utilisation of the GPUs that a run computes on. Healthy is what GPUUnderused calls fair. Here the time in which the rollout waits is in it; "
        "the alert counts working time only. Where only DCGM's exporter reads a GPU, its value is taken."
    )
    used = _used("avg", metric.HW_GPU_UTILIZATION, "DCGM_FI_DEV_GPU_UTIL / 100")
    return _draw("5: GPU utilisation", text, "percentunit", used, _threshold("gpu_utilization_fair", LOW))


def gpu_memory() -> Panel:
    """Is there room left in the memory of the GPUs?"""
    text = "Largest share of the memory in use among the GPUs that a run computes on. An engine holds most of it from its start, by configuration."
    nvml = f"{metric.HW_GPU_MEMORY_USAGE} / ({metric.HW_GPU_MEMORY_LIMIT} > 0)"
    used = _used("max", nvml, "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)")
    return _draw("5: GPU memory", text, "percentunit", used, _threshold("gpu_memory", HIGH))


PANELS: Final[tuple[Make, ...]] = (reward, policy_kl, policy_loss, response_length, gpu_use, gpu_memory)
