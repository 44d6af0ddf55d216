# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Phase keys: verl types them at call sites, so they are cleaned and bounded before they become names and labels."""

from __future__ import annotations

import re
from typing import Final

from verl_otel.recording.site import Site
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import OTHER, SPANS

MAX_PHASES: Final = 64
"""Distinct phase keys of one process; what comes later is ``other``."""

_KEY: Final = re.compile(r"[a-z0-9_./]{1,64}")
_sites: dict[tuple[str, bool], Site] = {}


def phase_site(key: str, *, hook: bool = False) -> Site:
    """Return the site of a phase. Capital letters are lowered, other characters become ``_``.

    Example:
        phase_site("Update Actor").name == "verl.phase.update_actor"
    """
    found = _sites.get((key, hook))
    if found is not None:
        return found
    valid = key if _KEY.fullmatch(key) else re.sub(r"[^a-z0-9_./]", "_", key.lower())[:64] or OTHER
    known = {site.attributes[attr.PHASE] for site in list(_sites.values())}  # the copy is one step: others add theirs
    if valid not in known and len(known) >= MAX_PHASES:
        valid = OTHER
    site = Site("phase", SPANS["phase"].name + valid, attributes={attr.PHASE: valid}, hook=hook)
    if len(_sites) < 2 * MAX_PHASES and valid != OTHER:
        _sites[(key, hook)] = site
    return site


def was_used(key: str) -> bool:
    """Return whether a phase of this key was opened in this process."""
    return (key, True) in _sites or (key, False) in _sites
