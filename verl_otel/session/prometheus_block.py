# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The marked job of verl-otel in the text of a user's ``prometheus.yml``: added and removed as text, every other character is kept.

The YAML parser only locates ``scrape_configs`` and checks the result: the new text must have the content of the old one and one more job.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel.errors import VerlOtelError

BOM: Final = "\ufeff"
MAX_DEPTH: Final = 200
"""Levels of nesting; libyaml ends the process somewhere above 10,000."""
MAX_NODES: Final = 200_000
"""Values of a text with its aliases expanded. A few hundred bytes of aliases of aliases expand without an end that is ever reached."""
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


class NotEditableError(VerlOtelError):
    """A text that is not changed. The message says why."""


class Document(NamedTuple):
    """What a YAML text contains."""

    root: Any
    """Its top node, with positions in the text; None if it has none."""
    content: Any
    """Its content as Python objects."""


class Place(NamedTuple):
    """Where the block is inserted, its indentation, and how it is written."""

    offset: int
    indent: int
    form: str
    """``item`` of a block sequence, ``flow`` in brackets, or ``key`` with ``scrape_configs:`` itself."""


def make_pattern(folder: str | Path, name: str = "*.json") -> str:
    r"""Return the pattern by which Prometheus finds files of a folder, whose own name may have characters of patterns.

    Prometheus matches it by Go's ``filepath.Glob``, with a backslash before a character that stands for itself. It refuses a ``*`` in the name of
    a folder also then; ``?`` finds it.

    Args:
        folder: The folder.
        name: The pattern of the names of its files.

    Example:
        make_pattern("/runs/a[1]") == r"/runs/a\[1]/*.json"
    """
    escaped = re.sub(r"[\\\[?]", r"\\\g<0>", str(folder)).replace("*", "?")
    return f"{escaped}/{name}"


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
    document = parse(stripped)
    known = {*existing, *_list_texts(document.content)}
    missing = [source for source in sources if source not in known]
    if not missing and (not existing or _is_complete(text, document.content, existing)):
        return text
    return _insert(stripped, [*existing, *missing], document)


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


def parse(text: str) -> Document:
    """Return what a text with at most one document contains. Raises `NotEditableError`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = text.removeprefix(BOM)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise NotEditableError(f"it is nested more than {MAX_DEPTH} levels deep")
        root = yaml.compose(text, Loader=loader)
        if root is not None:
            _measure(root, {})
        return Document(root, yaml.load(text, Loader=loader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, TypeError) as error:
        if "single document" in str(error):
            raise NotEditableError("it has several YAML documents") from None
        mark = getattr(error, "problem_mark", None)
        raise NotEditableError(f"it is not YAML{f' (line {mark.line + 1})' if mark is not None else ''}") from None


def _measure(node: Any, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Return how many values a node has and how deep it is nested, with its aliases expanded.

    Each node is counted once, so that this takes as long as the text is. An alias stands behind its anchor: its node is known already.

    Args:
        node: A node of YAML.
        known: The result by the identity of a node; None while it is counted.

    Raises:
        NotEditableError: There are too many, or it contains itself.
    """
    if id(node) not in known:
        known[id(node)] = None
        values = node.value if isinstance(node.value, list) else []
        children = [child for value in values for child in (value if isinstance(value, tuple) else (value,))]
        found = [_measure(child, known) for child in children]
        size, depth = 1 + sum(size for size, _ in found), 1 + max((depth for _, depth in found), default=0)
        if size > MAX_NODES or depth > MAX_DEPTH + 1:
            raise NotEditableError("its aliases are too many or nested too deep")
        known[id(node)] = size, depth
    measured = known[id(node)]
    if measured is None:
        raise NotEditableError("it has an anchor that contains itself")
    return measured


def _list_texts(content: Any) -> Iterator[str]:
    """Yield every text in a document but the keys."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, (dict, list)):
        for each in content.values() if isinstance(content, dict) else content:
            yield from _list_texts(each)


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


def _insert(text: str, sources: Sequence[str], document: Document) -> str:
    """Insert the job into a text without one. Raises `NotEditableError`."""
    if _LONE_CR.search(text):
        raise NotEditableError("it has line breaks that are neither LF nor CR LF")
    place = _find_place(text, document.root)
    before, after = text[: place.offset], text[place.offset :]
    at_line = not before or before.endswith("\n")
    line_break = "\r\n" if _is_crlf(text) else "\n"
    lines = [f"{BEGIN} {_NOTE}", *_make_lines(place.form, sources, document.content), END]
    if place.form == "flow":
        lines[-1] += f" {_IN_BRACKETS}"
    block = line_break.join(" " * place.indent + line for line in lines)
    if place.form == "flow":
        block = f"{line_break}{block}{line_break}{_FLOW_INDENT}"
    else:  # a text without a line break at its end stays so
        block = block + line_break if at_line else line_break + block
    added = before + block + after
    if not _is_complete(added, document.content, sources):
        raise NotEditableError(_BY_HAND)
    return added


def _is_crlf(text: str) -> bool:
    first = text.find("\n")
    return first > 0 and text[first - 1] == "\r"


def _make_lines(form: str, sources: Sequence[str], content: Any) -> list[str]:
    job = _make_job(sources, content)
    return {"item": [f"- {job}"], "flow": [f"{job},"], "key": [f"{_KEY}:", f"- {job}"]}[form]


def _find_place(text: str, root: Any) -> Place:
    """Return where the job is inserted. Raises `NotEditableError`."""
    import yaml

    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return Place(len(text), 0, "key")
    offset = len(BOM) if text.startswith(BOM) else 0
    pairs = {str(key.value): (key, value) for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    if not _KNOWN.intersection(pairs):
        raise NotEditableError("it is not a configuration of Prometheus")
    if [key.value for key, _ in root.value].count(_KEY) > 1:
        raise NotEditableError(f"it has {_KEY} twice")
    if _KEY not in pairs:
        return Place(len(text), root.value[0][0].start_mark.column, "key")
    key, value = pairs[_KEY]
    if isinstance(value, yaml.SequenceNode) and value.flow_style:
        bracket = text.index("[", value.start_mark.index + offset)  # an anchor or a tag may be before it
        return Place(bracket + 1, key.start_mark.column + len(_FLOW_INDENT), "flow")
    next_line = text.find("\n", key.end_mark.index + offset) + 1 or len(text)
    if isinstance(value, yaml.ScalarNode) and not value.value:
        return Place(next_line, key.start_mark.column + 2, "item")
    item = _ITEM.search(text, next_line)
    if item is None:
        raise NotEditableError(_BY_HAND)
    return Place(next_line, len(item[1]), "item")


def _make_job(sources: Sequence[str], content: Any) -> str:
    """Return the job on one line. Its double-quoted words are its sources."""
    number, name, used = 1, JOB, set(_list_texts(content))
    while name in used:  # Prometheus refuses two jobs of one name
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


def _is_complete(text: str, content: Any, sources: Sequence[str]) -> bool:
    """Return whether a text has the content of the user's, the job with these sources as its first, and nothing else."""
    try:
        added = parse(text).content
        job = parse(_make_job(sources, content)).content
    except NotEditableError:
        return False
    before = content or {}
    return bool(added == {**before, _KEY: [job, *(before.get(_KEY) or ())]})
