# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is missing or unfinished in a run's files, in words: processes, ranks, nodes, the last second, dead processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final, NamedTuple

from verl_otel.analysis.load import Open, Process, Run
from verl_otel.model import SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import CLIENT

SILENT_SECONDS: Final = 5.0
"""A process with open work rewrites its open-span file every second; silent for longer while others write, it is dead."""


class Unfinished(NamedTuple):
    """A process that had work open when it was heard of last."""

    process: Process
    dead: bool
    """Whether it fell silent while others went on; if not, it may still be at work."""
    silent: float
    """Seconds between its last sign of life and the newest of the run."""
    work: tuple[Open, ...]


class Gaps(NamedTuple):
    """What a reader of the report has to know about its limits."""

    unfinished: tuple[Unfinished, ...]
    missing: tuple[str, ...]
    orphans: int
    """Spans whose parent is in no file."""


def find(run: Run) -> Gaps:
    """Return what is missing or unfinished."""
    return Gaps(_unfinished(run), tuple(_missing(run)), len(orphans(run)))


def orphans(run: Run) -> list[SpanRecord]:
    """Return the spans whose parent is neither among the ended nor among the open spans."""
    known = {(loaded.span.trace_id, loaded.span.span_id) for loaded in run.spans}
    known |= {(each.span.trace_id, each.span.span_id) for each in run.open_spans}
    return [
        loaded.span
        for loaded in run.spans
        if loaded.span.parent_id and (loaded.span.trace_id, loaded.span.parent_id) not in known
    ]


def _unfinished(run: Run) -> tuple[Unfinished, ...]:
    by_process: dict[int, list[Open]] = defaultdict(list)
    for each in run.open_spans:
        by_process[each.process].append(each)
    newest = max((process.newest_ns for process in run.processes), default=0)
    found = []
    for index, work in by_process.items():
        process = run.processes[index]
        silent = (newest - process.newest_ns) / 1e9
        work.sort(key=lambda each: each.span.start_ns)
        found.append(Unfinished(process, silent > SILENT_SECONDS, silent, tuple(work)))
    return tuple(sorted(found, key=lambda each: (not each.dead, -each.silent)))


def _missing(run: Run) -> list[str]:
    children: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for loaded in run.spans:
        children[(loaded.span.trace_id, loaded.span.parent_id)][loaded.span.name.partition(" ")[0]] += 1
    for each in run.open_spans:
        children[(each.span.trace_id, each.span.parent_id)][each.span.name.partition(" ")[0]] += 1
    ranks_missing: Counter[tuple[str, int, int]] = Counter()
    servers_missing = calls = 0
    own = {"", "verl", str(run.manifest.get("verl.engine"))}
    for loaded in run.spans:
        span = loaded.span
        below = children[(span.trace_id, span.span_id)]
        if span.name.startswith("verl.call "):
            expected, found = _int(span.attributes.get(attr.WORLD_SIZE)), below["verl.worker"]
            if 0 < found < expected or (expected and not found):
                ranks_missing[(str(span.attributes.get(attr.WORKER_GROUP, "workers")), found, expected)] += 1
        elif (
            span.kind == CLIENT
            and span.attributes.get(attr.GEN_AI_OPERATION) in ("chat", "text_completion")
            and str(span.attributes.get(attr.GEN_AI_PROVIDER, "")) in own
            and span.flags & 1
        ):
            calls += 1
            servers_missing += not below["verl.generate"]
    found_text = [
        f"{group}: none of {expected} ranks wrote files for {count} calls"
        if not found
        else f"{group}: only {found} of {expected} ranks wrote files for {count} calls"
        for (group, found, expected), count in ranks_missing.items()
    ]
    if servers_missing:
        found_text.append(f"LLM servers: {servers_missing} of {calls} calls have no server side")
    nodes = {process.resource.text(attr.RAY_NODE) for process in run.processes} - {""}
    expected_nodes = _int(run.manifest.get("verl.nodes"))
    if 0 < len(nodes) < expected_nodes:  # none: nobody names its node outside of Ray
        found_text.append(f"nodes: files of {len(nodes)} of {expected_nodes}; give the folders of the others, too")
    return found_text


def _int(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0
