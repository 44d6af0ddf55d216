# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of ended spans. The catalogue names the histogram of a verb; the further metrics of a verb are defined here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from verl_otel._internal import error_boundary
from verl_otel.model import AttributeValue, Labels
from verl_otel.recording import own_loop
from verl_otel.recording.attribute_values import to_name, to_number
from verl_otel.recording.sampling import MARKS
from verl_otel.recording.series import counter, gauge, histogram
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets, metric_names
from verl_otel.semconv.metric_names import METRICS
from verl_otel.semconv.spans import TRACESTATE_STEP, TRACESTATE_TRAJECTORY, TRACESTATE_VALIDATION

if TYPE_CHECKING:
    from verl_otel.recording.series import Counter, Histogram
    from verl_otel.recording.span import Span

    S = TypeVar("S", Counter, Histogram)


MAX_CACHED: Final = 1000
"""Series that are cached by their labels."""
_TEXTS: Final = frozenset({str, type(None)})
"""Types of labels by which a series is cached: 1 and True are equal and differ as labels."""
_LLM_LABELS: Final = (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL)
_TOKENS: Final = (
    (metric_names.GEN_AI_CLIENT_INPUT_TOKENS, attr.GEN_AI_INPUT_TOKENS),
    (metric_names.GEN_AI_CLIENT_OUTPUT_TOKENS, attr.GEN_AI_OUTPUT_TOKENS),
    (metric_names.GEN_AI_CLIENT_CACHED_TOKENS, attr.GEN_AI_CACHED_TOKENS),
)
_cache: Final[dict[tuple[object, ...], Any]] = {}
"""Series by metric and labels. They are never removed from the registry, so this is never cleared."""


def measure(span: Span, seconds: float, state: str | None = None) -> Histogram | None:
    """Record the duration of an ended span and the further metrics of its verb.

    Called by the drain, and by the span itself if no drain will see it: metrics are exact even if spans are dropped.

    Args:
        span: The span, with all its attributes. Some verbs add attributes to it.
        seconds: Its duration.
        state: The trace state of its trace, if it is known.

    Returns:
        The histogram of the duration, which also gets the exemplar; None if there is none.
    """
    try:
        site = span.site
        spec, histogram = site.spec, site.series
        verb = spec.verb
        if verb == "timed":  # a sampled timer has measured every call when it ended
            return histogram
        # The others may be in no trace, as a phase outside of steps, and ids cost as much as the rest of it.
        validate = find_validation(span, state) if spec.duration in _WITH_VALIDATION else ""
        if histogram is None and spec.duration and not (verb == "step" and own_loop.is_repeated(span)):
            histogram = _find(span, validate)
        if histogram is not None:
            histogram.record(seconds)
        count_more = _VERB_METRICS.get(verb)
        if count_more is not None:
            count_more(span, seconds, validate)
        return histogram
    except Exception as failure:
        error_boundary.record_internal_error("measure", failure)
        return None


def _find(span: Span, validate: str) -> Histogram:
    """Return the histogram of a span's verb with its labels. It is cached at the site for spans without labels of their own."""
    site, own, detail = span.site, span._attributes, span._detail
    spec = site.spec
    if detail is not None and detail.error:
        labels = (*_select_labels(span.attributes, spec.labels), *_VALIDATION_LABELS[validate])
        if spec.duration in _WITH_ERROR:
            labels += ((attr.ERROR_TYPE, detail.error),)
        return histogram(spec.duration, labels)
    if not own or own.keys().isdisjoint(spec.labels):
        series = site.default_series.get(validate)
        if series is None:
            series = site.default_series[validate] = _find_cached(
                histogram, spec.duration, site.attributes, spec.labels, *_VALIDATION_LABELS[validate]
            )
        return series
    return _find_cached(histogram, spec.duration, span.attributes, spec.labels, *_VALIDATION_LABELS[validate])


_VALIDATION_LABELS: Final[Mapping[str, Labels]] = {
    "": (),
    **{value: ((attr.VALIDATE, value),) for value in ("true", "false")},
}
"""The label by the result of `find_validation`."""
_BY_STATE: Final = {"": "", TRACESTATE_TRAJECTORY: "false", TRACESTATE_VALIDATION: "true", TRACESTATE_STEP: ""}


def find_validation(span: Span, state: str | None = None) -> str:
    """Return whether a span belongs to a validation, as a label; empty if that is not known.

    The trace state of a trajectory says so in every process. Outside of a trajectory it is not known: verl scores whole batches of a
    training and of a validation by the same calls.

    Args:
        span: The span.
        state: The trace state of its trace, if it is known.
    """
    own = span._attributes
    if own and attr.VALIDATE in own:
        return "true" if own[attr.VALIDATE] is True else "false"
    if state is None:
        ids: Any = span.ids
        state = (ids[0] if type(ids) is tuple else ids or span.resolve()).state
    found = _BY_STATE.get(state)
    if found is None:  # with the state of others
        members = [member.strip() for member in state.split(",")]
        found = next((value for member, value in _BY_STATE.items() if member in members), "")
    return found


def _find_cached(
    find: Callable[[str, Labels], S],
    metric: str,
    values: Mapping[str, AttributeValue],
    names: tuple[str, ...],
    *more: tuple[str, str],
) -> S:
    """Return the series of a metric with labels of a span, cached by these labels.

    Args:
        find: A function of `verl_otel.recording.series`.
        metric: Name of the metric.
        values: All attributes of the span.
        names: Those that are labels.
        more: Further labels.
    """
    key = (metric, more, *[values.get(name) for name in names])
    series: S | None = _cache.get(key)
    if series is None:
        series = find(metric, (*_select_labels(values, names), *more))
        if len(_cache) < MAX_CACHED and _TEXTS.issuperset(map(type, key[2:])):
            _cache[key] = series
    return series


def _select_labels(values: Mapping[str, AttributeValue], names: tuple[str, ...]) -> Labels:
    """Return the attributes that are labels, in the order of the catalogue. Absent ones are left out."""
    return tuple([(name, _text(values[name])) for name in names if name in values])


def _text(value: object) -> str:
    return to_name(value).lower() if isinstance(value, bool) else to_name(value)


def bin_of(score: float) -> str:
    """Return the label of the reward bin of a score: its upper bound, or ``+Inf``."""
    for bound in buckets.REWARD_BINS:
        if score <= bound:
            return f"{bound:g}"
    return "+Inf"


def _step(span: Span, _seconds: float, _validate: str) -> None:
    if attr.STEP_LINEAGE in span.attributes:
        own_loop.note_step(span)
    if _was_stopped(span):
        return
    counter(metric_names.TRAINING_STEPS).record(1)
    gauge(metric_names.TRAINING_LAST_STEP_TIMESTAMP).set(span.end_ns / 1e9)


def _was_stopped(span: Span) -> bool:
    """Return whether the work failed or was cancelled."""
    return bool(span.error) or span.attributes.get(attr.OUTCOME) == "cancelled"


def _phase(span: Span, _seconds: float, _validate: str) -> None:
    own_loop.note_phase(span)


def _checkpoint(span: Span, _seconds: float, _validate: str) -> None:
    if not _was_stopped(span):
        gauge(metric_names.CHECKPOINT_LAST_TIMESTAMP).set(span.end_ns / 1e9)


def _logging(span: Span, seconds: float, _validate: str) -> None:
    counter(metric_names.LOGGING_TIME, _select_labels(span.attributes, (attr.TRACKER,))).record(seconds)


def _data_loading(_span: Span, seconds: float, _validate: str) -> None:
    counter(metric_names.DATA_LOADING_TIME).record(seconds)


def _worker(span: Span, seconds: float, _validate: str) -> None:
    values = span.attributes
    if values.get(attr.WORKER_NESTED):
        return
    labels = ((attr.WORKER_METHOD, to_name(values.get(attr.WORKER_METHOD, span.name))),)
    counter(metric_names.WORKER_CALLS, labels).record(1)
    counter(metric_names.WORKER_CALL_TIME, labels).record(seconds)


def _trajectory(span: Span, seconds: float, validate: str) -> None:
    if not span.site.hook:
        own_loop.describe(span)
    values = span.attributes
    labels = _VALIDATION_LABELS[validate]
    end = _find_end(span, values)
    outcome = None if attr.OUTCOME in values else "failure" if span.error else "success"
    span.take_attributes({attr.OUTCOME: outcome, attr.TRAJECTORY_END: end})
    counter(metric_names.ROLLOUT_TRAJECTORIES, ((attr.TRAJECTORY_END, end), *labels)).record(1)
    tokens: dict[str, float] = {}
    for kind, key in _LENGTHS:
        number = to_number(values.get(key))
        if number is not None:
            tokens[kind] = number
            histogram(metric_names.ROLLOUT_SEQUENCE_LENGTH, ((attr.TOKEN_TYPE, kind), *labels)).record(number)
    generated = to_number(values.get(attr.GENERATED_TOKENS))
    if generated is not None:
        tokens["generated"] = generated
    for kind, number in _split_tokens(tokens).items():
        counter(metric_names.ROLLOUT_TOKENS, ((attr.TOKEN_TYPE, kind), *labels)).record(number)
    turns = to_number(values.get(attr.TURNS))
    if turns is not None:
        histogram(metric_names.ROLLOUT_TURNS, labels).record(turns)
    MARKS.mark(span, seconds)
    own_loop.end_trajectory(span, seconds, values, tokens)


def _find_end(span: Span, values: Mapping[str, AttributeValue]) -> str:
    """Return how a trajectory ended; see `metric_names.ROLLOUT_TRAJECTORIES`. What a loop of the user has set counts before all else."""
    given = values.get(attr.TRAJECTORY_END)
    if given is not None and not (span.error and span.site.hook):  # it may fail after verl has ended it, in its reward
        return to_name(given)
    if values.get(attr.OUTCOME) == "cancelled":
        return "cancelled"
    if span.error:
        if "timeout" in span.error.lower():  # of asyncio, of HTTP clients
            return "timeout"
        return "tool_failed" if span.error == own_loop.find_failed_tool(span) else "failed"
    reasons = values.get(attr.GEN_AI_FINISH_REASONS) or own_loop.find_reasons(span)
    found = (_END_OF_REASON.get(str(reason)) for reason in (reasons if type(reasons) is tuple else ()))
    return next(filter(None, found), "finished")


_END_OF_REASON: Final = {"length": "length", "max_tokens": "length", "abort": "aborted", "aborted": "aborted"}
"""How a trajectory ended by the finish reason of its last LLM call: of OpenAI, Anthropic, and verl's engines."""
_LENGTHS: Final = (("prompt", attr.PROMPT_TOKENS), ("response", attr.RESPONSE_TOKENS))


def _split_tokens(tokens: Mapping[str, float]) -> dict[str, float]:
    """Return the tokens of a trajectory by who wrote them: the prompt, the model (``generated``), or tools and environments (``observation``).

    Where it is not recorded which tokens of a response the model wrote, it counts as having written all of them.
    """
    kinds = {"prompt": tokens["prompt"]} if "prompt" in tokens else {}
    response = tokens.get("response")
    generated = tokens.get("generated", response)
    if generated is not None:
        kinds["generated"] = generated
        if response is not None and response > generated:
            kinds["observation"] = response - generated
    return kinds


def _consume(span: Span, _seconds: float, _validate: str) -> None:
    if not span.site.hook:
        own_loop.note_consumed(span)


def _llm(span: Span, seconds: float, validate: str) -> None:
    site, own, fixed = span.site, span._attributes or {}, span.site.attributes
    cache = site.token_series if own.keys().isdisjoint(_LLM_LABELS) else {}
    both: list[float | None] = []
    for metric, key in _TOKENS:
        tokens = to_number(own.get(key, fixed.get(key)))
        both.append(tokens)
        if tokens is not None:
            series = cache.get((metric, validate))
            if series is None:
                more = _VALIDATION_LABELS[validate]
                series = cache[metric, validate] = _find_cached(counter, metric, span.attributes, _LLM_LABELS, *more)
            series.record(tokens)
    preemptions = to_number(span.find_attribute(attr.PREEMPTIONS))
    if preemptions:
        counter(metric_names.ROLLOUT_PREEMPTIONS).record(preemptions)
    if not site.hook:
        own_loop.note_llm(span, seconds, both[0], both[1], preemptions, span.find_attribute(attr.GEN_AI_FINISH_REASONS))


def _turn(span: Span, _seconds: float, _validate: str) -> None:
    if not span.site.hook:
        own_loop.note_turn(span)


def _tool(span: Span, seconds: float, validate: str) -> None:
    if not span.site.hook:
        own_loop.note_tool(span, seconds)
    setup = to_number(span.find_attribute(attr.TOOL_SETUP_SECONDS))
    if setup is not None:
        more = _VALIDATION_LABELS[validate]
        _find_cached(counter, metric_names.TOOL_SETUP_TIME, span.attributes, (attr.GEN_AI_TOOL,), *more).record(setup)


def _reward(span: Span, seconds: float, validate: str) -> None:
    values = span.attributes
    detail = span._detail
    scores = (
        (detail.scores if detail is not None else ())
        or values.get(attr.REWARD_SCORES)
        or (values.get(attr.REWARD_SCORE),)
    )
    numbers = [
        number
        for score in (scores if isinstance(scores, tuple) else (scores,))
        if (number := to_number(score)) is not None and number == number
    ]
    own_loop.note_reward(span, seconds, values, numbers)
    more = _VALIDATION_LABELS[validate]
    for number in numbers:
        label = attr.REWARD_BIN, bin_of(number)
        metric = metric_names.REWARD_SAMPLES
        _find_cached(counter, metric, values, (attr.DATA_SOURCE,), label, *more).record(1)


_WITH_ERROR: Final = frozenset(row.name for row in METRICS.values() if attr.ERROR_TYPE in row.labels)
"""Histograms with the label ``error.type``."""
_WITH_VALIDATION: Final = frozenset(row.name for row in METRICS.values() if attr.VALIDATE in row.labels)
"""Metrics with the label ``verl.validate``."""

_VERB_METRICS: Final[dict[str, Callable[[Span, float, str], None]]] = {
    "step": _step,
    "phase": _phase,
    "checkpoint": _checkpoint,
    "logging": _logging,
    "data_loading": _data_loading,
    "worker": _worker,
    "consume": _consume,
    "trajectory": _trajectory,
    "turn": _turn,
    "tool": _tool,
    "llm": _llm,
    "reward": _reward,
}
