# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The marked job of verl-otel in the text of a user's ``prometheus.yml``: added and removed as text, every other character is kept.

The YAML parser only locates ``scrape_configs`` and checks the result: the new text must have the content of the old one and one more job.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from verl_otel.errors import VerlOtelError

# -- The events of a YAML text: where its top-level keys are, and what it contains. Nothing is constructed, and no alias is expanded --

BOM: Final = "\ufeff"
MAX_DEPTH: Final = 200
_COMPARED: Final = ("value", "anchor", "tag", "implicit")
"""Attributes of an event that belong to the content; the others tell its place and style."""
Events = Sequence[Any]
Contents = list[tuple[Any, ...]]


class NotEditableError(VerlOtelError):
    """A text that is not changed. The message says why."""


class Pair(NamedTuple):
    """A key of the top-level mapping: its position in the events, its event, and the first event of its value."""

    position: int
    key: Any
    value: Any


def parse(text: str) -> Events:
    """Return the events of a text with at most one document.

    Raises:
        NotEditableError: It is not YAML, has several documents, or is nested too deeply.
    """
    import yaml

    events: list[Any] = []
    depth = 0
    try:
        for event in yaml.parse(text.removeprefix(BOM), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += _change_of_depth(event)
            if depth > MAX_DEPTH:
                raise NotEditableError(f"it is nested more than {MAX_DEPTH} levels deep")
            events.append(event)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise NotEditableError(f"it is not YAML{f' (line {mark.line + 1})' if mark is not None else ''}") from None
    if sum(type(event).__name__ == "DocumentStartEvent" for event in events) > 1:
        raise NotEditableError("it has several YAML documents")
    return events


def _change_of_depth(event: Any) -> int:
    import yaml

    return isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)


def find_root(events: Events) -> Any | None:
    """Return the first event of the document's content; None if it has none."""
    import yaml

    root = next((event for event in events if isinstance(event, yaml.NodeEvent)), None)
    return None if is_empty(root) else root


def is_empty(event: Any) -> bool:
    """Return whether an event is a value that is not written."""
    import yaml

    return isinstance(event, yaml.ScalarEvent) and not event.value and event.implicit[0] and event.anchor is None


def is_sequence(event: Any) -> bool:
    """Return whether an event begins a sequence."""
    import yaml

    return isinstance(event, yaml.SequenceStartEvent)


def find_pairs(events: Events) -> list[Pair]:
    """Return the pairs of the top-level mapping whose keys are scalars; none if the document is no mapping."""
    import yaml

    if not isinstance(find_root(events), yaml.MappingStartEvent):
        return []
    pairs, depth, key = [], 0, -1
    for index, event in enumerate(events):
        change = _change_of_depth(event)
        depth += min(change, 0)
        if depth == 1 and isinstance(event, yaml.NodeEvent):
            if key < 0:
                key = index
            else:
                if isinstance(events[key], yaml.ScalarEvent):
                    pairs.append(Pair(key, events[key], event))
                key = -1
        depth += max(change, 0)
    return pairs


def has_scalar(events: Events, value: str) -> bool:
    """Return whether a scalar of this value is anywhere in the document."""
    return any(getattr(event, "value", None) == value for event in events)


def read_contents(events: Events) -> Contents:
    """Return the content of events without place, comments and style, for comparisons."""
    return [(type(event).__name__, *(getattr(event, name, None) for name in _COMPARED)) for event in events]


# -- The block --

JOB: Final = "verl-otel"
BEGIN: Final = "# BEGIN verl-otel"
END: Final = "# END verl-otel"
_NOTE: Final = "(written by verl-otel, do not edit; `verl-otel prometheus remove` deletes it)"
_IN_BRACKETS: Final = "in brackets"
"""Words of the END line in a flow sequence, where the block is removed in another way."""
_FLOW_INDENT: Final = "  "
"""What follows the block in a flow sequence."""
_KEY: Final = "scrape_configs"
_KNOWN: Final = frozenset(
    f"{_KEY} global scrape_config_files rule_files alerting remote_write remote_read storage tracing otlp runtime".split()
)
"""Top-level keys of Prometheus. A YAML file without any of them is not a configuration of Prometheus."""
_BLOCK: Final = re.compile(
    rf"(?P<before>\r?\n)?^(?P<block>[ \t]*{BEGIN}[^\n]*\n(?:[^\n]*\n)*?[ \t]*{END}(?P<rest>[^\r\n]*)(?P<after>\r?\n)?)",
    re.MULTILINE,
)
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_ITEM: Final = re.compile(r"^( *)-(?=[ \t\r\n])", re.MULTILINE)
_LONE_CR: Final = re.compile(r"\r(?!\n)")
_BY_HAND: Final = f"its {_KEY} is written in a form that verl-otel does not edit: add the job by hand"


class Place(NamedTuple):
    """Where the block is inserted, its indentation, and how it is written."""

    offset: int
    indent: int
    form: str
    """``item`` of a block sequence, ``flow`` in brackets, or ``key`` with ``scrape_configs:`` itself."""


def add_sources(text: str, sources: Sequence[str]) -> str:
    r"""Return a text with a job that discovers targets in these sources, too. A text that has them is returned as it is.

    Args:
        text: The content of a ``prometheus.yml``.
        sources: Patterns of ``file_sd`` files (absolute), and URLs of HTTP service discovery.

    Raises:
        NotEditableError: The text is not YAML, not a configuration of Prometheus, or written in a form that is not edited.

    Example:
        add_sources("scrape_configs:\n- job_name: a\n", ["/runs/targets/*.json"])
    """
    existing = read_sources(text)
    stripped = remove_block(text)
    events = parse(stripped)
    missing = [source for source in sources if source not in existing and not has_scalar(events, source)]
    if not missing and (not existing or _is_complete(text, events, existing)):
        return text
    return _insert(stripped, [*existing, *missing], events)


def remove_sources(text: str, sources: Sequence[str] | None = None) -> str:
    """Return a text without some sources of the job, and without the job if none is left.

    Args:
        text: The content of a ``prometheus.yml``.
        sources: What is removed; None: all.

    Raises:
        NotEditableError: The marks of the job are damaged, or sources are left and the text cannot be edited.
    """
    existing = read_sources(text)
    kept = [] if sources is None else [source for source in existing if source not in sources]
    if existing and kept == existing:
        return text
    stripped = remove_block(text)
    return _insert(stripped, kept, parse(stripped)) if kept else stripped


def read_sources(text: str) -> list[str]:
    """Return the sources of the job in a text; empty without a job. Raises `NotEditableError`."""
    match = _find_block(text)
    return [json.loads(word) for word in _QUOTED.findall(match["block"])] if match else []


def remove_block(text: str) -> str:
    """Return a text without the job; the text itself if it has none. Raises `NotEditableError`."""
    match = _find_block(text)
    if match is None:
        return text
    start, end = match.span("block")
    if match["rest"].strip() == _IN_BRACKETS:
        return text[: match.start()] + text[end:].removeprefix(_FLOW_INDENT)
    if not match["after"] and match["before"]:  # the text had no line break at its end
        start = match.start()
    return text[:start] + text[end:]


def is_url(source: str) -> bool:
    """Return whether a source is a URL of HTTP service discovery."""
    return source.startswith(("http://", "https://"))


def _find_block(text: str) -> re.Match[str] | None:
    begins, ends = text.count(BEGIN), text.count(END)
    match = _BLOCK.search(text) if begins == ends == 1 else None
    if match is None and (begins or ends):
        raise NotEditableError(
            f"the marks {BEGIN!r} and {END!r} are damaged: delete both lines and what is between them"
        )
    return match


def _insert(text: str, sources: Sequence[str], events: Events) -> str:
    """Insert the job into a text without one. Raises `NotEditableError`."""
    if _LONE_CR.search(text):
        raise NotEditableError("it has line breaks that are neither LF nor CR LF")
    place = _find_place(text, events)
    before, after = text[: place.offset], text[place.offset :]
    at_line = not before or before.endswith("\n")
    line_break = "\r\n" if _is_crlf(text) else "\n"
    lines = [f"{BEGIN} {_NOTE}", *_make_lines(place.form, sources, events), END]
    if place.form == "flow":
        lines[-1] += f" {_IN_BRACKETS}"
    block = line_break.join(" " * place.indent + line for line in lines)
    if place.form == "flow":
        block = f"{line_break}{block}{line_break}{_FLOW_INDENT}"
    else:  # a text without a line break at its end stays so
        block = block + line_break if at_line else line_break + block
    added = before + block + after
    if not _is_complete(added, events, sources):
        raise NotEditableError(_BY_HAND)
    return added


def _is_crlf(text: str) -> bool:
    first = text.find("\n")
    return first > 0 and text[first - 1] == "\r"


def _make_lines(form: str, sources: Sequence[str], events: Events) -> list[str]:
    job = _make_job(sources, events)
    return {"item": [f"- {job}"], "flow": [f"{job},"], "key": [f"{_KEY}:", f"- {job}"]}[form]


def _find_place(text: str, events: Events) -> Place:
    """Return where the job is inserted. Raises `NotEditableError`."""
    offset = len(BOM) if text.startswith(BOM) else 0
    pairs = find_pairs(events)
    names = [pair.key.value for pair in pairs]
    if find_root(events) is None:
        return Place(len(text), 0, "key")
    if not _KNOWN.intersection(names):
        raise NotEditableError("it is not a configuration of Prometheus")
    if _KEY not in names:
        return Place(len(text), pairs[0].key.start_mark.column, "key")
    if names.count(_KEY) > 1:
        raise NotEditableError(f"it has {_KEY} twice")
    _, key, value = pairs[names.index(_KEY)]
    if is_sequence(value) and value.flow_style:
        return Place(value.end_mark.index + offset, key.start_mark.column + len(_FLOW_INDENT), "flow")
    next_line = text.find("\n", key.end_mark.index + offset) + 1 or len(text)
    if is_empty(value):
        return Place(next_line, key.start_mark.column + 2, "item")
    item = _ITEM.search(text, next_line)
    if item is None or not is_sequence(value):
        raise NotEditableError(_BY_HAND)
    return Place(next_line, len(item[1]), "item")


def _make_job(sources: Sequence[str], events: Events) -> str:
    """Return the job on one line. Its double-quoted words are its sources."""
    number, name = 1, JOB
    while has_scalar(events, name):  # Prometheus refuses two jobs of one name
        number += 1
        name = f"{JOB}-{number}"
    quote = functools.partial(json.dumps, ensure_ascii=False)
    files = [quote(source) for source in sources if not is_url(source)]
    urls = [f"{{url: {quote(source)}, refresh_interval: 15s}}" for source in sources if is_url(source)]
    parts = [f"job_name: {name}", "sample_limit: 50000", "label_limit: 40", "label_value_length_limit: 512"]
    if files:
        parts.append(f"file_sd_configs: [{{files: [{', '.join(files)}], refresh_interval: 15s}}]")
    if urls:
        parts.append(f"http_sd_configs: [{', '.join(urls)}]")
    return f"{{{', '.join(parts)}}}"


def _is_complete(text: str, events: Events, sources: Sequence[str]) -> bool:
    """Return whether a text has the content of some events, the job with these sources, and nothing else."""
    try:
        contents = read_contents(parse(text))
    except NotEditableError:
        return False
    alone = read_contents(parse(f"{_KEY}: [{_make_job(sources, events)}]"))
    if find_root(events) is None:
        return contents == alone
    pair, job = alone[3:-3], alone[5:-4]  # without stream, document and mapping; without the sequence
    before = read_contents(events)
    for index, key, value in find_pairs(events):
        if key.value == _KEY:
            if is_sequence(value):
                return contents == [*before[: index + 2], *job, *before[index + 2 :]]
            return contents == [*before[:index], *pair, *before[index + 2 :]]
    return contents == [*before[:-3], *pair, *before[-3:]]
