# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How a run learned: keys of the documents of ``verl-otel explain``."""

from __future__ import annotations

from typing import Annotated, Any, Final

from verl_otel.cli.documents.base import Document, about, fill
from verl_otel.cli.learning import ADVICE, advise, describe_progress
from verl_otel.guards import wording
from verl_otel.health import signals

COURSES: Final = {1: "rises", 0: "no trend", -1: "falls"}
"""Words for `signals.Signal.course`."""


class Signal(Document):
    """Values over the run."""

    name: Annotated[str, about("as in the run log")]
    key: Annotated[str, about("verl's key")]
    begin: Annotated[float, about("mean of the first steps")]
    end: Annotated[float, about("mean of the last steps")]
    low: float
    low_step: int
    high: float
    high_step: int
    trend: Annotated[float | None, about("Kendall's tau, -1 (falls) to 1 (rises)")]
    course: Annotated[
        str, about("rises, falls or no trend, which noise alone may have, too; empty: it has too few values")
    ]
    not_finite: Annotated[int, about("steps in which it was NaN or infinite")]


class Finding(Document):
    """What was wrong with the learning."""

    kind: Annotated[str, about(", ".join(ADVICE))]
    began: Annotated[int, about("the step at which it began")]
    step: Annotated[int, about("the first step at which it was noticed")]
    last_step: Annotated[int, about("the last step")]
    times: Annotated[int, about("how often")]
    text: str
    next: Annotated[str, about("what to do about it")]


class Change(Document):
    """A component of the reward before and after the reward moved."""

    name: str
    before: Annotated[float, about("mean before")]
    after: Annotated[float, about("mean after")]
    moved: Annotated[bool, about("whether they differ by more than the noise between steps explains")]


class RewardMove(Document):
    """The largest move of the mean reward with its components; where it stayed, of the one that moved most."""

    first: Annotated[tuple[int, ...], about("first and last step of the window before")]
    last: Annotated[tuple[int, ...], about("first and last step of the window after")]
    step: Annotated[int | None, about("step at which it jumped; null: it moved over many steps")]
    before: Annotated[float, about("mean reward before")]
    after: Annotated[float, about("mean reward after")]
    moved: Annotated[bool, about("whether the mean reward moved; false: only components did")]
    components: tuple[Change, ...]


Move = Annotated[
    RewardMove | None, about("null: the reward has no components, or nothing moved beyond the noise between steps")
]


Window = Annotated[int, about("number of the first, and of the last steps of which signals have the mean")]
Cut = Annotated[
    float | None, about("share of the last responses that were cut off, where only a stricter profile warns of it")
]


def describe(learning: signals.Learning, *, has_verl: bool) -> dict[str, Any]:
    """Return the keys of a document that are about the learning."""
    return {
        "profile": learning.profile.name,
        "progress": describe_progress(learning.progress) if learning.progress else "",
        "reward_move": learning.move,
        "window": signals.find_window(learning.steps),
        "cut": learning.cut,
        "signals": [
            fill(Signal, signal, course="" if signal.trend is None else COURSES[signal.course])
            for signal in learning.signals
        ],
        "findings": [
            fill(
                Finding,
                trouble,
                kind=trouble.first.kind,
                began=trouble.first.began,
                step=trouble.first.step,
                text=wording.describe(trouble.first),
                next=advise(trouble.first.kind, has_verl=has_verl),
            )
            for trouble in learning.troubles
        ],
    }
