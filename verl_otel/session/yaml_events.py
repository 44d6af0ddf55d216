# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The events of a YAML text: where its top-level keys are, and what it contains. Nothing is constructed, and no alias is expanded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from verl_otel.errors import VerlOtelError

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
