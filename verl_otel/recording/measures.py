# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From an ended span to its metrics. A verb's row in the catalogue names the histogram; what else it counts is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from verl_otel import _guard
from verl_otel.model import Labels
from verl_otel.recording import marks, registry
from verl_otel.recording.values import to_number
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets
from verl_otel.semconv.metrics import METRICS

if TYPE_CHECKING:
    from verl_otel.recording.series import Histogram
    from verl_otel.recording.span import Span


def measure(span: Span, seconds: float) -> Histogram | None:
    """Record the duration of an ended span and what its verb counts besides.

    Called by the drain, and by the span itself only where no drain will see it: metrics are exact although spans are dropped.

    Args:
        span: The span, with everything that was said about it.
        seconds: How long it took.

    Returns:
        Where the duration went, if anywhere: its exemplar belongs there.
    """
    try:
        spec = span.site.spec
        histogram = span.site.series
        if spec.verb == "timed":  # a leaf: every call was measured when it ended, kept or not
            return histogram
        if histogram is None and spec.duration:
            histogram = _find(span)
        if histogram is not None:
            histogram.record(seconds)
        also = _ALSO.get(spec.verb)
        if also is not None:
            also(span, seconds)
        return histogram
    except Exception as failure:
        _guard.report("measure", failure)
        return None


def _find(span: Span) -> Histogram:
    """Return the histogram of a span's verb with its labels: as a rule those of its site, which finds it once."""
    site, own = span.site, span._attributes
    spec = site.spec
    usual = (not own or own.keys().isdisjoint(spec.labels)) and not span.error
    if usual and site.usual is not None:
        return site.usual
    histogram = registry.histogram(spec.duration, labels_of(span, spec.labels, with_error=spec.duration in _WITH_ERROR))
    if usual:
        site.usual = histogram
    return histogram


def labels_of(span: Span, names: tuple[str, ...], *, with_error: bool = False) -> Labels:
    """Return the attributes that are labels, in the order of the catalogue; what is absent is left out."""
    values = span.attributes
    labels = tuple((name, _text(values[name])) for name in names if name in values)
    if with_error and span.error:
        labels += ((attr.ERROR_TYPE, span.error),)
    return labels


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def bin_of(score: float) -> str:
    """Return the label of the reward bin that a score falls into: its upper bound, or ``+Inf``."""
    for bound in buckets.REWARD_BINS:
        if score <= bound:
            return f"{bound:g}"
    return "+Inf"


def _step(span: Span, _seconds: float) -> None:
    if _was_stopped(span):
        return
    registry.counter("verl.training.steps").record(1)
    registry.gauge("verl.training.last_step.timestamp").set(span.end_ns / 1e9)


def _was_stopped(span: Span) -> bool:
    """Return whether the work failed or was cancelled."""
    return bool(span.error) or span.attributes.get(attr.OUTCOME) == "cancelled"


def _phase(span: Span, seconds: float) -> None:
    if span.site.attributes.get(attr.PHASE) == "gen":
        registry.histogram("verl.sample.generation").record(seconds)


def _checkpoint(span: Span, _seconds: float) -> None:
    if not _was_stopped(span):
        registry.gauge("verl.checkpoint.last.timestamp").set(span.end_ns / 1e9)


def _worker(span: Span, seconds: float) -> None:
    values = span.attributes
    if values.get(attr.WORKER_NESTED):
        return
    labels = ((attr.WORKER_METHOD, str(values.get(attr.WORKER_METHOD, span.name))),)
    registry.counter("verl.worker.calls", labels).record(1)
    registry.counter("verl.worker.call.time", labels).record(seconds)


def _trajectory(span: Span, seconds: float) -> None:
    values = span.attributes
    if attr.OUTCOME not in values:
        span.set_attribute(attr.OUTCOME, "failure" if span.error else "success")
    for kind, key in (("prompt", attr.PROMPT_TOKENS), ("response", attr.RESPONSE_TOKENS)):
        tokens = to_number(values.get(key))
        if tokens is not None:
            labels = ((attr.TOKEN_TYPE, kind),)
            registry.counter("verl.rollout.tokens", labels).record(tokens)
            registry.histogram("verl.rollout.sequence.length", labels).record(tokens)
    turns = to_number(values.get(attr.TURNS))
    if turns is not None:
        registry.histogram("verl.rollout.turns").record(turns)
    marks.mark(span, seconds)


def _llm(span: Span, _seconds: float) -> None:
    values = span.attributes
    names = (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL)
    for kind, key in (("input", attr.GEN_AI_INPUT_TOKENS), ("output", attr.GEN_AI_OUTPUT_TOKENS)):
        tokens = to_number(values.get(key))
        if tokens is not None:
            labels = (*labels_of(span, names), (attr.GEN_AI_TOKEN_TYPE, kind))
            registry.histogram("gen_ai.client.token.usage", labels).record(tokens)
    preemptions = to_number(values.get(attr.PREEMPTIONS))
    if preemptions:
        registry.counter("verl.rollout.preemptions").record(preemptions)


def _reward(span: Span, _seconds: float) -> None:
    source = labels_of(span, (attr.DATA_SOURCE,))
    values = span.attributes
    detail = span._detail
    scores = (
        (detail.scores if detail is not None else ())
        or values.get(attr.REWARD_SCORES)
        or (values.get(attr.REWARD_SCORE),)
    )
    for score in scores if isinstance(scores, tuple) else (scores,):
        number = to_number(score)
        if number is not None and number == number:
            registry.counter("verl.reward.samples", (*source, (attr.REWARD_BIN, bin_of(number)))).record(1)


_WITH_ERROR: Final = frozenset(row.name for row in METRICS.values() if attr.ERROR_TYPE in row.labels)
"""Histograms whose failures have series of their own."""

_ALSO: Final[dict[str, Callable[[Span, float], None]]] = {
    "step": _step,
    "phase": _phase,
    "checkpoint": _checkpoint,
    "worker": _worker,
    "trajectory": _trajectory,
    "llm": _llm,
    "reward": _reward,
}
