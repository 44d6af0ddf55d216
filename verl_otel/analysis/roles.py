# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a span is in its trajectory, as far as its name and its attributes say: found once for all spans that have the same.

Most spans of a run share both with thousands of others. Attributes are told apart by identity: `otlp` reads those that look the same once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from verl_otel.analysis.gaps import OPERATIONS
from verl_otel.analysis.segments import CALL_PREFIX, PHASE_PREFIX, find_kind, read_whole, says_engine
from verl_otel.analysis.timeline import classify
from verl_otel.model import Attributes
from verl_otel.semconv import attributes as attr

MAX_ROLES: Final = 4096
"""Roles that are remembered, a kilobyte each with the attributes that they keep alive."""


class Role(NamedTuple):
    """What a span is."""

    activity: str
    """What its trajectory does in it (`timeline.classify`); empty: nothing that is told apart."""
    activity_name: str
    turn: int | None
    """Number of the turn that it is, where it is one."""
    failed: bool
    kind: str
    """What its own time is on a critical path (`segments.find_kind`)."""
    name: str
    is_engine: bool
    provider: str | None
    """Of an LLM call that has ended; None: it is none."""
    is_server: bool
    """It is the server's side of an LLM call."""
    is_odd: bool
    """It is part of a step, or had not ended: it has no business in a trajectory that is as it should be."""


class Roles(dict[int, dict[str, Role]]):
    """The roles of the spans of one slice, by the identity of their attributes and by their names."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Attributes] = []
        """So that no others get their identity."""

    def learn(self, name: str, attributes: Attributes) -> Role:
        """Remember and return what a span is."""
        if len(self) >= MAX_ROLES:
            self.clear()
            self._kept.clear()
        known = self.get(id(attributes))
        if known is None:
            known = self[id(attributes)] = {}
            self._kept.append(attributes)
        known[name] = found = find_role(name, attributes)
        return found


def find_role(name: str, attributes: Attributes) -> Role:
    """Return what a span of this name with these attributes is."""
    activity, activity_name = classify(name, attributes)
    kind, kind_name = find_kind(name, attributes)
    is_chat = attributes.get(attr.GEN_AI_OPERATION) in OPERATIONS and attr.OPEN_AGE not in attributes
    return Role(
        activity,
        activity_name,
        read_whole(attributes.get(attr.TURN_INDEX)) if activity == "turn" else None,
        attr.ERROR_TYPE in attributes,
        kind,
        kind_name,
        says_engine(attributes),
        str(attributes.get(attr.GEN_AI_PROVIDER, "")) if is_chat else None,
        name == "verl.generate",
        name.startswith((PHASE_PREFIX, CALL_PREFIX)) or attr.OPEN_AGE in attributes,
    )
