# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``/metrics`` addresses that verl registers with RL-Insight, as targets of the run.

Rollout replicas are added by verl-otel when they start; TransferQueue and addresses of users are added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.prometheus_names import label_name
from verl_otel.recording.attribute_values import to_text
from verl_otel.recording.state import RECORDER
from verl_otel.resource import build as build_resource
from verl_otel.semconv import attributes as attr
from verl_otel.session import current as current_session
from verl_otel.session.prometheus_targets import add_entries as add_targets
from verl_otel.session.prometheus_targets import make_entry as make_target
from verl_otel.session.prometheus_targets import read_own as read_targets

DEFAULT_JOB: Final = "trainer_metrics"
MAX_ADDRESSES: Final = 10_000
"""Maximum number of addresses of one call."""


def update_prometheus_config(
    server_addresses: list[str], job_name: str | None = None, labels: list[Mapping[str, Any] | None] | None = None
) -> None:
    """Add addresses to the run's targets unless they exist. Never raises."""
    if not RECORDER.on:
        return
    with error_boundary.suppress_errors("rl_insight"):
        if labels is not None and len(labels) != len(server_addresses):
            message = "verl-otel: %d labels for %d addresses; the labels are left out"
            error_boundary.warn_once("rl_insight targets", message, len(labels), len(server_addresses))
            labels = None
        cleaned = [_clean(given or {}) for given in labels or [None] * len(server_addresses)]
        _add(list(map(str, server_addresses)), str(job_name or DEFAULT_JOB), cleaned)


def _add(addresses: list[str], job: str, labels: list[dict[str, str]]) -> None:
    current = current_session()
    if current is None or not current.config.exporters:
        return
    existing = {address for entry in read_targets(current.config) for address in entry["targets"]}
    resource = build_resource(current.config)
    entries = []
    for address, extra in list(zip(addresses, labels, strict=True))[:MAX_ADDRESSES]:
        if address not in existing:
            role = job if job == "transfer_queue" else "llm_server" if "replica" in extra else resource.text(attr.ROLE)
            instance = f"{resource.text(attr.RUN_ID)}/{job}-{address}"
            entry = make_target(resource, address, instance=instance, **{label_name(attr.ROLE): role})
            entries.append({**entry, "labels": {**extra, **entry["labels"]}})
    if entries:
        add_targets(current.config, entries)


def _clean(labels: Mapping[str, Any]) -> dict[str, str]:
    """Return a user's labels with valid names: Prometheus rejects a whole file with one invalid name."""
    cleaned = {label_name(str(key)): to_text(value) for key, value in labels.items()}
    return {key: value for key, value in cleaned.items() if not key.startswith("__")}
