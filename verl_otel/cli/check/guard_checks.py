# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of guards that are switched on: in which trainers they cannot stop a training, and what the best checkpoint needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from verl_otel import config
from verl_otel.cli.check.cluster import Finding
from verl_otel.config import SETTINGS
from verl_otel.integrations.source_inspection import read_version

STOPPABLE: Final = ((0, 8), (0, 9))
"""First and last release of verl in which a guard has stopped a training."""
_PREFIX: Final = "stop_on_"


def check_guards(settings: config.Config) -> Iterator[Finding]:
    """Whether the guards that are switched on can do their work. Yields nothing if none is."""
    used = [one.variable for one in SETTINGS if one.field.startswith(_PREFIX) and getattr(settings, one.field)]
    if used:
        yield Finding(
            "note",
            "guards",
            f"{', '.join(used)}: can stop every trainer of verl 0.9 but the fully asynchronous one, which takes its end from its rollouter",
            "use the alerts there: verl-otel runbook",
        )
        release = read_version("verl")
        if release is not None and not STOPPABLE[0] <= release[:2] <= STOPPABLE[1]:
            text = ".".join(map(str, release))
            yield Finding("note", "guards", f"a stop was not tried with verl {text}", "try it on a short training")
    if settings.best_checkpoint:
        yield Finding(
            "ok",
            "best checkpoint",
            f"{settings.best_checkpoint}: of the checkpoints that verl saves, which needs trainer.save_freq above 0",
        )
