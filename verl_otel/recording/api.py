# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The verbs: what users write, as decorators and context managers.

Every verb works in three ways: ``with verb(...) as span:``, ``@verb(...)`` and, where it needs no argument, ``@verb``. Functions
may be sync, async, generators or async generators, methods too. Before `verl_otel.init`, and with the switch off, they
record nothing and cost a function call.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from verl_otel._internal import error_boundary
from verl_otel.model import REMOTE, AttributeValue, Instrument, LinkRecord
from verl_otel.recording import context, instruments, series
from verl_otel.recording.attribute_values import MAX_NAME, to_name, to_number, to_text
from verl_otel.recording.call_attributes import extract_batch, extract_llm, extract_reward, extract_trajectory
from verl_otel.recording.callsite import CallSite, Extract, phase_site
from verl_otel.recording.decorate import decorate, is_decorated, wrap_timed
from verl_otel.recording.sampled_timers import SampledTimer, find_sampled_timer
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets
from verl_otel.semconv.spans import MAX_LINKS, SPANS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

F = TypeVar("F", bound="Callable[..., Any]")


def _span(site: CallSite, attributes: dict[str, Any]) -> Span:
    span = Span(site)
    for key, value in attributes.items():
        if value is not None:
            span.set_attribute(key, value)
    return span


def _qualified(function: Any) -> str:
    try:
        return to_name(getattr(function, "__qualname__", "") or type(function).__qualname__)
    except Exception as error:  # a proxy whose target is missing
        error_boundary.may_propagate(error)
        return to_name(type(function).__name__)


def _is_text(thing: object) -> bool:
    """Return whether something is text. ``isinstance`` would read the class of a proxy, which may raise."""
    return issubclass(type(thing), str)


_STEP = CallSite("step", attributes={attr.STEP_LINEAGE: "submitted"}, defaults=frozenset({attr.STEP_LINEAGE}))
_ROLLOUT = CallSite(
    "phase", "verl.phase.gen", attributes={attr.PHASE: "gen"}, extract=extract_batch, merges_with_parent=True
)
# Attributes of most trajectories, shared: a dictionary of more than ten entries takes twice the memory.
_TRAJECTORY_DEFAULTS: Final[dict[str, AttributeValue]] = {attr.GEN_AI_OPERATION: "invoke_agent", attr.VALIDATE: False}
_TRAJECTORY = CallSite(
    "trajectory", attributes=_TRAJECTORY_DEFAULTS, extract=extract_trajectory, defaults=frozenset({attr.VALIDATE})
)
_TURN = CallSite("turn")
MAX_NAMES: Final = 500
"""Cached names of a user's own spans. Names should be few; what varies belongs in attributes."""
_spans: dict[str, CallSite] = {}


@overload
def step(number: F, /) -> F: ...
@overload
def step(number: int | None = None) -> Span: ...
def step(number: Any = None) -> Any:
    """Record one training step: the root of a trace that is always kept.

    Args:
        number: The step's number, counted from 1 as verl does. Without it, as in ``@verl_otel.step``, steps are counted from 1, or on from the last
            number. Pass it where a training is resumed.

    Example:
        for number in range(1, 101):
            with verl_otel.step(number):
                train_one_step()
    """
    if is_decorated(number):
        return Span(_STEP)(number)
    return _span(_STEP, {attr.STEP_NUMBER: number})


def phase(key: str) -> Span:
    """Record one phase of a step, such as ``gen`` or ``update_actor``.

    Between two steps of a loop of one's own it is the reason why the next one starts late. Elsewhere outside a step it is measured and makes no
    span.

    Args:
        key: verl's timer key, or one of your own: lower-case letters, digits, ``_``, ``.``, ``/``; 64 keys at most.

    Example:
        with verl_otel.phase("adv"):
            compute_advantage(batch)
    """
    return Span(phase_site(key))


@overload
def rollout(function: F, /) -> F: ...
@overload
def rollout(*, extract: Extract | None = None) -> Span: ...
def rollout(function: Any = None, *, extract: Extract | None = None) -> Any:
    """Record the generation of one batch of samples: phase ``gen``, or more detail on the trainer's own ``gen``.

    Args:
        function: The decorated function, in the form without brackets.
        extract: Replaces what is read from arguments and result (batch size and tokens).

    Example:
        @verl_otel.rollout
        def generate_sequences(prompts): ...
    """
    site = (
        _ROLLOUT
        if extract is None
        else CallSite("phase", _ROLLOUT.name, attributes=_ROLLOUT.attributes, extract=extract, merges_with_parent=True)
    )
    return Span(site)(function) if is_decorated(function) else Span(site)


@overload
def trajectory(uid: F, /) -> F: ...
@overload
def trajectory(
    uid: str | None = None,
    index: int | None = None,
    *,
    step: int | None = None,
    agent: str | None = None,
    validate: bool = False,
    extract: Extract | None = None,
) -> Span: ...
def trajectory(
    uid: Any = None,
    index: int | None = None,
    *,
    step: int | None = None,
    agent: str | None = None,
    validate: bool = False,
    extract: Extract | None = None,
) -> Any:
    """Record one trajectory: a trace of its own, linked to whatever submitted it.

    Args:
        uid: Identity of the prompt, shared by the trajectories of one group.
        index: Number of the trajectory in its group.
        step: The training step that it belongs to.
        agent: Name of the agent loop; becomes a label, so it needs few values.
        validate: Whether it belongs to a validation.
        extract: Replaces what is read from the result (turns, tokens, reward).

    Example:
        async def my_agent(prompt):
            with verl_otel.trajectory(prompt.uid, 0):
                with verl_otel.turn(), verl_otel.llm("qwen"):
                    answer = await generate(prompt)
    """
    site = _TRAJECTORY
    if extract is not None:
        site = CallSite("trajectory", attributes=_TRAJECTORY_DEFAULTS, extract=extract, defaults=_TRAJECTORY.defaults)
    decorated = uid if is_decorated(uid) else None
    if decorated is not None:
        uid = None
    values = {
        attr.SAMPLE_UID: None if uid is None else to_text(uid),
        attr.ROLLOUT_INDEX: index,
        attr.STEP_NUMBER: step,
        attr.AGENT: agent,
        attr.GEN_AI_AGENT: agent,
        attr.VALIDATE: True if to_number(validate) else None,
    }
    span = _span(site, values)
    return span if decorated is None else span(decorated)


@overload
def turn(index: F, /) -> F: ...
@overload
def turn(index: int | None = None) -> Span: ...
def turn(index: Any = None) -> Any:
    """Record one turn of a trajectory: an LLM call and what follows from it.

    Args:
        index: Number of the turn, from 0.
    """
    return Span(_TURN)(index) if is_decorated(index) else _span(_TURN, {attr.TURN_INDEX: index})


@overload
def llm(model: F, /) -> F: ...
@overload
def llm(
    model: str | None = None, *, provider: str = "verl", operation: str = "chat", extract: Extract | None = None
) -> Span: ...
def llm(model: Any = None, *, provider: str = "verl", operation: str = "chat", extract: Extract | None = None) -> Any:
    """Record one LLM call, as its caller sees it.

    Args:
        model: Name of the model; becomes a label.
        provider: ``gen_ai.provider.name``, for example ``openai`` or ``vllm``.
        operation: ``chat`` or ``text_completion``.
        extract: Replaces what is read from arguments and result (tokens, finish reason).

    Example:
        @verl_otel.llm("qwen")
        async def ask(prompt: str) -> str: ...
    """
    name = to_name(model) if _is_text(model) else ""
    operation, provider = to_name(operation), to_name(provider)
    attributes = {attr.GEN_AI_OPERATION: operation, attr.GEN_AI_PROVIDER: provider}
    if name:
        attributes[attr.GEN_AI_MODEL] = name
    given = {attr.GEN_AI_OPERATION: operation != "chat", attr.GEN_AI_PROVIDER: provider != "verl"}
    site = CallSite(
        "llm",
        f"{operation} {name}".strip(),
        attributes=attributes,
        extract=extract_llm if extract is None else extract,
        defaults=frozenset(key for key, is_given in given.items() if not is_given),
    )
    return Span(site)(model) if is_decorated(model) else Span(site)


@overload
def tool(name: F, /) -> F: ...
@overload
def tool(name: str | None = None, *, extract: Extract | None = None) -> Span: ...
def tool(name: Any = None, *, extract: Extract | None = None) -> Any:
    """Record one call of a tool.

    Args:
        name: Name of the tool; the function's own if absent. Becomes a label.
        extract: Reads attributes from arguments and result; nothing is read by default.

    Example:
        @verl_otel.tool("python")
        async def run_python(code: str) -> str: ...
    """
    if _is_text(name):
        name = to_name(name)
        attributes = {attr.GEN_AI_TOOL: name, attr.GEN_AI_OPERATION: "execute_tool"}
        return Span(CallSite("tool", SPANS["tool"].name + name, attributes=attributes, extract=extract))
    site = CallSite("tool", attributes={attr.GEN_AI_OPERATION: "execute_tool"}, extract=extract)
    return Span(site)(name) if is_decorated(name) else Span(site)


@overload
def reward(source: F, /) -> F: ...
@overload
def reward(source: str | None = None, *, extract: Extract | None = None) -> Span: ...
def reward(source: Any = None, *, extract: Extract | None = None) -> Any:
    """Record the computation of a reward.

    Args:
        source: The data source, such as ``gsm8k``; read from an argument ``data_source`` if absent. Becomes a label.
        extract: Replaces what is read from arguments and result (data source and scores).

    Example:
        @verl_otel.reward("math")
        async def compute_score(data_source, solution, ground_truth) -> float: ...
    """
    attributes = {attr.DATA_SOURCE: to_name(source)} if _is_text(source) else {}
    site = CallSite("reward", attributes=attributes, extract=extract_reward if extract is None else extract)
    return Span(site)(source) if is_decorated(source) else Span(site)


@overload
def update(role: F, /) -> F: ...
@overload
def update(role: str | None = None, *, extract: Extract | None = None) -> Span: ...
def update(role: Any = None, *, extract: Extract | None = None) -> Any:
    """Record a worker's update, or any other method of a worker.

    Args:
        role: What is updated, for example ``actor`` or ``critic``.
        extract: Replaces what is read from arguments and result (batch size, tokens, loss, gradient norm).

    Example:
        class MyWorker(Worker):
            @register(dispatch_mode=Dispatch.ONE_TO_ALL)
            @verl_otel.update("actor")
            def update_actor(self, batch): ...
    """
    name = to_name(role) if _is_text(role) else ""
    attributes = {attr.WORKER_METHOD: name, attr.UPDATE_ROLE: name} if name else {}
    site = CallSite(
        "worker",
        SPANS["worker"].name + name,
        attributes=attributes,
        extract=extract_batch if extract is None else extract,
    )
    return Span(site)(role) if is_decorated(role) else Span(site)


@overload
def span(name: F, /) -> F: ...
@overload
def span(
    name: str | None = None, *, attributes: dict[str, Any] | None = None, extract: Extract | None = None
) -> Span: ...
def span(name: Any = None, *, attributes: dict[str, Any] | None = None, extract: Extract | None = None) -> Any:
    """Record a span of your own.

    Args:
        name: Its name; the function's own if absent.
        attributes: Its attributes.
        extract: Reads attributes from arguments and result.

    Example:
        with verl_otel.span("load", attributes={"path": path}):
            ...
    """
    if type(name) is str and attributes is None and extract is None:
        return Span(_spans.get(name) or _remember(name))
    text = to_name(name) if _is_text(name) else ""
    site = (_spans.get(text) or _remember(text)) if text and extract is None else None
    new_span = Span(site or CallSite("span", text, extract=extract))
    new_span.set_attributes(attributes)  # type: ignore[arg-type]  # None and anything but a mapping give none
    return new_span(name) if is_decorated(name) else new_span


def _remember(name: str) -> CallSite:
    """Return the call site of the spans of one name. The first few hundred are cached."""
    site = CallSite("span", name)
    if len(_spans) < MAX_NAMES and len(name) <= MAX_NAME:
        _spans[name] = site
    return site


CACHED_TIMERS: Final = 500
"""Names whose target is cached: a block looks its timer up each time."""


class Timer:
    """Times a block or every call of a function. Made by `verl_otel.timed`.

    It may be used again, and inside itself. Tasks and threads that share one may swap their durations: let each call
    `verl_otel.timed`, which costs no more than a look into a dictionary.
    """

    # filled by `timed`: a class without a constructor is made faster
    __slots__ = ("_around", "_measured", "_start")

    _measured: series.Histogram | SampledTimer
    _start: float
    _around: list[float] | None
    """Starts of the enclosing blocks that this timer measures, too."""

    def __enter__(self) -> Timer:
        if self._start:
            self._around = [*(self._around or ()), self._start]
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._start
        self._start = self._around.pop() if self._around else 0.0
        measured = self._measured
        if error is not None:
            series.record_failure(measured, seconds, error)
        elif RECORDER.on:
            measured.record(seconds)

    def __call__(self, function: F) -> F:
        """Decorate a function.

        Raises:
            TypeError: It is a class, or anything else that would not be what it was.
        """
        return decorate(function, lambda inner, _: wrap_timed(inner, self._measured))  # type: ignore[no-any-return]  # of its type


@functools.lru_cache(maxsize=CACHED_TIMERS)
def _find_timed(name: str, description: str, plain: bool) -> series.Histogram | SampledTimer:  # noqa: FBT001 - the cache is faster without keywords
    """Return the target of a timer; ``plain``: without spans."""
    histogram = timer_series(name, description)
    return histogram if plain else find_sampled_timer(histogram)


def timer_series(name: str, description: str = "") -> series.Histogram:
    """Return the histogram of a user's timer: seconds, from microseconds to an hour."""
    instrument = Instrument(instruments.valid_name(name), "histogram", "s", to_name(description))
    if not instruments.claim(instrument, series.Histogram):
        return series.Histogram(instrument, (), buckets.TINY)  # not registered: it is never drained
    histogram = series.find(series.Histogram, instrument, (), buckets.TINY)
    assert isinstance(histogram, series.Histogram)  # noqa: S101 - made so above
    return histogram


@overload
def timed(name: F, /) -> F: ...
@overload
def timed(name: str, *, description: str = "", span: bool = False) -> Timer: ...
def timed(name: Any, *, description: str = "", span: bool = False) -> Any:
    """Time a function or a block into a histogram of your own, where calls are too many for a span each.

    Args:
        name: Name of the histogram, in seconds; the function's qualified name if absent.
        description: What it measures.
        span: Keep a few calls as spans: between two drains the slowest, failed ones and one at random. They are never
            current: a span that opens inside is their sibling.

    Example:
        @verl_otel.timed("tokenizer.encode")
        def encode(text: str) -> list[int]: ...
    """
    if type(name) is str:
        timer = Timer()
        text = description if type(description) is str else to_name(description)
        timer._measured = _find_timed(name, text, not span)
        timer._start = 0.0
        timer._around = None
        return timer
    if not is_decorated(name):
        return timed(to_name(name), description=description, span=span)
    return decorate(name, _time_by_name)


def _time_by_name(function: Any, named: Any) -> Any:
    return wrap_timed(function, timer_series(_qualified(named).replace(".<locals>", "")))


def counter(name: str, *, unit: str = "", description: str = "") -> instruments.Counter:
    """Return a counter of your own.

    Example:
        SKIPPED = verl_otel.counter("my.samples.skipped", unit="{sample}")
        SKIPPED.add(3, reason="too_long")
    """
    return instruments.Counter(name, unit, description)


def gauge(name: str, *, unit: str = "", description: str = "") -> instruments.Gauge:
    """Return a gauge of your own.

    Example:
        verl_otel.gauge("my.buffer.size", unit="{sample}").set(len(buffer))
    """
    return instruments.Gauge(name, unit, description)


def histogram(
    name: str, *, unit: str = "", description: str = "", bounds: tuple[float, ...] | None = None
) -> instruments.Histogram:
    """Return a histogram of your own.

    Args:
        name: Its name, without a unit.
        unit: UCUM: ``s``, ``By``, ``{token}``.
        description: What it measures.
        bounds: Upper bounds of its buckets, rising; seconds from 1 µs to an hour if absent.

    Example:
        verl_otel.histogram("my.prompt.length", unit="{token}", bounds=(64, 256, 1024)).record(len(ids))
    """
    return instruments.Histogram(name, unit, description, instruments.valid_bounds(bounds))


def bind_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that belongs to the span that is open now, in whatever thread it is called. Without telemetry it is ``function``.

    Only OpenTelemetry's context is taken along: other context variables stay those of the thread.

    Example:
        with verl_otel.trajectory(uid, index):
            executor.submit(verl_otel.bind_context(run_tool), call)
    """
    return context.bind_context(function) if RECORDER.on else function


# -- What a step trains on, for loops that do not train on exactly the trajectories that began inside of the step --

_CONSUME: Final = CallSite("consume")
_CONSUMED: Final = {attr.LINK_TYPE: "consumed"}
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def consume(trajectories: Iterable[Span | str]) -> None:
    """Record that the current step trains on some trajectories. Call it inside of the step, where the step waits for them.

    Needed only if these are not the trajectories that began inside of the step, for example those of the step before.

    Args:
        trajectories: Spans of `verl_otel.trajectory`, or their ``traceparent``, which can travel with a sample through any queue.

    Example:
        with verl_otel.trajectory(uid, 0) as span:
            sample = Sample(text, traceparent=span.traceparent)
        with verl_otel.step(2):
            verl_otel.consume(sample.traceparent for sample in batch)
    """
    if not RECORDER.on:
        return
    with error_boundary.suppress_errors("consume"):
        links = list(dict.fromkeys(_find_ids(trajectories)))
        for begin in range(0, len(links), MAX_LINKS):
            part = links[begin : begin + MAX_LINKS]
            with Span(_CONSUME, {attr.SAMPLES: len(part)}) as span:
                for trace_id, span_id in part:
                    span.link_record(LinkRecord(trace_id, span_id, _CONSUMED, "", REMOTE))


def _find_ids(trajectories: Iterable[Span | str]) -> Iterator[tuple[int, int]]:
    for trajectory in trajectories:
        if isinstance(trajectory, Span):
            ids = trajectory.resolve()
            yield ids.trace_id, ids.span_id
        elif (match := _TRACEPARENT.fullmatch(str(trajectory)[:64])) is not None:
            yield int(match[1], 16), int(match[2], 16)
        else:
            error_boundary.warn_once(
                "consume", "verl-otel: consume(): %.100r is neither a span nor a traceparent; ignored", trajectory
            )


from verl_otel.recording import compiled_regions  # noqa: E402, F401 - it needs the functions above
