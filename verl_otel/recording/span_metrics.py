# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of ended spans. The catalogue names the histogram of a verb; the further metrics of a verb are defined here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from verl_otel._internal import error_boundary
from verl_otel.model import Labels
from verl_otel.recording import own_loop, series_registry
from verl_otel.recording.attribute_values import to_name, to_number
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets
from verl_otel.semconv.metrics import METRICS

if TYPE_CHECKING:
    from verl_otel.recording.series import Histogram
    from verl_otel.recording.span import Span


def measure(span: Span, seconds: float) -> Histogram | None:
    """Record the duration of an ended span and the further metrics of its verb.

    Called by the drain, and by the span itself if no drain will see it: metrics are exact even if spans are dropped.

    Args:
        span: The span, with all its attributes. Some verbs add attributes to it.
        seconds: Its duration.

    Returns:
        The histogram of the duration, which also gets the exemplar; None if there is none.
    """
    try:
        spec = span.site.spec
        histogram = span.site.series
        if spec.verb == "timed":  # a sampled timer has measured every call when it ended
            return histogram
        if histogram is None and spec.duration:
            histogram = _find(span)
        if histogram is not None:
            histogram.record(seconds)
        count_more = _VERB_METRICS.get(spec.verb)
        if count_more is not None:
            count_more(span, seconds)
        return histogram
    except Exception as failure:
        error_boundary.record_internal_error("measure", failure)
        return None


def _find(span: Span) -> Histogram:
    """Return the histogram of a span's verb with its labels. It is cached at the site for spans without labels of their own."""
    site, own = span.site, span._attributes
    spec = site.spec
    is_default = (not own or own.keys().isdisjoint(spec.labels)) and not span.error
    if is_default and site.default_series is not None:
        return site.default_series
    histogram = series_registry.histogram(
        spec.duration, labels_of(span, spec.labels, with_error=spec.duration in _WITH_ERROR)
    )
    if is_default:
        site.default_series = histogram
    return histogram


def labels_of(span: Span, names: tuple[str, ...], *, with_error: bool = False) -> Labels:
    """Return the attributes of a span that are labels, in the order of the catalogue. Absent ones are left out."""
    values = span.attributes
    labels = tuple((name, _text(values[name])) for name in names if name in values)
    if with_error and span.error:
        labels += ((attr.ERROR_TYPE, span.error),)
    return labels


def _text(value: object) -> str:
    return to_name(value).lower() if isinstance(value, bool) else to_name(value)


def bin_of(score: float) -> str:
    """Return the label of the reward bin of a score: its upper bound, or ``+Inf``."""
    for bound in buckets.REWARD_BINS:
        if score <= bound:
            return f"{bound:g}"
    return "+Inf"


def _step(span: Span, _seconds: float) -> None:
    if attr.STEP_LINEAGE in span.attributes:
        own_loop.note_step(to_number(span.attributes.get(attr.STEP_NUMBER)), failed=bool(span.error))
    if _was_stopped(span):
        return
    series_registry.counter("verl.training.steps").record(1)
    series_registry.gauge("verl.training.last_step.timestamp").set(span.end_ns / 1e9)


def _was_stopped(span: Span) -> bool:
    """Return whether the work failed or was cancelled."""
    return bool(span.error) or span.attributes.get(attr.OUTCOME) == "cancelled"


def _phase(span: Span, seconds: float) -> None:
    if span.site.attributes.get(attr.PHASE) == "gen":
        series_registry.histogram("verl.sample.generation").record(seconds)


def _checkpoint(span: Span, _seconds: float) -> None:
    if not _was_stopped(span):
        series_registry.gauge("verl.checkpoint.last.timestamp").set(span.end_ns / 1e9)


def _worker(span: Span, seconds: float) -> None:
    values = span.attributes
    if values.get(attr.WORKER_NESTED):
        return
    labels = ((attr.WORKER_METHOD, to_name(values.get(attr.WORKER_METHOD, span.name))),)
    series_registry.counter("verl.worker.calls", labels).record(1)
    series_registry.counter("verl.worker.call.time", labels).record(seconds)


def _trajectory(span: Span, seconds: float) -> None:
    values = span.attributes
    if attr.OUTCOME not in values:
        span.set_attribute(attr.OUTCOME, "failure" if span.error else "success")
    for kind, key in (("prompt", attr.PROMPT_TOKENS), ("response", attr.RESPONSE_TOKENS)):
        tokens = to_number(values.get(key))
        if tokens is not None:
            labels = ((attr.TOKEN_TYPE, kind),)
            series_registry.counter("verl.rollout.tokens", labels).record(tokens)
            series_registry.histogram("verl.rollout.sequence.length", labels).record(tokens)
    turns = to_number(values.get(attr.TURNS))
    if turns is not None:
        series_registry.histogram("verl.rollout.turns").record(turns)
    RECORDER.trajectories.mark(span, seconds)


def _llm(span: Span, _seconds: float) -> None:
    values = span.attributes
    names = (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL)
    for kind, key in (("input", attr.GEN_AI_INPUT_TOKENS), ("output", attr.GEN_AI_OUTPUT_TOKENS)):
        tokens = to_number(values.get(key))
        if tokens is not None:
            labels = (*labels_of(span, names), (attr.GEN_AI_TOKEN_TYPE, kind))
            series_registry.histogram("gen_ai.client.token.usage", labels).record(tokens)
    preemptions = to_number(values.get(attr.PREEMPTIONS))
    if preemptions:
        series_registry.counter("verl.rollout.preemptions").record(preemptions)


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
            series_registry.counter("verl.reward.samples", (*source, (attr.REWARD_BIN, bin_of(number)))).record(1)


_WITH_ERROR: Final = frozenset(row.name for row in METRICS.values() if attr.ERROR_TYPE in row.labels)
"""Histograms with the label ``error.type``."""

_VERB_METRICS: Final[dict[str, Callable[[Span, float], None]]] = {
    "step": _step,
    "phase": _phase,
    "checkpoint": _checkpoint,
    "worker": _worker,
    "trajectory": _trajectory,
    "llm": _llm,
    "reward": _reward,
}
