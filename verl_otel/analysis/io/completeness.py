# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Finds what is missing or unfinished in the files of a run: processes, ranks, nodes, the last second, dead processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from verl_otel._internal.printable import counted
from verl_otel.analysis.io.run_files import read_count
from verl_otel.analysis.model import Completeness, OpenSpan, Process, UnfinishedProcess
from verl_otel.analysis.traces.span_names import CALL_PREFIX, GENERATE, TRAJECTORY, WORKER_PREFIX
from verl_otel.analysis.traces.timeline import read_whole
from verl_otel.analysis.traces.tree import Node, Trace
from verl_otel.model import SAMPLED
from verl_otel.semconv import attributes as attr

SILENT_SECONDS: Final = 12.0
"""A process with open work writes its open-span file at least every ten seconds; one that is silent for longer while others write is
dead."""
_LLM_SERVER: Final = "llm_server"
_OPERATIONS: Final = ("chat", "text_completion")
"""Operation names of LLM calls."""


class Tally(msgspec.Struct):
    """Counts what is missing in traces."""

    engine: str = ""
    """Name of the run's own LLM engine; calls to other providers have no server side that could be missing."""
    orphans: int = 0
    ranks: Counter[tuple[str, int, int]] = msgspec.field(default_factory=Counter)
    """Number of calls by group, answering ranks and expected ranks."""
    without_step: int = 0
    """Trajectories that no step has submitted or taken, and that name none."""
    trajectories: int = 0
    not_kept: int = 0
    """Trajectories of which only the root span was kept."""
    calls: int = 0
    calls_without_server: int = 0

    def add(self, trace: Trace) -> None:
        """Count what is missing in a trace. OpenSpan spans are part of it, and nothing below them is missing."""
        self.orphans += trace.orphans
        whole = [bool(node.span.flags & SAMPLED) for node in trace.roots if node.span.name == TRAJECTORY]
        self.trajectories += len(whole)
        self.not_kept += whole.count(False)
        for call in trace.calls:
            if attr.OPEN_AGE not in call.span.attributes:
                self._add_call(call)

    def _add_call(self, call: Node) -> None:
        span, values, children = call.span, call.span.attributes, call.children
        if span.name.startswith(CALL_PREFIX):
            expected = read_whole(values.get(attr.WORLD_SIZE)) or 0
            answered = sum(child.span.name.startswith(WORKER_PREFIX) for child in children)
            if answered < expected:
                self.ranks[(str(values.get(attr.WORKER_GROUP, "workers")), answered, expected)] += 1
        elif (
            values.get(attr.GEN_AI_OPERATION) in _OPERATIONS
            and span.flags & SAMPLED
            and str(values.get(attr.GEN_AI_PROVIDER, "")) in ("", "verl", self.engine)
        ):  # it went to the run's own servers and is sampled, so it should have a server side
            self.calls += 1
            self.calls_without_server += GENERATE not in [child.span.name for child in children]


def find(
    tally: Tally, processes: Sequence[Process], opened: Iterable[OpenSpan], manifest: Mapping[str, Any]
) -> Completeness:
    """Return what is missing or unfinished.

    Args:
        tally: What is missing in the traces.
        processes: The processes that wrote files.
        opened: OpenSpan spans, with the index into ``processes``.
        manifest: The run's manifest (``run.json``).
    """
    return Completeness(_find_unfinished(processes, opened), tuple(_missing(tally, processes, manifest)), tally.orphans)


def _find_unfinished(processes: Sequence[Process], opened: Iterable[OpenSpan]) -> tuple[UnfinishedProcess, ...]:
    by_process: dict[int, list[OpenSpan]] = defaultdict(list)
    for open_span in opened:
        by_process[open_span.process].append(open_span)
    newest = max((process.newest_ns for process in processes), default=0)
    unfinished = []
    for index, work in by_process.items():
        process = processes[index]
        silent = (newest - process.newest_ns) / 1e9
        work.sort(key=lambda open_span: open_span.span.start_ns)
        unfinished.append(UnfinishedProcess(process, silent > SILENT_SECONDS, silent, tuple(work)))
    return tuple(sorted(unfinished, key=lambda entry: (not entry.dead, -entry.silent)))


def _missing(tally: Tally, processes: Iterable[Process], manifest: Mapping[str, Any]) -> list[str]:
    processes = list(processes)
    texts = [
        f"{group}: {f'only {answered}' if answered else 'none'} of {counted(expected, 'rank')} wrote files for {counted(count, 'call')}"
        for (group, answered, expected), count in tally.ranks.items()
    ]
    if tally.calls_without_server and _is_verl(processes, manifest):
        verb = "has" if tally.calls_without_server == 1 else "have"
        texts.append(
            f"LLM servers: {tally.calls_without_server} of {counted(tally.calls, 'call')} {verb} no server side"
        )
    nodes = _count_nodes(processes)
    expected_nodes = read_count(manifest, attr.NODES)
    if 0 < nodes < expected_nodes:  # none: processes outside of Ray name no node
        texts.append(f"nodes: files of {nodes} of {expected_nodes}; give the folders of the others, too")
    if tally.without_step and not _is_verl(processes, manifest):
        verb = "belongs" if tally.without_step == 1 else "belong"
        texts.append(
            f"steps: {counted(tally.without_step, 'trajectory', 'trajectories')} {verb} to no step: give verl_otel.trajectory(step=NUMBER), call "
            "verl_otel.consume in the step that trains on them, or bind the function that a thread calls by verl_otel.bind_context"
        )
    if tally.not_kept:
        texts.append(
            f"trajectories: of {tally.not_kept:,} of {tally.trajectories:,} only the root span was kept, so that what they did is not known "
            "(VERL_OTEL_TRAJECTORIES_PER_STEP, OTEL_TRACES_SAMPLER)"
        )
    unrecorded = find_unrecorded(manifest, {process.resource.text(attr.RAY_ACTOR) for process in processes})
    if unrecorded:
        texts.append(unrecorded)
    return texts


def _count_nodes(processes: Iterable[Process]) -> int:
    """Return how many nodes of Ray wrote files: those of the attempt with most, because a node has another id in each attempt."""
    nodes: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        node = process.resource.text(attr.RAY_NODE)
        if node:
            nodes[process.resource.text(attr.RUN_ATTEMPT)].add(node)
    return max(map(len, nodes.values()), default=0)


def find_unrecorded(manifest: Mapping[str, Any], recorded: Container[str]) -> str:
    """Return the sentence about actors that existed before telemetry was started and recorded nothing; empty if there are none.

    Args:
        manifest: The run's manifest.
        recorded: Ids of the actors that wrote files.
    """
    earlier = manifest.get(attr.EARLIER_ACTORS)
    silent = [actor for actor in earlier if actor not in recorded] if isinstance(earlier, list) else []
    if not silent:
        return ""
    return (
        f"{counted(len(silent), 'Ray actor')} recorded nothing: created before verl_otel.init(). Call it before, or set "
        "VERL_OTEL_ENABLED=1"
    )


def _is_verl(processes: Iterable[Process], manifest: Mapping[str, Any]) -> bool:
    """Return whether verl made the run. A program of a user's own has no LLM servers that could record their side."""
    return bool(manifest.get(attr.VERL_VERSION) or manifest.get(attr.ENGINE)) or any(
        process.resource.text(attr.ROLE) == _LLM_SERVER for process in processes
    )
