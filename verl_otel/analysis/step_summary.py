# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The part of a step that depends only on its own trace and on the trajectories that it trained on, without verdicts and GPU time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from verl_otel.analysis.model import Segment, Step, Trajectory
from verl_otel.analysis.traces import critical_path, timeline
from verl_otel.analysis.traces.clocks import Clock
from verl_otel.analysis.traces.tree import Node
from verl_otel.analysis.verdicts import own_workers, stragglers
from verl_otel.analysis.verdicts.engine import Findings, examine
from verl_otel.analysis.verdicts.what_if import find_savings


class StepSummary(NamedTuple):
    """A step before it is compared with other steps."""

    step: Step
    """The step, without verdicts, GPU time, cost and its slowest trajectories."""
    findings: Findings
    spans: int = 0
    """Number of spans of its trace."""


class ClockUncertainty(NamedTuple):
    """The uncertainty of the clocks of a run's hosts."""

    clocks: Mapping[str, Clock] = {}
    """By host; empty where there is only one."""
    hosts: Mapping[str, str] = {}
    """Host of each process, by its instance."""

    def find(self, path: Iterable[Segment]) -> float:
        """Return by how many seconds the clocks on a path may differ: infinite where one of them has no bound."""
        if not self.clocks:
            return 0.0
        passed = {self.hosts.get(segment.instance, "") for segment in path}
        uncertainties = (self.clocks[host].uncertainty for host in passed if host in self.clocks)
        return max(uncertainties, default=0.0)


def summarise_step(
    root: Node,
    trajectories: Mapping[int, Trajectory],
    clock_uncertainty: ClockUncertainty,
    filtered: Mapping[int, Trajectory] = MappingProxyType({}),
) -> StepSummary:
    """Summarise one step without its neighbours.

    Args:
        root: The root span of the step.
        trajectories: The trajectories that it trained on, by trace id, as far as they were found.
        clock_uncertainty: How far clocks may be apart.
        filtered: Those that it waited for, too, and did not train on, as far as they were found.
    """
    members = tuple(trajectories.values())
    awaited = {**trajectories, **filtered}
    path = critical_path.of_step(root, awaited, tuple(awaited))
    uncertainty = clock_uncertainty.find(path)
    step = timeline.build_step(root, trajectories)._replace(
        path=path,
        groups=critical_path.group(path),
        stragglers=(*stragglers.find(root, uncertainty=uncertainty), *own_workers.find(root, uncertainty=uncertainty)),
        blind_spots=own_workers.find_blind_spots(root),
        uncertainty=uncertainty,
    )
    step = step._replace(savings=find_savings(step, members, root))
    return StepSummary(step, examine(step, root, members))
