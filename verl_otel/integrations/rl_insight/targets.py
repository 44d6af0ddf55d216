# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``/metrics`` addresses that verl registers with RL-Insight: rollout replicas and TransferQueue.

They are kept here until discovery asks for them, and handed on as they come from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from verl_otel import _guard
from verl_otel.recording.store import Store
from verl_otel.recording.values import to_text

DEFAULT_JOB: Final = "trainer_metrics"
MAX_TARGETS: Final = 10_000
"""Addresses that are remembered."""


class Target(NamedTuple):
    """One address that serves metrics."""

    address: str
    """``host:port`` or ``[ipv6]:port``."""
    job: str
    """Who serves it: the engine's name (``vllm``), ``transfer_queue``, or what a user said."""
    labels: tuple[tuple[str, str], ...] = ()
    """What verl says of it: ``replica``."""


Listener = Callable[[list[Target]], None]


class _Registered:
    """What was registered in this process."""

    targets: dict[str, Target] = {}
    listener: Listener | None = None


def listen(listener: Listener | None) -> None:
    """Have a function called with every target, those known already at once; None: with no more."""
    _Registered.listener = listener
    _hand_over(list(_Registered.targets.values()))


def known() -> list[Target]:
    """Return every target that was registered in this process, the latest of each address."""
    return list(_Registered.targets.values())


def clear() -> None:
    """Forget every target and the listener."""
    _Registered.targets.clear()
    _Registered.listener = None


def update_prometheus_config(
    server_addresses: list[str],
    job_name: str | None = None,
    labels: list[Mapping[str, Any] | None] | None = None,
) -> None:
    """Register addresses that serve metrics. Nothing is sent from here, nothing waits, nothing raises."""
    if not Store.on:
        return
    with _guard.swallowed("rl_insight"):
        if labels is not None and len(labels) != len(server_addresses):
            _guard.say(
                "rl_insight targets", "verl-otel: %d labels for %d addresses", len(labels), len(server_addresses)
            )
            labels = None
        job = job_name or DEFAULT_JOB
        targets = [
            Target(str(address), str(job), tuple((str(key), to_text(value)) for key, value in (each or {}).items()))
            for address, each in zip(server_addresses, labels or [None] * len(server_addresses), strict=True)
        ]
        for target in targets:
            if len(_Registered.targets) < MAX_TARGETS or target.address in _Registered.targets:
                _Registered.targets[target.address] = target
        _hand_over(targets)


def _hand_over(targets: list[Target]) -> None:
    if _Registered.listener is not None and targets:
        with _guard.swallowed("rl_insight"):
            _Registered.listener(targets)
