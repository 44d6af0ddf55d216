# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Phase keys. They come from verl's call sites, so they are sanitised and bounded before they become names and labels."""

from __future__ import annotations

import re
from typing import Final

from verl_otel._internal import process_state
from verl_otel.recording.attribute_values import MAX_NAME, to_name
from verl_otel.recording.callsite import CallSite
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import OTHER, SPANS

MAX_PHASES: Final = 64
"""Distinct phase keys of one process; further ones become ``other``."""

_KEY: Final = re.compile(r"[a-z0-9_./]{1,64}")
_sites: dict[tuple[str, bool], CallSite] = {}


def phase_site(key: str, *, hook: bool = False) -> CallSite:
    """Return the call site of a phase. Letters become lower case, other characters ``_``.

    Example:
        phase_site("Update Actor").name == "verl.phase.update_actor"
    """
    if type(key) is not str or len(key) > MAX_NAME:
        key = to_name(key)
    site = _sites.get((key, hook))
    if site is not None:
        return site
    valid = key if _KEY.fullmatch(key) else re.sub(r"[^a-z0-9_./]", "_", key.lower())[:64] or OTHER
    used = {
        site.attributes[attr.PHASE] for site in list(_sites.values())
    }  # the copy is atomic: other threads add to it
    if valid not in used and len(used) >= MAX_PHASES:
        valid = OTHER
    site = CallSite("phase", SPANS["phase"].name + valid, attributes={attr.PHASE: valid}, hook=hook)
    if len(_sites) < 2 * MAX_PHASES and valid != OTHER:
        _sites[(key, hook)] = site
    return site


process_state.register(reset=_sites.clear)


def was_used(key: str) -> bool:
    """Return whether a phase of this key was opened in this process."""
    return (key, True) in _sites or (key, False) in _sites
