# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Patch a host's functions right after their module is imported, and put everything back on request.

Replacements are plain functions made with ``functools.wraps``: Ray copies the methods of a class and pickles them, and a proxy
object would arrive as the unpatched function (seen with wrapt).
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, NamedTuple

from verl_otel._internal import error_boundary
from verl_otel.recording.decorate import Wrapping, find_callsite, wrap_frequent
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER

PATCHED: Final = "__verl_otel_patch__"
"""Attribute of a replacement, which prevents patching twice."""


class Hook(NamedTuple):
    """One place in a host that is patched."""

    module: str
    symbol: str
    """The name to patch: a function, or ``Class.method``."""
    install: Callable[[ModuleType], None]
    gives: str
    """What is not recorded when the symbol is missing."""
    since: str = ""
    """First release that has it, as ``verl 0.9``; in an earlier release it is not reported as missing."""
    until: str = ""
    """First release without it, as ``verl 0.8``; from this release on it is not reported as missing."""

    @classmethod
    def wrapping(
        cls,
        module: str,
        symbol: str,
        wrap: Wrapping,
        gives: str,
        *,
        since: str = "",
        until: str = "",
        others: Mapping[str, Wrapping] = {},
    ) -> Hook:
        """Return a hook that wraps a function, and with it the ``others`` of the module, by their symbols."""
        install = functools.partial(_wrap_symbols, wraps={symbol: wrap, **others})
        return cls(module, symbol, install, gives, since, until)

    def is_expected(self) -> bool:
        """Return whether the installed release should have the symbol."""
        from verl_otel.integrations.source_inspection import is_release

        return is_release(since=self.since, until=self.until)


class Undo(NamedTuple):
    """How to undo one replacement."""

    owner: Any
    name: str
    original: Any
    """The owner's own attribute before; `_INHERITED` if it had none of its own."""


_INHERITED: Final = object()
_undo: list[Undo] = []
_waiting: dict[str, list[Hook]] = {}
status: dict[str, str] = {}
"""State of each hook in this process: ``installed``, ``missing`` or ``failed: …``, by ``module:symbol``."""


def register(hooks: Iterable[Hook]) -> None:
    """Install hooks: at once where the module is loaded, after its import where it is not."""
    for hook in hooks:
        module = sys.modules.get(hook.module)
        if module is not None:
            _install(hook, module)
        else:
            _waiting.setdefault(hook.module, []).append(hook)
    if _waiting and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def undo_all() -> None:
    """Put back every function that was replaced and stop waiting for imports."""
    _waiting.clear()
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    while _undo:
        owner, name, original = _undo.pop()
        if original is not _INHERITED:
            setattr(owner, name, original)
        elif name in vars(owner):
            delattr(owner, name)
    status.clear()


def replace(owner: Any, name: str, wrap: Wrapping) -> None:
    """Replace ``owner.name`` by ``wrap(original)``, once.

    Raises:
        AttributeError: There is no such name; the hook is then reported as missing.
    """
    original = inspect.getattr_static(owner, name)
    function = original.__func__ if isinstance(original, (staticmethod, classmethod)) else original
    if getattr(function, PATCHED, False):
        return
    replacement = wrap(function)
    setattr(replacement, PATCHED, True)
    if isinstance(owner, ModuleType):
        # With this name it is pickled by reference, and a process without verl-otel gets the host's own function.
        replacement.__module__, replacement.__qualname__ = owner.__name__, name
    _put(owner, name, type(original)(replacement) if function is not original else replacement)


def _wrap_symbols(module: Any, wraps: Mapping[str, Wrapping]) -> None:
    for symbol, wrap in wraps.items():
        owner, _, name = symbol.rpartition(".")
        replace(getattr(module, owner) if owner else module, name, wrap)


def assign(owner: Any, name: str, value: Any) -> None:
    """Set ``owner.name``, so that `undo_all` sets it back.

    Raises:
        AttributeError: There is no such name.
    """
    getattr(owner, name)
    _put(owner, name, value)


def _put(owner: Any, name: str, value: Any) -> None:
    original = vars(owner).get(name, _INHERITED)
    setattr(owner, name, value)
    _undo.append(Undo(owner, name, original))


Begin = Callable[[Any, tuple[Any, ...], dict[str, Any]], "Span | None"]
"""``begin(self, args, kwargs)`` returns the span of one call, not yet entered, or None for a call of no interest."""
Finish = Callable[[Span, tuple[Any, ...], dict[str, Any], Any], None]
"""``finish(span, args, kwargs, result)`` reads the result of a call that succeeded."""


def in_span(begin: Begin, finish: Finish | None = None) -> Wrapping:
    """Return what wraps a method, sync or async, in a span. A method that the user has decorated stays unchanged."""

    def wrap(original: Any) -> Any:
        if find_callsite(original) is not None:
            return original
        location = f"{original.__module__}:{original.__qualname__}"
        return wrap_frequent(original, _make_opening(location, begin), _make_closing(location, finish))

    return wrap


def _make_opening(location: str, begin: Begin) -> Any:
    def open_span(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | None:
        if RECORDER.on:
            try:
                span = begin(args[0], args[1:], kwargs)
                if span is not None:
                    span.__enter__()
                return span
            except Exception as error:
                error_boundary.record_internal_error(location, error)
        return None

    return open_span


def _make_closing(location: str, finish: Finish | None) -> Any:
    def close_span(
        span: Span | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, error: BaseException | None
    ) -> None:
        if span is None:
            return
        if error is None and finish is not None:
            try:
                finish(span.merged_parent or span, args[1:], kwargs, result)
            except Exception as failure:
                error_boundary.record_internal_error(location, failure)
        span.__exit__(None, error, None)

    return close_span


def argument(args: Sequence[Any], kwargs: dict[str, Any], index: int, name: str) -> Any:
    """Return an argument that was passed by position or by name; None if it was not passed."""
    return kwargs.get(name, args[index] if len(args) > index else None)


def _install(hook: Hook, module: ModuleType) -> None:
    key = f"{hook.module}:{hook.symbol}"
    try:
        hook.install(module)
        status[key] = "installed"
    except (AttributeError, KeyError):
        if not hook.is_expected():
            return
        status[key] = "missing"
        error_boundary.warn_once(key, "verl-otel: %s has no %s; without it: %s", hook.module, hook.symbol, hook.gives)
    except Exception as error:
        error_boundary.may_propagate(error)
        status[key] = f"failed: {type(error).__name__}: {error}"
        error_boundary.warn_once(key, "verl-otel: hook %s failed: %s; without it: %s", key, repr(error), hook.gives)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module that hooks wait for by the other finders, and runs the hooks after the module's body."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname not in _waiting or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, fullname)  # type: ignore[assignment]  # it forwards to the original loader
        return spec


class _Loader:
    """Replaces a module's loader until the module is executed, and runs its hooks then.

    The original loader is not modified: it may be a proxy that forwards attributes that are set on it.
    """

    def __init__(self, loader: Any, fullname: str) -> None:
        self._loader = loader
        self._fullname = fullname

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        for owner, name in ((module, "__loader__"), (module.__spec__, "loader")):
            if getattr(owner, name, None) is self:
                setattr(owner, name, self._loader)
        self._loader.exec_module(module)
        for hook in _waiting.pop(self._fullname, ()):
            _install(hook, module)


_FINDER: Final = _Finder()
