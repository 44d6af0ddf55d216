# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is missing or unfinished in a run's files, in words: processes, ranks, nodes, the last second, dead processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from verl_otel.analysis.reader import Open, Process
from verl_otel.analysis.traces import Node, Trace
from verl_otel.model import SAMPLED
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import CLIENT, SPANS

SILENT_SECONDS: Final = 5.0
"""A process with open work rewrites its open-span file every second; silent for longer while others write, it is dead."""
_CALL: Final = SPANS["call"].name
OPERATIONS: Final = ("chat", "text_completion")
"""What calls of an LLM say that they are."""


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


class Tally:
    """What is missing in traces, counted one by one.

    Args:
        engine: What the run calls its own LLM servers; calls to others have no server side that could be missing.
    """

    def __init__(self, engine: str = "") -> None:
        self._own = ("", "verl", engine)
        self.orphans = 0
        self.ranks: Counter[tuple[str, int, int]] = Counter()
        """Calls of a group by how many of how many ranks answered."""
        self.calls = 0
        self.calls_without_server = 0

    def add(self, trace: Trace) -> None:
        """Count what is missing in a trace. Spans that are still open are part of it and miss nothing themselves."""
        self.orphans += trace.orphans
        waiting = list(trace.roots)
        for node in waiting:
            if node.children:
                waiting += node.children
            if node.span.kind == CLIENT and attr.OPEN_AGE not in node.span.attributes:
                self._add_call(node)

    def _add_call(self, node: Node) -> None:
        span, values = node.span, node.span.attributes
        if span.name.startswith(_CALL):
            expected = _int(values.get(attr.WORLD_SIZE))
            found = sum(child.span.name.startswith("verl.worker ") for child in node.children)
            if found < expected:
                self.ranks[(str(values.get(attr.WORKER_GROUP, "workers")), found, expected)] += 1
        elif values.get(attr.GEN_AI_OPERATION) in OPERATIONS:
            has_server = "verl.generate" in [child.span.name for child in node.children]
            self.add_llm_call(str(values.get(attr.GEN_AI_PROVIDER, "")), span.flags, has_server=has_server)

    def add_llm_call(self, provider: str, flags: int, *, has_server: bool) -> None:
        """Count a call of an LLM: of the run's own servers, and kept as a whole, it has a server's side."""
        if flags & SAMPLED and provider in self._own:
            self.calls += 1
            self.calls_without_server += not has_server

    def merge(self, other: Tally) -> None:
        """Add what another one counted."""
        self.orphans += other.orphans
        self.ranks += other.ranks
        self.calls += other.calls
        self.calls_without_server += other.calls_without_server


def find(tally: Tally, processes: Sequence[Process], opened: Iterable[Open], manifest: Mapping[str, Any]) -> Gaps:
    """Return what is missing or unfinished.

    Args:
        tally: What is missing in the traces.
        processes: Those that wrote files.
        opened: What had not ended, by index into ``processes``.
        manifest: What the run says of itself.
    """
    return Gaps(_unfinished(processes, opened), tuple(_missing(tally, processes, manifest)), tally.orphans)


def _unfinished(processes: Sequence[Process], opened: Iterable[Open]) -> tuple[Unfinished, ...]:
    by_process: dict[int, list[Open]] = defaultdict(list)
    for each in opened:
        by_process[each.process].append(each)
    newest = max((process.newest_ns for process in processes), default=0)
    found = []
    for index, work in by_process.items():
        process = processes[index]
        silent = (newest - process.newest_ns) / 1e9
        work.sort(key=lambda each: each.span.start_ns)
        found.append(Unfinished(process, silent > SILENT_SECONDS, silent, tuple(work)))
    return tuple(sorted(found, key=lambda each: (not each.dead, -each.silent)))


def _missing(tally: Tally, processes: Iterable[Process], manifest: Mapping[str, Any]) -> list[str]:
    found_text = [
        f"{group}: none of {expected} ranks wrote files for {count} calls"
        if not found
        else f"{group}: only {found} of {expected} ranks wrote files for {count} calls"
        for (group, found, expected), count in tally.ranks.items()
    ]
    if tally.calls_without_server:
        found_text.append(f"LLM servers: {tally.calls_without_server} of {tally.calls} calls have no server side")
    nodes = {process.resource.text(attr.RAY_NODE) for process in processes} - {""}
    expected_nodes = _int(manifest.get("verl.nodes"))
    if 0 < len(nodes) < expected_nodes:  # none: nobody names its node outside of Ray
        found_text.append(f"nodes: files of {len(nodes)} of {expected_nodes}; give the folders of the others, too")
    return found_text


def _int(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0
