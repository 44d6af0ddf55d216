# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which of the trajectories that a trainer received in a step it trained on, without TransferQueue.

A trainer that filters what it generated (dynamic sampling as in DAPO, a cut to the batch size) sends fewer rows to the update. A row is recognised
by its tokens: recipes set ``uid`` after the generation, and filters, balancing and merges of rounds change the order of the rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from verl_otel.integrations.verl import lineage, step_log
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.recording.state import RECORDER
from verl_otel.recording.step_statistics import sum_scores
from verl_otel.semconv import attributes as attr

ROW: Final = "row"
"""Key of a row's checksum among the facts of an `Origin`."""
FILTERED: Final = "filtered"
"""The reason of trajectories that the trainer received and did not train on."""
MAX_ROWS: Final = 100_000
"""Maximum number of rows that a step receives."""


class _Step:
    """The current step of the trainer in this process."""

    received: list[Origin] = []
    """Origin of each row that was generated."""
    batches = 0
    """Number of generated batches."""
    trained: set[int] = set()
    """Checksums of the rows that were sent to an update."""
    all_trained = False
    """Whether one update had at least as many rows as were generated."""
    filtered: dict[int, Origin] = {}
    """Rows of the step before that it did not train on, by checksum: a trainer may keep its surplus for the next step."""


def begin_run() -> None:
    """Forget the rows of the run before."""
    _forget()
    _Step.filtered = {}


def _forget() -> None:
    _Step.received, _Step.batches, _Step.trained, _Step.all_trained = [], 0, set(), False


def describe_row(output: Any) -> dict[str, float]:
    """Return the checksum of a trajectory's output as a fact, which a ``float`` holds exactly; nothing if it has no padded tokens."""
    prompts, responses = getattr(output, "prompt_ids", None), getattr(output, "response_ids", None)
    sums = _sum_rows(prompts, responses)
    return {ROW: float(sums[0])} if len(sums) == 1 else {}


def _sum_rows(prompts: Any, responses: Any) -> list[int]:
    """Return the checksum of each row of two tensors; nothing for anything else, and for tensors of a device, whose work would be waited for."""
    tensors = (prompts, responses)
    if not all(getattr(tensor, "is_cpu", False) and not tensor.is_nested for tensor in tensors):
        return []
    rows = zip(*(tensor.contiguous().numpy() for tensor in tensors), strict=True)
    return [zlib.crc32(response, zlib.crc32(prompt)) for prompt, response in rows]


def note_received(origins: Sequence[Origin]) -> None:
    """Note the origins of a generated batch, one for each row."""
    if len(_Step.received) + len(origins) <= MAX_ROWS:
        _Step.received.extend(origins)
        _Step.batches += 1


def has_received() -> bool:
    """Return whether rows were generated since the end of the last step."""
    return bool(_Step.received)


def note_update(batch: Any) -> None:
    """Note the rows of a batch that is sent to an update. They are read only if there are fewer than were generated.

    Args:
        batch: verl's ``DataProto``, or the ``TensorDict`` of one.
    """
    if not (_Step.received or _Step.filtered) or _Step.all_trained or not hasattr(batch, "__len__"):
        return
    if len(batch) >= len(_Step.received) and not _Step.filtered:
        _Step.all_trained = True
        return
    columns = getattr(batch, "batch", batch)
    _Step.trained.update(_sum_rows(columns.get("prompts", None), columns.get("responses", None)))


def end_step() -> None:
    """Link the trajectories that the step received and did not train on, and describe the scores of those that it trained on.

    No link is recorded unless each row of the updates is known: a trainer may also train on rows that were not generated, or change rows.
    """
    received, batches, trained, all_trained = _Step.received, _Step.batches, _Step.trained, _Step.all_trained
    _forget()
    if not RECORDER.on or not (received or trained):
        return
    rows = {int(origin.facts[ROW]): origin for origin in received if ROW in origin.facts}
    late = {row: origin for row, origin in _Step.filtered.items() if row in trained and row not in rows}
    is_known = bool(trained) and trained <= rows.keys() | late.keys()
    if not all_trained and is_known:
        kept = [origin for origin in received if int(origin.facts.get(ROW, -1)) in trained]
        left = _subtract(received, kept)
        _Step.filtered = {int(origin.facts[ROW]): origin for origin in left if ROW in origin.facts}
        lineage.add_links(left, {attr.LINK_TYPE: "evicted", attr.REASON: FILTERED})
        lineage.add_links(lineage.find_distinct(late.values()), {attr.LINK_TYPE: "consumed"})
        received = [*kept, *late.values()]
    if batches > 1 or is_known:
        distinct = lineage.find_distinct(received)
        sum_scores(distinct)
        step_log.note_scores(distinct)


def _subtract(origins: Iterable[Origin], others: Iterable[Origin]) -> list[Origin]:
    """Return the origins of trajectories of which no row is among the others."""
    spans = {origin.span_id for origin in others}
    return [origin for origin in lineage.find_distinct(origins) if origin.span_id not in spans]
