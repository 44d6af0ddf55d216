# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of the data that are loaded again before the end of their epoch: a sampler that repeats itself, or a data set that has them twice.

Nothing is slow then, and nothing fails: the training sees less data than planned. A row is known by a hash of its prompt and of what belongs to it,
since tasks of agents may share one prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from verl_otel.integrations.verl import training
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.session import alerts, current_session

ROWS: Final = 16
"""Rows of a batch that are looked at, the first ones: the trainer waits meanwhile, and a prompt may be long."""
MAX_KNOWN: Final = 1 << 16
"""Rows of an epoch that are remembered: about 5 MB."""
SHARE: Final = 0.5
"""Share of the rows of a batch that have to be repeated. A few may be in the data twice."""
FEWEST: Final = 4
_PARTS: Final = ("raw_prompt", "reward_model", "extra_info", "tools_kwargs")


def note(iterator: Any, batch: Any) -> None:
    """Note the rows of a batch, and report once in a run if many of them were loaded in this epoch before.

    Args:
        iterator: An iterator over the data, which lasts for one epoch.
        batch: What it has returned: a mapping of columns, as verl's ``collate_fn`` makes it; others are left alone.
    """
    run = training.current
    if run.has_reported_repeats or not isinstance(batch, Mapping) or _PARTS[0] not in batch:
        return
    known = run.loaded_rows.setdefault(iterator, set())
    columns = [batch[name][:ROWS] for name in _PARTS if name in batch]
    rows = [hash(repr(row)) for row in zip(*columns, strict=True)]
    repeated = sum(row in known for row in rows)
    if len(known) < MAX_KNOWN:
        known.update(rows)
    if len(rows) >= FEWEST and repeated >= SHARE * len(rows):
        run.has_reported_repeats = True
        session = current_session()
        text = f"{repeated} of {len(rows)} prompts of a batch were loaded before in the same epoch: does the sampler or the data set repeat them?"
        alerts.report(session.config if session is not None else None, Trainer.step_number() or 0, text)


def forget(iterator: Any) -> None:
    """Forget the rows of an iterator that is at its end: with workers that stay, it goes through the next epoch, too."""
    training.current.loaded_rows.pop(iterator, None)
