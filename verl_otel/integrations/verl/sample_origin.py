# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The origin of a sample: facts of a trajectory, for the step that will train on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple

from verl_otel.integrations.spans import find_open
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.span import clock
from verl_otel.recording.step_statistics import CUT, parse_components
from verl_otel.semconv import attributes as attr

FACTS: Final = {
    "llm": attr.LLM_SECONDS,
    "tool": attr.TOOL_SECONDS,
    "reward": attr.REWARD_SECONDS,
    "preemptions": attr.PREEMPTIONS,
    "prompt": attr.PROMPT_TOKENS,
    "response": attr.RESPONSE_TOKENS,
    "generated": attr.GENERATED_TOKENS,
}
"""Facts of a trajectory in a tag, and their attributes; a tag also holds ``start``, in Unix seconds."""
START: Final = "start"
"""Key of a further fact: when the trajectory began, in Unix seconds."""
VALIDATE: Final = "validate"
"""Key of a further fact, of trajectories of a validation only."""


class Origin(NamedTuple):
    """The origin of a sample."""

    trace_id: int
    span_id: int
    seconds: float
    score: float | None
    source: str
    uid: str = ""
    version: int | None = None
    """Version of the weights that generated its last token: the step after which they were synchronised."""
    facts: Mapping[str, float] = {}
    """Those of `FACTS` that are known: seconds, preemptions, tokens; and the further ones."""

    def encode(self) -> str:
        """Return the tag's text."""
        ids = f"{self.trace_id:x}", f"{self.span_id:x}"
        fields = self.score, self.source, self.uid, self.version, dict(self.facts)
        return json.dumps([*ids, round(self.seconds, 6), *fields])

    @classmethod
    def decode(cls, text: str) -> Origin:
        """Read a tag.

        Raises:
            ValueError: It is not a tag of verl-otel.
        """
        try:
            trace_id, span_id, seconds, score, source, uid, version, facts = json.loads(text)
            return cls(
                int(trace_id, 16),
                int(span_id, 16),
                float(seconds),
                None if score is None else float(score),
                str(source),
                str(uid),
                None if version is None else int(version),
                {str(name): float(value) for name, value in facts.items()},
            )
        except (TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a tag of verl-otel: {error}") from error


carried_origin: Final[ContextVar[Origin | None]] = ContextVar("carried_origin", default=None)
"""Origin of the samples that are written now, if their trajectory has ended before."""


def find_origin() -> Origin | None:
    """Return the origin for samples of the current trajectory; None outside of a trajectory."""
    carried = carried_origin.get()
    if carried is not None:
        return carried
    span = find_open("trajectory")
    if span is None:
        return None
    ids = span.resolve()
    values = span.attributes
    score = to_number(values.get(attr.REWARD_SCORE))
    version = to_number(values.get(attr.MODEL_VERSION_MAX))
    facts = {name: to_number(values.get(key)) for name, key in FACTS.items()}
    facts[START] = span.start_ns / 1e9
    if values.get(attr.VALIDATE) is True:
        facts[VALIDATE] = 1.0
    reasons = values.get(attr.GEN_AI_FINISH_REASONS)
    if type(reasons) is tuple and "length" in reasons:
        facts[CUT] = 1.0
    facts |= parse_components(values.get(attr.REWARD_FIELDS))
    return Origin(
        ids.trace_id,
        ids.span_id,
        clock() - span.start,
        None if score is None else float(score),
        str(values.get(attr.DATA_SOURCE, "")),
        str(values.get(attr.SAMPLE_UID, "")),
        None if version is None else int(version),
        {name: round(float(value), 6) for name, value in facts.items() if value is not None},
    )


def find_generation(origins: Iterable[Origin]) -> float | None:
    """Return the seconds from the first start to the last token of some trajectories; None where no start is known.

    A trajectory ends with its reward, which is no part of the generation.
    """
    spells = [
        (origin.facts[START], origin.facts[START] + origin.seconds - origin.facts.get("reward", 0.0))
        for origin in origins
        if START in origin.facts
    ]
    return max(end for _, end in spells) - min(begin for begin, _ in spells) if spells else None
