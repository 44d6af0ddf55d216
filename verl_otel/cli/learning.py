# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How a run learned, as keys of a document and in words: the same for a recorded run and for a log of verl."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from verl_otel._internal.printable import counted, show
from verl_otel.analysis.document import Document, about
from verl_otel.cli.documents.base import fill
from verl_otel.cli.formatting import SENTENCE, align, show_settings, wrap
from verl_otel.guards import wording
from verl_otel.health import signals
from verl_otel.health.signals import CUT_LIMIT, LEARNING, SIGNALS, Progress
from verl_otel.semconv.scalar_keys import COMPONENT, CORE_VALIDATION

if TYPE_CHECKING:
    from verl_otel.cli.documents.explain import Explain
    from verl_otel.cli.documents.explain_log import ExplainLog

VALIDATION_LINES: Final = 3
"""Scores of validations that the table shows."""
COMPONENTS: Final = 6
"""Components of the reward that the table and the sentence about them show."""
MAX_KEY: Final = 40
"""Characters of the name of a signal."""
_COURSES: Final = {1: "still rises", 0: "has no clear trend", -1: "falls"}
ADVICE: Final = {
    "nan": "look at the steps before it, and at the learning rate [{variable}=1 stops such a run]",
    "kl": "lower the learning rate or the number of updates of a batch [{variable}=5 stops such a run]",
    "reward_fall": "go back to a checkpoint before it [{variable}=5 stops such a run]",
    "plateau": "look at entropy, truncation and equal scores from that step on [{variable}=100 stops such a run]",
    "reward_zero": "look at what the reward function returns [trainer.rollout_data_dir keeps the rollouts]",
    "reward_range": "look at what the reward function returns [trainer.rollout_data_dir keeps the rollouts]",
    "entropy": "reward entropy [actor.entropy_coeff], or lower the learning rate",
    "truncated": "allow longer responses [data.max_response_length], or punish them",
    "rollout_gap": (
        "compare the weights of the engine with those of the trainer after the last weight sync, "
        "and look whether its prefix cache was reset"
    ),
    "equal_scores": (
        "nothing is learned from such a step: mix easier and harder prompts, "
        "or sample more responses of each [rollout.n]"
    ),
}
"""What can be done about a kind of finding. In brackets stand settings, and guards, which only verl's trainers have."""


# -- The document --

_WORDS: Final = {1: "rises", 0: "no trend", -1: "falls"}
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
    last_step: Annotated[int, about("the last step at which it held")]
    times: Annotated[int, about("how often it began")]
    text: Annotated[str, about("what was seen at this step, how often, and until when")]
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
            fill(Signal, signal, course="" if signal.trend is None else _WORDS[signal.course])
            for signal in learning.signals
        ],
        "findings": [
            fill(
                Finding,
                trouble,
                kind=trouble.first.kind,
                began=trouble.first.began,
                step=trouble.first.step,
                text=describe_trouble(trouble),
                next=advise(trouble.first.kind, has_verl=has_verl),
            )
            for trouble in learning.troubles
        ],
    }


# -- The text --


def describe_learning(document: Explain | ExplainLog, width: int, signals: Iterable[Signal]) -> Iterator[str]:
    """Yield lines: what was wrong, the progress of the reward, its largest move, and a table of signals.

    Args:
        document: What describes how the run learned.
        width: Characters of a line.
        signals: Rows of the table.
    """
    for text in _list_sentences(document):
        yield from wrap(show(text, SENTENCE), width, rest="  ")
    shown = list(signals)
    if shown:
        size = document.window
        rows = [("signal", f"first {size}", f"last {size}", "lowest", "at step", "highest", "at step", "trend")]
        rows += [
            (
                show(signal.name, MAX_KEY), figure(signal.begin), figure(signal.end),
                figure(signal.low), str(signal.low_step), figure(signal.high), str(signal.high_step),
                signal.course + (f"; NaN in {counted(signal.not_finite, 'step')}" if signal.not_finite else ""),
            )
            for signal in shown
        ]  # fmt: skip
        yield from align(rows, range(1, 7))


def choose_signals(found: Sequence[Signal], *, resources: bool = True) -> list[Signal]:
    """Return the signals of a table: those of the training, a few components of the reward, and validations.

    Args:
        found: All signals.
        resources: Also what the run used.
    """
    names = SIGNALS if resources else LEARNING
    shown = [signal for signal in found if signal.name in names]
    for prefix, number in ((COMPONENT, COMPONENTS), (CORE_VALIDATION, VALIDATION_LINES)):
        shown += [signal for signal in found if signal.name.startswith(prefix)][:number]
    return shown


def describe_briefly(document: Explain | ExplainLog) -> Iterator[str]:
    """Yield a line for each finding, one for the progress of the reward, and one for its largest move."""
    for found in document.findings:
        yield f"learning ({found.kind}): step {found.began}: {found.text}; do: {found.next}"
    yield from (f"learning: {text}" for text in _describe_reward(document))


def _list_sentences(document: Explain | ExplainLog) -> Iterator[str]:
    for found in document.findings:
        yield f"Step {found.began}: {found.text}. To do: {found.next}."
    yield from (f"{text[:1].upper()}{text[1:]}." for text in _describe_reward(document))
    if document.cut is not None:
        name, limit = CUT_LIMIT
        yield (
            f"In the last steps {document.cut:.0%} of the responses were cut off at the limit of tokens, "
            f"which this profile allows; VERL_OTEL_HEALTH_PROFILE={name} allows {limit:.0%}."
        )


def _describe_reward(document: Explain | ExplainLog) -> Iterator[str]:
    if document.progress:
        yield document.progress
    if document.reward_move is not None:
        yield describe_move(document.reward_move)


def describe_trouble(trouble: signals.Trouble) -> str:
    """Return what was seen when it was first noticed, which may be later than it began, how often it was, and until when."""
    first, last = trouble.first, trouble.last_step
    seen = [f"noticed at step {first.step}"] if first.step != first.began else []
    if trouble.times > 1:
        seen += [f"the first of {trouble.times:,} times", f"the last at step {last}"]
    elif last > first.step:
        seen.append(f"lasted until step {last}")
    text = wording.describe(first)
    return f"{text} ({', '.join(seen)})" if seen else text


def advise(kind: str, *, has_verl: bool) -> str:
    """Return what can be done about a kind of finding."""
    advice = show_settings(ADVICE[kind], has_verl=has_verl)
    return advice.format(variable=wording.find_variable(kind)) if "{" in advice else advice


def describe_progress(progress: Progress) -> str:
    """Return the sentence about the mean reward, without a full stop."""
    best = f"the best mean reward of five steps ended at step {progress.best_step}"
    best += f", {counted(progress.since, 'step')} before the last one" if progress.since else ", the last one"
    if progress.trend is None:
        return best
    course = f"{_COURSES[progress.course]} (Kendall's tau {progress.trend:.2f})"
    return f"{best}; in the last {progress.values} steps the reward {course}"


def describe_move(move: RewardMove) -> str:
    """Return the sentence about the largest move of the reward and its components, without a full stop."""
    first, last = (f"steps {begin}-{end}" for begin, end in (move.first, move.last))
    moved = [f"{one.name} {_describe_change(one)}" for one in move.components if one.moved]
    still = [f"{one.name} ({_describe_noise(one)})" for one in move.components if not one.moved]
    parts = moved[:COMPONENTS] or ["no component moved beyond the noise between steps"]
    if still and moved:
        parts.append(f"{', '.join(still[:COMPONENTS])} did not")
    when = f"from {first} to {last}" if move.step is None else f"at step {move.step}"
    means = "" if move.step is None else f" (means of {first} and {last})"
    change = "moved within the noise between steps ({}), and its components more"
    change = _describe_change(move) if move.moved else change.format(_describe_noise(move))
    return f"{when} the mean reward {change}{means}: {'; '.join(parts)}"


def _describe_change(change: Change | RewardMove) -> str:
    verb = "rose" if change.after > change.before else "fell"
    return f"{verb} from {figure(change.before)} to {figure(change.after)}"


def _describe_noise(change: Change | RewardMove) -> str:
    before, after = figure(change.before), figure(change.after)
    return after if before == after else f"{before} and {after}"


def figure(value: float) -> str:
    """Format a value of a signal."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"  # noqa: PLR2004 - more digits than are shown
