# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Sanitizes the entries of ``file_sd`` files and of a cluster's registry before they reach Prometheus: other processes wrote them.

Labels that begin with ``__`` configure a scrape: address, scheme, path and parameters of the request, interval and time-out. They are
never taken from an entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

MAX_TARGETS: Final = 1_000
MAX_LABELS: Final = 64
MAX_VALUE: Final = 256
"""Characters of a label value; the scrape limits of the shipped configuration refuse targets with longer ones."""
META: Final = "__meta_verl_otel_"
OWN: Final = frozenset(META + name for name in ("pid", "host", "pid_space", "gone"))
"""Our own labels, which tell whether a process lives. Prometheus drops them."""
_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,127}")
_ADDRESS: Final = re.compile(
    r"(?:[a-zA-Z0-9_](?:[a-zA-Z0-9._-]{0,252}[a-zA-Z0-9_])?|\[[0-9a-fA-F:.]{2,45}(?:%\w{1,16})?\]):([0-9]{1,5})",
    re.ASCII,
)


def sanitize(entry: object) -> dict[str, Any] | None:
    """Return the allowed part of an entry; None if it is not an entry, or has no valid address.

    Prometheus refuses a whole file for one invalid entry.
    """
    if not isinstance(entry, dict):
        return None
    targets, labels = entry.get("targets"), entry.get("labels", {})
    if not isinstance(targets, list) or not isinstance(labels, dict):
        return None
    if not all(isinstance(text, str) for text in (*targets, *labels, *labels.values())):
        return None
    addresses = [text for text in targets[:MAX_TARGETS] if is_host_port(text)]
    return {"targets": addresses, "labels": _clean_labels(labels)} if addresses else None


def is_host_port(text: str) -> bool:
    """Return whether a text is ``host:port``, without a scheme, a user or a path."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 1 << 16


def _clean_labels(labels: Mapping[str, str]) -> dict[str, str]:
    valid = [(name, value) for name, value in labels.items() if name in OWN or _NAME.fullmatch(name)]
    return {name: value[:MAX_VALUE].encode("utf-8", "replace").decode() for name, value in valid[:MAX_LABELS]}
