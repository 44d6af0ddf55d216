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
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, NamedTuple

from verl_otel import _guard
from verl_otel.recording.span import Span
from verl_otel.recording.store import Store
from verl_otel.recording.wrap import marked

PATCHED: Final = "__verl_otel_patch__"
"""Attribute of a replacement, so that nothing is patched twice."""


class Hook(NamedTuple):
    """One place in a host that is patched."""

    module: str
    symbol: str
    """What must be there: a function, or ``Class.method``."""
    install: Callable[[ModuleType], None]
    gives: str
    """What a user loses when it is missing."""
    since: str = ""
    """First release that has it, as ``verl 0.9``; an earlier one is not said to lack it."""
    until: str = ""
    """First release that has it no more, as ``verl 0.8``; it and later ones are not said to lack it."""

    def is_expected(self) -> bool:
        """Return whether the installed release should have this place."""
        from verl_otel.integrations.symbols import is_release

        return is_release(since=self.since, until=self.until)


class Undo(NamedTuple):
    """How one replacement is taken back."""

    owner: Any
    name: str
    original: Any
    """What the owner itself had under this name; `_INHERITED` if it had nothing of its own."""


_INHERITED: Final = object()
_undo: list[Undo] = []
_waiting: dict[str, list[Hook]] = {}
status: dict[str, str] = {}
"""What became of each hook in this process: ``installed``, ``missing`` or ``failed: …``, by ``module:symbol``."""


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


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace ``owner.name`` by ``make(original)``, once.

    Raises:
        AttributeError: There is no such name; the hook then counts as missing.
    """
    original = inspect.getattr_static(owner, name)
    function = original.__func__ if isinstance(original, (staticmethod, classmethod)) else original
    if getattr(function, PATCHED, False):
        return
    made = make(function)
    setattr(made, PATCHED, True)
    if isinstance(owner, ModuleType):
        # Found by this name, it is pickled as a name, and a process that lacks us takes the host's own function.
        made.__module__, made.__qualname__ = owner.__name__, name
    _put(owner, name, type(original)(made) if function is not original else made)


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


def wrap_method(owner: Any, name: str, begin: Begin, finish: Finish | None = None) -> None:
    """Open a span around a method, sync or async. A method that the user decorated is left alone: he knows better."""
    replace(owner, name, lambda original: make_wrapper(original, begin, finish))


def make_wrapper(original: Any, begin: Begin, finish: Finish | None = None) -> Any:
    """Return ``original`` with a span around it."""
    if marked(original) is not None:
        return original
    place = f"{original.__module__}:{original.__qualname__}"

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def async_wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            span = enter(place, begin, self, args, kwargs)
            try:
                result = await original(self, *args, **kwargs)
            except BaseException as error:
                leave(span, error)
                raise
            read(place, finish, span, args, kwargs, result)
            leave(span)
            return result

        return async_wrapper

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        span = enter(place, begin, self, args, kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            leave(span, error)
            raise
        read(place, finish, span, args, kwargs, result)
        leave(span)
        return result

    return wrapper


def enter(place: str, begin: Begin, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | None:
    """Begin the span of one call; None when off, of no interest, or when our own code fails."""
    if not Store.on:
        return None
    try:
        span = begin(owner, args, kwargs)
        if span is not None:
            span.__enter__()
    except Exception as error:
        _guard.report(place, error)
        return None
    return span


def read(
    place: str, finish: Finish | None, span: Span | None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    """Let a hook look at the result of a call."""
    if span is None or finish is None:
        return
    try:
        finish(span.host or span, args, kwargs, result)
    except Exception as error:
        _guard.report(place, error)


def leave(span: Span | None, error: BaseException | None = None) -> None:
    """End the span of one call."""
    if span is not None:
        span.close(error)


def argument(args: Sequence[Any], kwargs: dict[str, Any], index: int, name: str) -> Any:
    """Return an argument that may have been given by position or by name; None if it was not."""
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
        _guard.say(key, "verl-otel: %s has no %s; without it: %s", hook.module, hook.symbol, hook.gives)
    except Exception as error:
        status[key] = f"failed: {type(error).__name__}: {error}"
        _guard.say(key, "verl-otel: hook %s failed: %r; without it: %s", key, error, hook.gives)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a waiting module by the other finders and has its hooks run right after its body."""

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
            spec.loader = _Loader(spec.loader, fullname)  # type: ignore[assignment]  # it is all that the other one is
        return spec


class _Loader:
    """Stands in for a module's loader until the module runs, and has its hooks run then.

    The other loader is left as it is: it may be a proxy of somebody else, who hands on what is set on it.
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
