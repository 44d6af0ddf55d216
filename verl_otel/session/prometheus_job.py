# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The job of verl-otel as a file for Prometheus, and the line of a user's ``prometheus.yml`` that names this file.

The line is added at the end and removed as text, so that every other character stays. The YAML parser checks that nothing else has changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel._internal import safe_files
from verl_otel.errors import VerlOtelError

JOB: Final = "verl-otel"
MAX_DEPTH: Final = 200
"""Levels of nesting. The file may be one of another user, and libyaml takes minutes for 100,000 levels."""
KEY: Final = "scrape_config_files"
"""The key of `prometheus.yml` for files with further jobs, since Prometheus 2.43."""
_NOTE: Final = "# written by verl-otel; `verl-otel prometheus remove` deletes it"
_LINE: Final = re.compile(rf"(?P<before>\r?\n)?^{KEY}: [^\n]*{re.escape(_NOTE)}(?P<after>\r?\n)?", re.MULTILINE)
_KNOWN: Final = frozenset(
    f"{KEY} scrape_configs global rule_files alerting remote_write remote_read storage tracing otlp runtime".split()
)
"""Top-level keys of Prometheus. A YAML file without any of them is not a configuration of Prometheus."""
_BY_HAND: Final = "it is written in a form that verl-otel does not edit: add this line by hand: "
_ENDS: Final = 3
"""Events of YAML at the end of a text: of the mapping, of the document and of the stream."""


class NotEditableError(VerlOtelError):
    """A text that is not changed. The message says why."""


class _Content(NamedTuple):
    """What a YAML text contains."""

    events: list[dict[str, Any]]
    """Events of the parser without their places, by which two texts are compared: aliases are not expanded."""
    texts: frozenset[str]
    """All keys and values."""
    keys: frozenset[str]
    """The keys at the top."""


def make_pattern(folder: str | Path, name: str = "*.json") -> str:
    r"""Return the pattern by which Prometheus finds files of a folder, whose own name may have characters of patterns.

    Prometheus matches it by Go's ``filepath.Glob``, with a backslash before a character that stands for itself. It
    refuses a ``*`` in the name of a folder also then; ``?`` finds it.

    Args:
        folder: The folder.
        name: The pattern of the names of its files.

    Example:
        make_pattern("/runs/a[1]") == r"/runs/a\[1]/*.json"
    """
    escaped = re.sub(r"[\\\[?]", r"\\\g<0>", str(folder)).replace("*", "?")
    return f"{escaped}/{name}"


def is_url(source: str) -> bool:
    """Return whether a source is a URL of HTTP service discovery."""
    return source.startswith(("http://", "https://"))


def add_line(text: str, name: str) -> str:
    """Return a ``prometheus.yml`` that names a file with a job. A text that names it is returned as it is.

    Args:
        text: The content of the ``prometheus.yml``.
        name: The name of the file, which is in the same folder.

    Raises:
        NotEditableError: The text is not YAML, not a configuration of Prometheus, or written in a form that is not edited.
    """
    content = _parse(text)
    if KEY in content.keys:
        if name in content.texts:
            return text
        raise NotEditableError(f"it has {KEY} already: add {name} to this list by hand")
    if not _KNOWN.intersection(content.keys):
        raise NotEditableError("it is not a configuration of Prometheus")
    line = f"{KEY}: [{json.dumps(name)}]  {_NOTE}"
    line_break = "\r\n" if "\r\n" in text else "\n"
    # A text without a line break at its end stays so.
    added = f"{text}{line}{line_break}" if text.endswith("\n") else f"{text}{line_break}{line}"
    try:
        expected = _parse(f"{line}\n").events[-_ENDS - 4 : -_ENDS]
        is_added = _parse(added).events == [*content.events[:-_ENDS], *expected, *content.events[-_ENDS:]]
    except NotEditableError:
        is_added = False
    if not is_added or remove_line(added) != text:
        raise NotEditableError(f"{_BY_HAND}{line}")
    return added


def remove_line(text: str) -> str:
    """Return a text without the line that `add_line` added; the text itself if it has none."""
    match = _LINE.search(text)
    if match is None:
        return text
    kept = "" if match["after"] is None else match["before"] or ""
    return text[: match.start()] + kept + text[match.end() :]


def list_texts(text: str) -> frozenset[str]:
    """Return all keys and values of a YAML text. Raises `NotEditableError`."""
    return _parse(text).texts


def make_job(sources: Sequence[str], used: frozenset[str]) -> str:
    """Return the content of the file with the job: JSON, which is YAML, below a comment.

    Args:
        sources: Patterns of ``file_sd`` files (absolute), and URLs of HTTP service discovery.
        used: Texts of the ``prometheus.yml``: Prometheus refuses two jobs of one name.
    """
    number, name = 1, JOB
    while name in used:
        number += 1
        name = f"{JOB}-{number}"
    job: dict[str, Any] = {
        "job_name": name,
        "sample_limit": 50000,
        "label_limit": 40,
        "label_value_length_limit": 512,
        "file_sd_configs": [{"files": [each], "refresh_interval": "15s"} for each in sources if not is_url(each)],
        "http_sd_configs": [{"url": each, "refresh_interval": "15s"} for each in sources if is_url(each)],
    }
    return f"{_NOTE}\n{json.dumps({'scrape_configs': [job]}, indent=1, ensure_ascii=False)}\n"


def read_name(text: str) -> str:
    """Return the name of the job in the content of its file; `JOB` if it is damaged."""
    return str(_read_job(text).get("job_name", JOB))


def read_sources(text: str) -> list[str]:
    """Return the sources of the job in the content of its file; empty if it is damaged, so that it is written again."""
    job = _read_job(text)
    try:
        files = [str(each["files"][0]) for each in job["file_sd_configs"]]
        return files + [str(each["url"]) for each in job["http_sd_configs"]]
    except safe_files.READ_ERRORS:
        return []


def _read_job(text: str) -> dict[str, Any]:
    try:
        (job,) = safe_files.parse_json(text.partition("\n")[2])["scrape_configs"]
        return dict(job)
    except safe_files.READ_ERRORS:
        return {}


def _parse(text: str) -> _Content:
    """Return what a text with one document contains. Raises `NotEditableError`."""
    import yaml

    events, texts, keys, depth, is_key = [], set(), set(), 0, True
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            events.append(
                {"type": type(event), **{key: value for key, value in vars(event).items() if "_mark" not in key}}
            )
            if isinstance(event, yaml.ScalarEvent):
                texts.add(str(event.value))
                if depth == 1 and is_key:
                    keys.add(str(event.value))
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth == 1 and isinstance(event, yaml.NodeEvent):
                is_key = not is_key
            depth += isinstance(event, yaml.CollectionStartEvent)
            if depth > MAX_DEPTH:
                raise NotEditableError(f"it is nested more than {MAX_DEPTH} levels deep")
    except (yaml.YAMLError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise NotEditableError(f"it is not YAML{f' (line {mark.line + 1})' if mark is not None else ''}") from None
    if sum(event["type"] is yaml.DocumentStartEvent for event in events) > 1:
        raise NotEditableError("it has several YAML documents")
    return _Content(events, frozenset(texts), frozenset(keys))
