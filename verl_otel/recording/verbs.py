# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The verbs: what users write, as decorators and context managers.

Every verb works in three ways: ``with verb(...) as span:``, ``@verb(...)`` and, where it needs no argument, ``@verb``. Functions
may be sync, async, generators or async generators, methods too. Before `verl_otel.init`, and with the switch off, they
record nothing and cost a function call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from verl_otel.model import AttributeValue
from verl_otel.recording import instruments
from verl_otel.recording.extract import extract_batch, extract_llm, extract_reward, extract_trajectory
from verl_otel.recording.phases import phase_site
from verl_otel.recording.site import Extract, Site
from verl_otel.recording.span import Span, make_span
from verl_otel.recording.values import clean
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def _span(site: Site, attributes: dict[str, Any]) -> Span:
    return make_span(site, {key: clean(value) for key, value in attributes.items() if value is not None} or None)


def _qualified(function: Any) -> str:
    return str(getattr(function, "__qualname__", "") or type(function).__qualname__)


def _is_function(thing: object) -> bool:
    return callable(thing) or isinstance(thing, classmethod)


_STEP = Site("step")
_ROLLOUT = Site("phase", "verl.phase.gen", attributes={attr.PHASE: "gen"}, extract=extract_batch, adopts=True)
# What most trajectories say is said once: a dictionary of more than ten entries takes twice the memory.
_USUAL: Final[dict[str, AttributeValue]] = {attr.GEN_AI_OPERATION: "invoke_agent", attr.VALIDATE: False}
_TRAJECTORY = Site("trajectory", attributes=_USUAL, extract=extract_trajectory, defaults=frozenset({attr.VALIDATE}))
_TURN = Site("turn")
MAX_NAMES: Final = 500
"""Names of a user's own spans that are found again; names should be few, and what varies an attribute."""
_spans: dict[str, Site] = {}


@overload
def step(number: F, /) -> F: ...
@overload
def step(number: int | None = None) -> Span: ...
def step(number: Any = None) -> Any:
    """Record one training step: the root of a trace that is always kept.

    Args:
        number: The step's number, counted from 1 as verl does.

    Example:
        for number in range(1, 101):
            with verl_otel.step(number):
                train_one_step()
    """
    if _is_function(number):
        return Span(_STEP)(number)
    return _span(_STEP, {attr.STEP_NUMBER: number})


def phase(key: str) -> Span:
    """Record one phase of a step, such as ``gen`` or ``update_actor``.

    Outside a step it is measured and makes no span.

    Args:
        key: verl's timer key, or one of your own: lower-case letters, digits, ``_``, ``.``, ``/``; 64 keys at most.

    Example:
        with verl_otel.phase("adv"):
            compute_advantage(batch)
    """
    return make_span(phase_site(key))


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
        else Site("phase", _ROLLOUT.name, attributes=_ROLLOUT.attributes, extract=extract, adopts=True)
    )
    return Span(site)(function) if _is_function(function) else Span(site)


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
        site = Site("trajectory", attributes=_USUAL, extract=extract, defaults=_TRAJECTORY.defaults)
    decorated = uid if _is_function(uid) else None
    if decorated is not None:
        uid = None
    values = {
        attr.SAMPLE_UID: None if uid is None else str(uid),
        attr.ROLLOUT_INDEX: index,
        attr.STEP_NUMBER: step,
        attr.AGENT: agent,
        attr.GEN_AI_AGENT: agent,
        attr.VALIDATE: validate or None,
    }
    made = _span(site, values)
    return made if decorated is None else made(decorated)


@overload
def turn(index: F, /) -> F: ...
@overload
def turn(index: int | None = None) -> Span: ...
def turn(index: Any = None) -> Any:
    """Record one turn of a trajectory: an LLM call and what follows from it.

    Args:
        index: Number of the turn, from 0.
    """
    return Span(_TURN)(index) if _is_function(index) else _span(_TURN, {attr.TURN_INDEX: index})


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
    name = model if isinstance(model, str) else ""
    attributes = {attr.GEN_AI_OPERATION: operation, attr.GEN_AI_PROVIDER: provider}
    if name:
        attributes[attr.GEN_AI_MODEL] = name
    given = {attr.GEN_AI_OPERATION: operation != "chat", attr.GEN_AI_PROVIDER: provider != "verl"}
    site = Site(
        "llm",
        f"{operation} {name}".strip(),
        attributes=attributes,
        extract=extract or extract_llm,
        defaults=frozenset(key for key, said in given.items() if not said),
    )
    return Span(site)(model) if _is_function(model) else Span(site)


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
    if isinstance(name, str):
        attributes = {attr.GEN_AI_TOOL: name, attr.GEN_AI_OPERATION: "execute_tool"}
        return Span(Site("tool", SPANS["tool"].name + name, attributes=attributes, extract=extract))
    site = Site("tool", attributes={attr.GEN_AI_OPERATION: "execute_tool"}, extract=extract)
    return Span(site)(name) if _is_function(name) else Span(site)


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
    attributes = {attr.DATA_SOURCE: source} if isinstance(source, str) else {}
    site = Site("reward", attributes=attributes, extract=extract or extract_reward)
    return Span(site)(source) if _is_function(source) else Span(site)


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
    name = role if isinstance(role, str) else ""
    attributes = {attr.WORKER_METHOD: name, attr.UPDATE_ROLE: name} if name else {}
    site = Site("worker", SPANS["worker"].name + name, attributes=attributes, extract=extract or extract_batch)
    return Span(site)(role) if _is_function(role) else Span(site)


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
        attributes: What to say about it.
        extract: Reads attributes from arguments and result.

    Example:
        with verl_otel.span("load", attributes={"path": path}):
            ...
    """
    if type(name) is str and attributes is None and extract is None:
        return make_span(_spans.get(name) or _remember(name))
    values = {key: clean(value) for key, value in (attributes or {}).items()}
    site = Site("span", name if isinstance(name, str) else "", attributes=values, extract=extract)
    return Span(site)(name) if _is_function(name) else Span(site)


def _remember(name: str) -> Site:
    """Return the site of the spans of one name; the first few hundred names are found again."""
    site = Site("span", name)
    if len(_spans) < MAX_NAMES:
        _spans[name] = site
    return site


@overload
def timed(name: F, /) -> F: ...
@overload
def timed(name: str, *, description: str = "", span: bool = False) -> instruments.Timer: ...
def timed(name: Any, *, description: str = "", span: bool = False) -> Any:
    """Time a function or a block into a histogram of your own, where calls are too many for a span each.

    Args:
        name: Name of the histogram, in seconds; the function's qualified name if absent.
        description: What it measures.
        span: Keep a few calls as spans: between two drains the slowest, those that failed, and one that is drawn. They are
            never current: a span that opens inside lies beside them.

    Example:
        @verl_otel.timed("tokenizer.encode")
        def encode(text: str) -> list[int]: ...
    """
    if type(name) is str:
        found = (instruments.LEAVES if span else instruments.TIMERS).get(name)
        return instruments.make_timer(found or instruments.find_timed(name, description, span=span))
    return instruments.make_timer(instruments.timer_series(_qualified(name).replace(".<locals>", "")))(name)


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
