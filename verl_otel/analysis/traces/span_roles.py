# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The roles of spans in a trajectory by their names and attributes, computed once for all spans that share them.

Most spans of a run share both with thousands of others. Attributes are compared by identity: `otlp_json` decodes equal ones once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from verl_otel.analysis.io.completeness import OPERATIONS
from verl_otel.analysis.traces.segments import find_kind, read_whole, says_engine
from verl_otel.analysis.traces.span_names import CALL_PREFIX, GENERATE, PHASE_PREFIX
from verl_otel.analysis.traces.timeline import classify
from verl_otel.model import Attributes
from verl_otel.semconv import attributes as attr

MAX_ROLES: Final = 4096
"""Maximum number of cached roles, a kilobyte each including the attributes that they keep alive."""


class Role(NamedTuple):
    """The role of a span."""

    activity: str
    """Kind of activity (`timeline.classify`); empty: none."""
    activity_name: str
    turn: int | None
    """Number of the turn, if it is one."""
    failed: bool
    kind: str
    """Kind of its own time on a critical path (`segments.find_kind`)."""
    name: str
    is_engine: bool
    provider: str | None
    """Provider of a finished LLM call; None: it is no such call."""
    is_server: bool
    """True for the server side of an LLM call."""
    is_odd: bool
    """True for parts of a step and for open spans: trajectories with these take the general path."""


class Roles(dict[int, dict[str, Role]]):
    """The roles of the spans of one slice, by the identity of their attributes and by their names."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Attributes] = []
        """References that keep the identities unique."""

    def learn(self, name: str, attributes: Attributes) -> Role:
        """Cache and return the role of a span."""
        if len(self) >= MAX_ROLES:
            self.clear()
            self._kept.clear()
        roles = self.get(id(attributes))
        if roles is None:
            roles = self[id(attributes)] = {}
            self._kept.append(attributes)
        roles[name] = role = find_role(name, attributes)
        return role


def find_role(name: str, attributes: Attributes) -> Role:
    """Return the role of a span with this name and these attributes."""
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
        name == GENERATE,
        name.startswith((PHASE_PREFIX, CALL_PREFIX)) or attr.OPEN_AGE in attributes,
    )
