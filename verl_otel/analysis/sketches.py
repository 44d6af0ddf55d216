# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a step says by itself, from its own trace and the trajectories that it trained on; verdicts and GPU time take other steps, too."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from verl_otel.analysis import critical_path, stragglers, timeline
from verl_otel.analysis.clocks import Clock
from verl_otel.analysis.facts import Phase, Saving, Segment, Step, Straggler
from verl_otel.analysis.laggards import Lag, Late
from verl_otel.analysis.overruns import Overrun
from verl_otel.analysis.packing import Packed
from verl_otel.analysis.savings import Wait, find_savings
from verl_otel.analysis.tail import Findings, examine
from verl_otel.analysis.traces import Node
from verl_otel.analysis.typical import Yardstick


class Sketch(NamedTuple):
    """A step before it is compared with others."""

    step: Step
    """Without verdicts, GPU time, cost and its slowest trajectories."""
    findings: Findings
    spans: int = 0
    """Of how many spans its trace was."""


class Doubt(NamedTuple):
    """How sure the clocks of a run's hosts are."""

    clocks: Mapping[str, Clock] = {}
    """By host; empty where there is only one."""
    hosts: Mapping[str, str] = {}
    """Host of each process, by its instance."""

    def find(self, path: Iterable[Segment]) -> float:
        """Return by how many seconds the clocks of the hosts on a path may be apart: infinite where nothing bounds one of them."""
        if not self.clocks:
            return 0.0
        passed = {self.hosts.get(segment.instance, "") for segment in path}
        known = (self.clocks[host].uncertainty for host in passed if host in self.clocks)
        return max(known, default=0.0)


def sketch(root: Node, known: Mapping[int, Packed], doubt: Doubt) -> Sketch:
    """Return what a step says by itself.

    Args:
        root: The step, with all below it.
        known: The trajectories that it trained on, by trace id, as far as they are known.
        doubt: How far clocks may be apart.
    """
    consumed = timeline.find_consumed(root)
    members = tuple(known.values())
    path = critical_path.of_step(root, known, consumed)
    uncertainty = doubt.find(path)
    step = timeline.build_step(root, known)._replace(
        path=path,
        groups=critical_path.group(path),
        stragglers=stragglers.find(root, uncertainty=uncertainty),
        blind_spots=stragglers.find_blind_spots(root),
        uncertainty=uncertainty,
    )
    step = step._replace(savings=find_savings(step, members, root))
    return Sketch(step, examine(step, root, members))


def pack_sketches(sketches: Iterable[Sketch]) -> bytes:
    """Return sketches as bytes: plain tuples through marshal, as `packing` has it for trajectories."""
    return marshal.dumps([(_strip(each.step), _strip_findings(each.findings), each.spans) for each in sketches])


def unpack_sketches(packed: bytes) -> list[Sketch]:
    """Return the sketches that were packed."""
    found = []
    for step, (lags, overruns, calls, usual), spans in marshal.loads(packed):  # noqa: S302 - made by our own worker process
        findings = Findings(
            tuple(_make_lag(*lag) for lag in lags),
            tuple(map(Overrun._make, overruns)),
            calls,
            {key: Yardstick._make(each) for key, each in usual},
        )
        made = Step._make(step)
        found.append(Sketch(_map_parts(made, _PARTS), findings, spans))
    return found


_PARTS: Final = {
    "phases": Phase._make,
    "path": Segment._make,
    "savings": Saving._make,
    "stragglers": Straggler._make,
}
"""What a sketched step is made of that is a named tuple itself."""


def _strip(step: Step) -> tuple[Any, ...]:
    return tuple(_map_parts(step, dict.fromkeys(_PARTS, tuple)))


def _map_parts(step: Step, makers: Mapping[str, Callable[[Any], Any]]) -> Step:
    parts: dict[str, Any] = {name: tuple(map(make, getattr(step, name))) for name, make in makers.items()}
    return step._replace(**parts)


def _strip_findings(findings: Findings) -> tuple[Any, ...]:
    lags = [
        (
            tuple(lag._replace(wait=(), here=None, elsewhere=None, late=())),  # type: ignore[arg-type]  # they come behind
            tuple(lag.wait),
            *(None if each is None else tuple(each) for each in (lag.here, lag.elsewhere)),
            list(map(tuple, lag.late)),
        )
        for lag in findings.lags
    ]
    usual = [(key, tuple(each)) for key, each in findings.usual.items()]
    return lags, list(map(tuple, findings.overruns)), dict(findings.calls), usual


def _make_lag(values: Any, wait: Any, here: Any, elsewhere: Any, late: Any) -> Lag:
    return Lag._make(values)._replace(
        wait=Wait._make(wait),
        here=None if here is None else Yardstick._make(here),
        elsewhere=None if elsewhere is None else Yardstick._make(elsewhere),
        late=tuple(map(Late._make, late)),
    )
