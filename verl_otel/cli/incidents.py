# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence of stalls and crashes: where the culprit was, the end of its log, and its memory.

All of it was recorded by the watchdog: stacks in files of ``black-box/``, which an event names, the rest in the event
itself.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

from verl_otel._internal import own_code, safe_files
from verl_otel.analysis.document import Document, about
from verl_otel.analysis.model import Event, Explanation
from verl_otel.analysis.traces.span_names import TOOL_PREFIX

KINDS: Final = ("crash", "stall")
"""Kinds of events that have such evidence."""
STACKS: Final = 2
"""Stacks that are shown with an event, unless the first one is that of the tool that hangs."""
MAX_BYTES: Final = 1 << 20
"""Bytes of a file with stacks that are read, at its end."""
_SECTION: Final = re.compile(r"^=== (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC.*$", re.MULTILINE)
_FRAME: Final = re.compile(r'File "(?P<path>[^"]*)", line (?P<line>\d+) in (?P<name>.+)')
_IDLE: Final = frozenset(("select", "wait", "_worker", "main_loop", "get", "accept", "recv"))
"""Functions in which a thread waits for work."""
_OWN_THREADS: Final = "[verl-otel"


class Stack(Document):
    """What threads and tasks of the culprit did, the likeliest cause first."""

    title: Annotated[str, about("the line above it in the file")]
    frames: Annotated[tuple[str, ...], about("FILE:LINE in FUNCTION, the innermost call first")]


class Memory(Document):
    """Memory of the culprit before it died."""

    newest: Annotated[float, about("bytes at last")]
    highest: Annotated[float, about("bytes")]
    seconds: Annotated[float, about("from the first sample to the last one")]


def find_incidents(run: Explanation) -> list[Event]:
    """Return the stalls and crashes of a run."""
    return [event for event in run.events if event.kind in KINDS]


def find_stack_files(event: Event) -> tuple[str, list[str]]:
    """Return the file with the stacks of an event's culprit, empty if there is none, and those of the others."""
    files = event.detail.get("stacks")
    if not isinstance(files, Mapping):
        return "", []
    pid = str(find_culprit(event).get("pid", ""))
    names = {str(other): str(path) for other, path in files.items()}
    name = names.get(pid, "")
    return name, [path for path in names.values() if path != name]


def find_culprit(event: Event) -> Mapping[str, Any]:
    """Return what an event says of the process that is to blame for it; empty: nothing."""
    culprit = event.detail.get("culprit")
    return culprit if isinstance(culprit, Mapping) else {}


def find_stacks(run: Explanation, event: Event) -> list[Stack]:
    """Return what the culprit of an event did, the likeliest cause first, without threads that wait for work."""
    name, _ = find_stack_files(event)
    tool, stacks = _find_tool(event), list(_parse(_read_section(run.folders, name, event))) if name else []

    def is_idle(stack: Stack) -> bool:
        top = stack.frames[0].rpartition(" in ")[2]
        return "Thread " in stack.title and (top in _IDLE or _OWN_THREADS in stack.title)

    def rank(stack: Stack) -> tuple[bool, bool, bool, int]:
        """Return its place: first the tool's function, then the main thread, then tasks, the deepest first."""
        is_main, is_task = "[MainThread]" in stack.title, " task" in stack.title
        return not _has_call(stack, tool), not is_main, not is_task, -len(stack.frames)

    return sorted((stack for stack in stacks if not is_idle(stack)), key=rank)


def _find_tool(event: Event) -> str:
    """Return the name of the tool that hangs, or of another span."""
    return str(find_culprit(event).get("span", "")).removeprefix(TOOL_PREFIX)


def _has_call(stack: Stack, name: str) -> bool:
    return any(frame.endswith(f" in {name}") for frame in stack.frames)


def _read_section(folders: Iterable[str], name: str, event: Event) -> str:
    """Return the newest stacks of a file that were written before an event; empty if there are none."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return ""
    for folder in map(Path, folders):
        try:
            sections = _read_sections(folder / name, (folder / name).stat().st_size)
        except (OSError, ValueError):  # the folder of another node, it was deleted, or the event is damaged
            continue
        before = [text for when, text in sections if when <= event.time_ns / 1e9]
        return before[-1] if before else ""
    return ""


@lru_cache(maxsize=16)
def _read_sections(path: Path, _size: int) -> tuple[tuple[int, str], ...]:
    """Return what was written to a file with stacks at one time after the other; the same as long as it has this size.

    Raises:
        OSError: The file cannot be read.
    """
    text = safe_files.read_tail(path, MAX_BYTES).decode("utf-8", "replace")
    begins = [(match.start(), _read_time(match[1])) for match in _SECTION.finditer(text)]
    if not begins or begins[0][0]:
        begins.insert(0, (0, 0))  # a frozen process writes at a signal, without a head
    ends = [begin for begin, _ in begins[1:]] + [len(text)]
    return tuple((when, text[begin:end]) for (begin, when), end in zip(begins, ends, strict=True))


def _read_time(text: str) -> int:
    try:
        return calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
    except ValueError:  # a damaged file
        return 0


def _parse(text: str) -> Iterator[Stack]:
    title, frames = "", list[str]()
    for line in [*text.splitlines(), ""]:
        match = _FRAME.search(line)
        if match is not None:
            frames.append(f"{own_code.shorten(match['path'])}:{match['line']} in {match['name']}")
        elif not line.startswith("  "):
            if frames:
                yield Stack(
                    title=title, frames=tuple(reversed(frames) if "most recent await last" in title else frames)
                )
            title, frames = line, []


def choose_first(event: Event, stacks: Sequence[Stack]) -> Sequence[Stack]:
    """Return the stacks that are shown with an event: that of the tool that hangs, or the likeliest ones."""
    return stacks[: 1 if stacks and _has_call(stacks[0], _find_tool(event)) else STACKS]


def find_memory(event: Event) -> Memory | None:
    """Return the memory of the culprit of an event; None if it is not known."""
    samples = event.detail.get("rss")
    pairs = [pair for pair in samples if isinstance(pair, list)] if isinstance(samples, list) else []
    numbers = [pair[:2] for pair in pairs if [isinstance(each, (int, float)) for each in pair] == [True, True]]
    if not numbers:
        return None
    return Memory(
        newest=numbers[-1][1], highest=max(count for _, count in numbers), seconds=numbers[-1][0] - numbers[0][0]
    )
