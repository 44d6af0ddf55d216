# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The import of ``rl_insight``, answered with modules of ours.

The finder stands last on ``sys.meta_path``: it is asked only for what nobody else has found, so a real package wins without being looked
for. With ``VERL_OTEL_RL_INSIGHT=on`` it stands first.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard

PACKAGE: Final = "rl_insight"
VERSION: Final = "0.3.0+verl.otel"
"""The version whose functions we have, as verl compares it, and who has them."""
_OURS: Final = "__verl_otel__"
"""Attribute of a module of ours."""


def install(*, first: bool) -> None:
    """Answer imports from now on.

    Args:
        first: Before everybody else, so that an installed package is not found.
    """
    if _FINDER in sys.meta_path:
        return
    sys.meta_path.insert(0 if first else len(sys.meta_path), _FINDER)
    loaded = sys.modules.get(PACKAGE)
    if first and loaded is not None and not is_ours(loaded):
        _guard.say(PACKAGE, "verl-otel: %s was imported before verl-otel was loaded, and goes on answering", PACKAGE)


def uninstall() -> None:
    """Answer no more, and take away the modules that were imported. Whoever holds one keeps it."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        if is_ours(sys.modules[name]):
            del sys.modules[name]


def is_ours(module: object) -> bool:
    """Return whether a module was made here."""
    return isinstance(module, ModuleType) and _OURS in vars(module)


def _package() -> dict[str, Any]:
    exported = {
        **_api(),
        "agent_loop_session": _agent_loop()["agent_loop_session"],
        "update_prometheus_config": _targets()["update_prometheus_config"],
        "__version__": VERSION,
    }
    return {**exported, "__all__": sorted(exported)}


def _api() -> dict[str, Any]:
    from verl_otel.integrations.rl_insight import metrics, traces

    return {
        name: getattr(module, name)
        for module, names in (
            (metrics, ("finish", "init", "metric_count", "metric_gauge", "metric_histogram")),
            (traces, ("trace_op", "trace_span", "trace_state")),
        )
        for name in names
    }


def _agent_loop() -> dict[str, Any]:
    from verl_otel.integrations.rl_insight import agent_loop

    return {name: getattr(agent_loop, name) for name in ("agent_loop_lane_id", "agent_loop_session")}


def _targets() -> dict[str, Any]:
    from verl_otel.integrations.rl_insight import targets

    return {"update_prometheus_config": targets.update_prometheus_config}


_CONTENTS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    PACKAGE: _package,
    f"{PACKAGE}.api": _api,
    f"{PACKAGE}.agent_loop": _agent_loop,
    f"{PACKAGE}.utils": _targets,
}
"""The modules that somebody who reports to RL-Insight imports, and what makes their names."""


class _StandIn(importlib.abc.MetaPathFinder):
    """Finds `_CONTENTS`; parts of a package only where the package is ours."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname not in _CONTENTS or (fullname != PACKAGE and not is_ours(sys.modules.get(PACKAGE))):
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(), origin="verl-otel", is_package=fullname == PACKAGE)


class _Loader(importlib.abc.Loader):
    """Fills a module with our functions."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({_OURS: True, "__doc__": "RL-Insight's functions, answered by verl-otel."})
        vars(module).update(_CONTENTS[module.__name__]())


_FINDER: Final = _StandIn()
