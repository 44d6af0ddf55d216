# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Names of OpenTelemetry's conventions for generative AI, beside the names of verl-otel.

Switched on by ``OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental``. The points are copied when they are collected, so that the code
that records pays nothing. What has no name of ``verl.`` has the name of the conventions only, and is not here.
Source: semantic-conventions-genai, release 0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from verl_otel._internal import error_boundary
from verl_otel.model import Instrument, Labels, Point, Values
from verl_otel.recording.series import INSTRUMENTS
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.spans import TRACESTATE_TRAJECTORY

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

CONVERSATION_VERBS: Final = frozenset({"trajectory", "llm", "tool"})
"""Spans that get ``gen_ai.conversation.id``."""


_Aliased = TypeVar("_Aliased", Point, Values)


class _Alias(NamedTuple):
    instrument: Instrument
    renamed: Mapping[str, str]
    """Labels with other names there."""


_ALIASES: Final = {
    metric_names.TOOL_CALL_DURATION: _Alias(INSTRUMENTS[metric_names.GEN_AI_EXECUTE_TOOL_DURATION], {}),
    metric_names.ROLLOUT_TRAJECTORY_DURATION: _Alias(
        INSTRUMENTS[metric_names.GEN_AI_INVOKE_AGENT_DURATION], {attr.AGENT: attr.GEN_AI_AGENT}
    ),
}


def make_aliases(points: Iterable[_Aliased]) -> list[_Aliased]:
    """Return the same points, or values, under the names of the conventions; those without such a name are left out.

    Args:
        points: Points or values of a collection. Their values are cumulative, so a copy is the state of the second series.
    """
    return [
        point._replace(instrument=alias.instrument, labels=_rename(point.labels, alias.renamed))
        for point in points
        if (alias := _ALIASES.get(point.instrument.name)) is not None
    ]


def _rename(labels: Labels, names: Mapping[str, str]) -> Labels:
    return tuple((names.get(name, name), value) for name, value in labels) if names else labels


def add_conversations(spans: Iterable[Span]) -> None:
    """Set ``gen_ai.conversation.id`` of the spans of trajectories to their trace id: a trajectory is one trace, in every process."""
    for span in spans:
        with error_boundary.suppress_errors("record"):
            _add_conversation(span)


def _add_conversation(span: Span) -> None:
    if span.site.spec.verb in CONVERSATION_VERBS and TRACESTATE_TRAJECTORY in (ids := span.resolve()).state:
        span.set_attribute(attr.GEN_AI_CONVERSATION, f"{ids.trace_id:032x}")
