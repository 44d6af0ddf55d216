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
from typing import Final, NamedTuple

from verl_otel.session import yaml_events
from verl_otel.session.yaml_events import Events, NotEditableError

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
    events = yaml_events.parse(stripped)
    missing = [source for source in sources if source not in existing and not yaml_events.has_scalar(events, source)]
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
    return _insert(stripped, kept, yaml_events.parse(stripped)) if kept else stripped


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
    offset = len(yaml_events.BOM) if text.startswith(yaml_events.BOM) else 0
    pairs = yaml_events.find_pairs(events)
    names = [pair.key.value for pair in pairs]
    if yaml_events.find_root(events) is None:
        return Place(len(text), 0, "key")
    if not _KNOWN.intersection(names):
        raise NotEditableError("it is not a configuration of Prometheus")
    if _KEY not in names:
        return Place(len(text), pairs[0].key.start_mark.column, "key")
    if names.count(_KEY) > 1:
        raise NotEditableError(f"it has {_KEY} twice")
    _, key, value = pairs[names.index(_KEY)]
    if yaml_events.is_sequence(value) and value.flow_style:
        return Place(value.end_mark.index + offset, key.start_mark.column + len(_FLOW_INDENT), "flow")
    next_line = text.find("\n", key.end_mark.index + offset) + 1 or len(text)
    if yaml_events.is_empty(value):
        return Place(next_line, key.start_mark.column + 2, "item")
    item = _ITEM.search(text, next_line)
    if item is None or not yaml_events.is_sequence(value):
        raise NotEditableError(_BY_HAND)
    return Place(next_line, len(item[1]), "item")


def _make_job(sources: Sequence[str], events: Events) -> str:
    """Return the job on one line. Its double-quoted words are its sources."""
    number, name = 1, JOB
    while yaml_events.has_scalar(events, name):  # Prometheus refuses two jobs of one name
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
        contents = yaml_events.read_contents(yaml_events.parse(text))
    except NotEditableError:
        return False
    alone = yaml_events.read_contents(yaml_events.parse(f"{_KEY}: [{_make_job(sources, events)}]"))
    if yaml_events.find_root(events) is None:
        return contents == alone
    pair, job = alone[3:-3], alone[5:-4]  # without stream, document and mapping; without the sequence
    before = yaml_events.read_contents(events)
    for index, key, value in yaml_events.find_pairs(events):
        if key.value == _KEY:
            if yaml_events.is_sequence(value):
                return contents == [*before[: index + 2], *job, *before[index + 2 :]]
            return contents == [*before[:index], *pair, *before[index + 2 :]]
    return contents == [*before[:-3], *pair, *before[-3:]]
