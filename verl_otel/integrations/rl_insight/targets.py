# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``/metrics`` addresses that verl registers with RL-Insight, as targets of the run.

Rollout replicas are there already, since verl-otel adds them when they start; TransferQueue and what users register are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verl_otel import _guard, session
from verl_otel.exporting.names import label_name
from verl_otel.recording.store import Store
from verl_otel.recording.values import to_text
from verl_otel.semconv import attributes as attr
from verl_otel.session import resource, targets

DEFAULT_JOB: Final = "trainer_metrics"
MAX_ADDRESSES: Final = 10_000
"""Addresses of one call."""


def update_prometheus_config(
    server_addresses: list[str],
    job_name: str | None = None,
    labels: list[Mapping[str, Any] | None] | None = None,
) -> None:
    """Add addresses that serve metrics to the run's targets, but for those that are there. Never raises."""
    if not Store.on:
        return
    with _guard.swallowed("rl_insight"):
        if labels is not None and len(labels) != len(server_addresses):
            message = "verl-otel: %d labels for %d addresses; the labels are left out"
            _guard.say("rl_insight targets", message, len(labels), len(server_addresses))
            labels = None
        said = [_clean(each or {}) for each in labels or [None] * len(server_addresses)]
        _add(list(map(str, server_addresses)), str(job_name or DEFAULT_JOB), said)


def _add(addresses: list[str], job: str, labels: list[dict[str, str]]) -> None:
    current = session.current()
    if current is None or not current.config.exporters:
        return
    known = {address for entry in targets.read_own(current.config) for address in entry["targets"]}
    mine = resource.build(current.config)
    entries = []
    for address, each in list(zip(addresses, labels, strict=True))[:MAX_ADDRESSES]:
        if address not in known:
            role = job if job == "transfer_queue" else "llm_server" if "replica" in each else mine.text(attr.ROLE)
            instance = f"{mine.text(attr.RUN_ID)}/{job}-{address}"
            entry = targets.make_entry(mine, address, instance=instance, verl_role=role)
            entries.append({**entry, "labels": {**each, **entry["labels"]}})
    if entries:
        targets.add_entries(current.config, entries)


def _clean(labels: Mapping[str, Any]) -> dict[str, str]:
    """Return a user's labels under names that Prometheus takes: of a file with one that it does not take, it takes nothing."""
    found = {label_name(str(key)): to_text(value) for key, value in labels.items()}
    return {key: value for key, value in found.items() if not key.startswith("__")}
