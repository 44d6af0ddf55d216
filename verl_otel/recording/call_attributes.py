# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the verbs read from arguments and results by themselves. Duck-typed: no framework is imported here.

Each function takes the call's arguments by name and its result and returns attributes. A user replaces one by
``@verl_otel.reward("math", extract=my_function)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.recording.attribute_values import first, is_host_array, to_name, to_number, to_text
from verl_otel.semconv import attributes as attr


def extract_batch(arguments: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """Batch size, tokens, loss and gradient norm of an update or a rollout, and the rank of its worker.

    Reads the first argument that is a batch: a verl ``DataProto`` or ``TensorDict`` (their ``len``), a mapping with a
    ``batch_size``, or any sized collection. Tokens come from ``meta_info["global_token_num"]``, where verl puts them. The rank is an
    integer in the attribute ``rank`` or ``_rank`` of the object whose method it is.
    """
    batch = first(arguments, "batch", "data", "prompts", "samples", "inputs")
    metrics = _metrics_of(result)
    return {
        attr.RANK: _rank(arguments.get("self")),
        attr.BATCH_SIZE: _size(batch),
        attr.BATCH_TOKENS: _tokens(batch),
        attr.LOSS: to_number(first(metrics, "loss", "actor/loss", "critic/loss", "actor/pg_loss")),
        attr.GRAD_NORM: to_number(first(metrics, "grad_norm", "actor/grad_norm", "critic/grad_norm")),
    }


def extract_reward(arguments: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """Data source, score or scores, and components of a reward function.

    Knows a number, a mapping with ``score`` or ``reward_score``, a tuple that begins with the score, and a list or 1-dim
    array of scores. The other numbers of a mapping are components.
    """
    fields = read_components(result) if _is_mapping(type(result)) else ()
    return {attr.DATA_SOURCE: arguments.get("data_source"), **_scores(result), attr.REWARD_FIELDS: fields or None}


SCORES: Final = ("score", "reward_score", "reward", "scores")
"""Keys of a mapping that have the score; the first one that is there counts."""
MAX_COMPONENTS: Final = 16
"""Numbers beside the score that are kept of one reward."""


def read_components(result: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the numbers that a reward function returned beside the score, as ``name=number``."""
    score = next((key for key in SCORES if result.get(key) is not None), None)
    found = ((name, to_number(value)) for name, value in list(result.items())[:MAX_COMPONENTS] if name != score)
    return tuple(f"{to_name(name)}={float(number)!r}" for name, number in found if number is not None)


def extract_llm(arguments: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """Tokens, those of the input that were cached, finish reason and preemptions of an LLM call (an OpenAI-style answer, or verl's ``TokenOutput``)."""
    prompt_ids = arguments.get("prompt_ids")
    token_ids = _member(result, "token_ids")
    usage, answer = None, result
    if token_ids is None:  # not an engine's own answer
        choices = _member(result, "choices")
        answer = choices[0] if isinstance(choices, (list, tuple)) and choices else result
    if prompt_ids is None or token_ids is None:
        usage = _member(result, "usage")
    cached = None if usage is None else _member(_member(usage, "prompt_tokens_details"), "cached_tokens")
    if cached is None:  # of vLLM's output, or as verl passes it on
        fields = _member(result, "extra_fields")
        cached = _member(fields, "num_cached_tokens") if fields else None
    if cached is None:
        cached = _member(result, "num_cached_tokens")
    reason = _member(answer, "stop_reason") or _member(answer, "finish_reason")
    return {
        attr.GEN_AI_INPUT_TOKENS: to_number(_member(usage, "prompt_tokens"))
        if prompt_ids is None
        else _size(prompt_ids),
        attr.GEN_AI_OUTPUT_TOKENS: to_number(_member(usage, "completion_tokens"))
        if token_ids is None
        else _size(token_ids),
        attr.GEN_AI_CACHED_TOKENS: to_number(cached),
        attr.GEN_AI_FINISH_REASONS: (to_name(reason),) if reason is not None else None,
        attr.PREEMPTIONS: to_number(_member(result, "num_preempted")),
    }


def extract_trajectory(arguments: Mapping[str, Any], result: Any) -> dict[str, Any]:
    """Messages, tokens and reward of an agent loop (verl's ``AgentLoopOutput``, or an object or mapping with those names).

    The identity of the trajectory is read from arguments ``uid`` and ``index``. The ``response_mask`` is 1 where the model wrote a token of
    the response, and 0 where a tool or an environment answered.
    """
    fields = _member(result, "extra_fields")
    uid, index = arguments.get("uid"), arguments.get("index")
    return {
        attr.SAMPLE_UID: to_text(uid) if isinstance(uid, (str, int)) else None,
        attr.ROLLOUT_INDEX: index if type(index) is int else None,
        attr.MESSAGES: to_number(_member(result, "num_turns")),
        attr.PROMPT_TOKENS: _size(_member(result, "prompt_ids")),
        attr.RESPONSE_TOKENS: _size(_member(result, "response_ids")),
        attr.GENERATED_TOKENS: _count_ones(_member(result, "response_mask")),
        attr.REWARD_SCORE: to_number(_member(result, "reward_score")),
        attr.MODEL_VERSION_MIN: to_number(_member(fields, "min_global_steps")),
        attr.MODEL_VERSION_MAX: to_number(_member(fields, "max_global_steps")),
    }


_MAX_CLASSES: Final = 256
_mappings: dict[type, bool] = {dict: True, type(None): False}
"""Whether a class is a mapping, of the first classes that were checked: `issubclass` takes a quarter of a microsecond."""


def _member(thing: Any, name: str) -> Any:
    is_mapping = _mappings.get(type(thing))
    if is_mapping is None:
        is_mapping = _is_mapping(type(thing))
    return thing.get(name) if is_mapping else getattr(thing, name, None)


def _is_mapping(kind: type) -> bool:
    is_mapping = _mappings.get(kind)
    if is_mapping is None:
        is_mapping = issubclass(kind, Mapping)
        if len(_mappings) < _MAX_CLASSES:
            _mappings[kind] = is_mapping
    return is_mapping


def _size(thing: Any) -> int | None:
    if type(thing) is list:
        return len(thing)
    if thing is None or isinstance(thing, (str, bytes)):
        return None
    try:
        return len(thing)
    except Exception as error:
        error_boundary.may_propagate(error)
        return None


def _count_ones(mask: Any) -> int | None:
    """Return how many items of a list, or of an array in the memory of the host, are 1. A list of 32,768 takes 15 µs."""
    try:
        if isinstance(mask, (list, tuple)):
            return mask.count(1)
        return int((mask == 1).sum()) if is_host_array(mask) else None
    except Exception as error:
        error_boundary.may_propagate(error)
        return None


def _rank(worker: Any) -> int | None:
    try:
        own = vars(worker)  # not a property, which may compute something
    except TypeError:
        return None
    rank = own.get("rank", own.get("_rank"))
    return rank if type(rank) is int else None


def _tokens(batch: Any) -> int | None:
    counts = _member(_member(batch, "meta_info"), "global_token_num")
    if not isinstance(counts, (list, tuple)):
        return None
    numbers = [number for number in map(to_number, counts) if number is not None]
    return int(sum(numbers)) if len(numbers) == len(counts) else None


def _metrics_of(result: Any) -> Mapping[str, Any]:
    for candidate in (_member(_member(result, "meta_info"), "metrics"), _member(result, "metrics"), result):
        if isinstance(candidate, Mapping):
            return candidate
    return {}


def _scores(result: Any) -> dict[str, Any]:
    if _is_mapping(type(result)):
        return _scores(first(result, *SCORES))
    if isinstance(result, tuple) and result:
        return _scores(result[0])
    number = to_number(result)
    if number is not None:
        return {attr.REWARD_SCORE: float(number)}
    if is_host_array(result) and result.ndim == 1:
        result = result.tolist()
    if isinstance(result, list):
        numbers = [float(item) for item in map(to_number, result) if item is not None]
        return {attr.REWARD_SCORES: tuple(numbers)} if numbers else {}
    return {}
