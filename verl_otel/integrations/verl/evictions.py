# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Links to the trajectories that a replay buffer removes: no step trains on them.

A replay buffer of verl 0.9 removes groups of prompts that are stale, that have no signal (DAPO), that failed, or that are left over, and clears
them from TransferQueue. The tags of their samples are in its partitions until then.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import PATCHED, argument
from verl_otel.integrations.verl import lineage
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr

REASONS: Final = ("stale", "no_signal", "failed")
"""Why a group is evicted, in the order of verl's tuple of reasons."""
SURPLUS: Final = "surplus"
"""The reason of groups that are cleared without being evicted: a batch needed fewer."""


def watch(buffer: Any) -> None:
    """Link what a replay buffer removes from the training partition. Patches the instance, as `lineage.watch` does.

    A replay buffer without the methods of verl 0.9 is left as it is.
    """
    evict, clear = (getattr(buffer, name, None) for name in ("_evict_terminal_groups", "_clear_groups"))
    if not callable(evict) or not callable(clear) or getattr(clear, PATCHED, False):
        return
    reason_of: dict[str, str] = {}

    @functools.wraps(evict)
    def _evict_terminal_groups(*args: Any, **kwargs: Any) -> Any:
        with error_boundary.suppress_errors("evictions"):
            reason_of.update(_read_reasons(argument(args, kwargs, 2, "eviction_reasons")))
        try:
            return evict(*args, **kwargs)
        finally:
            reason_of.clear()

    @functools.wraps(clear)
    def _clear_groups(*args: Any, **kwargs: Any) -> Any:
        removed: dict[str, list[Origin]] = {}
        if RECORDER.on:
            with error_boundary.suppress_errors("evictions"):
                partition, groups = (argument(args, kwargs, *place) for place in ((0, "partition_id"), (1, "uids")))
                if partition == "train" and groups:
                    removed = _find_origins(buffer.partitions[partition], groups, reason_of)
        result = clear(*args, **kwargs)
        with error_boundary.suppress_errors("evictions"):
            for reason, origins in removed.items():
                lineage.add_links(lineage.find_distinct(origins), {attr.LINK_TYPE: "evicted", attr.REASON: reason})
        return result

    setattr(_clear_groups, PATCHED, True)
    buffer._evict_terminal_groups, buffer._clear_groups = _evict_terminal_groups, _clear_groups


def _read_reasons(reasons: Any) -> dict[str, str]:
    """Return the reason of each group. One that has several has the first."""
    return {uid: reason for reason, groups in reversed(list(zip(REASONS, reasons, strict=False))) for uid in groups}


def _find_origins(
    partition: Mapping[str, Mapping[str, Any]], groups: Collection[str], reason_of: Mapping[str, str]
) -> dict[str, list[Origin]]:
    """Return the origins of the samples of some groups by reason. A sample's key begins with its group: ``<uid>_<number>``."""
    removed: dict[str, list[Origin]] = {}
    for key, tags in partition.items():
        uid = key.split("_")[0]
        text = tags.get(lineage.TAG) if uid in groups else None
        origin = None if text is None else lineage.read_tag(text)
        if origin is not None:
            removed.setdefault(reason_of.get(uid, SURPLUS), []).append(origin)
    return removed
