# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence of stalls and crashes: where the culprit was, the end of its log, and its memory.

All of it was recorded by the watchdog: stacks in files of ``black-box/``, which an event names, the rest in the event itself.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel._internal import safe_files
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
_LIBRARY: Final = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")
_IDLE: Final = frozenset(("select", "wait", "_worker", "main_loop", "get", "accept", "recv"))
"""Functions in which a thread waits for work."""
_OWN_THREADS: Final = "[verl-otel"


class Stack(NamedTuple):
    """What a thread or a task of asyncio did."""

    title: str
    """The line above it in the file."""
    frames: tuple[str, ...]
    """``FILE:LINE in FUNCTION``, the innermost first."""


def find_incidents(run: Explanation) -> list[Event]:
    """Return the stalls and crashes of a run."""
    return [event for event in run.events if event.kind in KINDS]


def find_stack_files(event: Event) -> tuple[str, list[str]]:
    """Return the file with the stacks of the culprit that an event names, empty if there is none, and those of the other processes."""
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
    """Return what the culprit of an event did when it was found, the likeliest cause first; threads that wait for work are left out."""
    name, _ = find_stack_files(event)
    stacks = [stack for stack in _parse(_read_section(run.folders, name, event)) if not _is_idle(stack)] if name else []
    return sorted(stacks, key=lambda stack: _rank(stack, _find_tool(event)))


def _find_tool(event: Event) -> str:
    """Return the name of the tool that hangs, or of another span."""
    return str(find_culprit(event).get("span", "")).removeprefix(TOOL_PREFIX)


def _has_call(stack: Stack, name: str) -> bool:
    return any(frame.endswith(f" in {name}") for frame in stack.frames)


def _rank(stack: Stack, tool: str) -> tuple[bool, bool, bool, int]:
    """Return the place of a stack: the function of the tool comes first, then the main thread, then tasks, the deepest first."""
    return (
        not _has_call(stack, tool),
        "[MainThread]" not in stack.title,
        " task" not in stack.title,
        -len(stack.frames),
    )


def _is_idle(stack: Stack) -> bool:
    top = stack.frames[0].rpartition(" in ")[2] if stack.frames else "wait"
    return "Thread " in stack.title and (top in _IDLE or _OWN_THREADS in stack.title)


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
            frames.append(f"{_LIBRARY.sub('', match['path'])}:{match['line']} in {match['name']}")
        elif not line.startswith("  "):
            if frames:
                yield Stack(title, tuple(reversed(frames) if "most recent await last" in title else frames))
            title, frames = line, []


def choose_first(event: Event, stacks: Sequence[Stack]) -> Sequence[Stack]:
    """Return the stacks that are shown with an event: that of the tool that hangs, or the likeliest ones."""
    return stacks[: 1 if stacks and _has_call(stacks[0], _find_tool(event)) else STACKS]


class Memory(NamedTuple):
    """The memory of a process before it died."""

    newest: float
    highest: float
    seconds: float
    """From the first sample to the last one."""


def find_memory(event: Event) -> Memory | None:
    """Return the memory of the culprit of an event; None if it is not known."""
    samples = event.detail.get("rss")
    pairs = [tuple(pair) for pair in samples if isinstance(pair, list)] if isinstance(samples, list) else []
    numbers = [pair for pair in pairs if len(pair) == 2 and all(isinstance(each, (int, float)) for each in pair)]  # noqa: PLR2004 - time and bytes
    if not numbers:
        return None
    return Memory(numbers[-1][1], max(count for _, count in numbers), numbers[-1][0] - numbers[0][0])
