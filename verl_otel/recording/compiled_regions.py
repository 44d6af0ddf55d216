# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What ``torch.compile`` traces instead of the verbs: inside a compiled region nothing is recorded.

Recording reads clocks, context variables and buffers that another thread empties. Traced, that breaks the graph, raises `Unsupported` with
``fullgraph=True``, and is compiled again at each drain (other libraries had the same: pytorch/rl 3297, DeepSpeed 7081). PyTorch traces the
function in the attribute ``_torchdynamo_inline`` of a function, if it has one, as it does for its own wrappers. Calls that are not traced do not
know of it, and nothing of PyTorch is imported. Decorated functions have no such attribute: `functools.wraps` would copy it to the decorators
above, which would not be traced then. They are in `verl_otel.integrations.torch_compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from verl_otel.model import Instrument
from verl_otel.recording import api, instruments, run_log
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.series import BoundCounter, Counter
from verl_otel.recording.span import Span

_SITE: Final = CallSite("span", "compiled")
_COUNTER: Final = Counter(Instrument("compiled", "counter", "", ""), ()).buffer


def _verb(given: Any = None, *_: object, **__: object) -> Any:
    return given if callable(given) else Span(_SITE)


def _enter(block: Any) -> Any:
    return block


def _decorate(_: object, function: Any) -> Any:
    return function


def _bind_context(function: Any) -> Any:
    return function


def _ignore(*_: object, **__: object) -> None:
    pass


def _unbound(*_: object, **__: object) -> BoundCounter:
    return _COUNTER


_StandIns = dict[str, Callable[..., Any]]
_BLOCK: Final[_StandIns] = {"__enter__": _enter, "__exit__": _ignore, "__call__": _decorate}
_STAND_INS: Final[dict[Any, _StandIns]] = {
    api: {
        **dict.fromkeys(("step", "phase", "rollout", "trajectory", "turn", "llm", "tool", "reward", "update"), _verb),
        **dict.fromkeys(("span", "timed"), _verb),
        "bind_context": _bind_context,
        "consume": _ignore,
    },
    run_log: {"log": _ignore},
    Span: {
        **dict.fromkeys(("set_attribute", "set_attributes", "set_status", "update_name", "add_event"), _ignore),
        **dict.fromkeys(("add_link", "link", "link_record", "record_exception", "fail"), _ignore),
        **dict.fromkeys(("end", "close", "discard"), _ignore),
        **_BLOCK,
    },
    api.Timer: _BLOCK,
    instruments.Counter: {"add": _ignore, "bind": _unbound},
    instruments.Gauge: {"set": _ignore},
    instruments.Histogram: {"record": _ignore},
    BoundCounter: {"add": _ignore},
}
"""By the module or class of the functions that are replaced."""

for _owner, _functions in _STAND_INS.items():
    for _name, _function in _functions.items():
        getattr(_owner, _name)._torchdynamo_inline = _function
