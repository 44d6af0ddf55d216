# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lineage: which step trained on which trajectory.

The agent loop tags each sample with its origin (`Origin`). The trainer reads and removes the tags when it receives a
batch, before verl reads the batch. This module transports them in TransferQueue's tags, `batch_lineage` in the batches
of trainers without TransferQueue.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from verl_otel._internal import error_boundary, process_state
from verl_otel.integrations.patch import PATCHED, Hook, argument
from verl_otel.integrations.spans import find_open
from verl_otel.integrations.verl import gpu_time, learning, step_log
from verl_otel.integrations.verl.rollout_progress import RolloutProgress
from verl_otel.integrations.verl.sample_origin import START, Origin, find_generation, find_origin
from verl_otel.model import REMOTE, LinkRecord
from verl_otel.recording.attribute_values import to_number
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.series import counter, gauge, histogram
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.recording.step_statistics import count_groups, describe_tail, record_groups, sum_scores
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.semconv.kinds import GROUP_RELATIVE
from verl_otel.semconv.spans import MAX_LINKS

TAG: Final = "verl_otel"
_CONSUME: Final = CallSite("consume", hook=True)


def _tag(_args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Tag the samples that are written to TransferQueue."""
    tags = kwargs.get("tags")
    origin = find_origin() if RECORDER.on and tags else None
    if origin is not None:
        text = origin.encode()
        for tag in tags or ():
            tag[TAG] = text
    yield


def watch(buffer: Any, *, batches: int = 1) -> None:
    """Read the tags of every batch of a replay buffer, and those of the groups that it removes from the training partition.

    Patches the instance, to include samplers of users. A method that a release lacks (the last two before verl 0.9) is passed over.

    Args:
        buffer: The replay buffer.
        batches: Number of batches that a step takes.
    """
    reason_of: dict[str, str] = {}
    progress = RolloutProgress(batches)
    for name, around in (
        ("sample", functools.partial(_read_batch, progress)),
        ("_sync_metadata_from_transfer_queue", functools.partial(progress.count, buffer)),
        ("_evict_terminal_groups", functools.partial(_note_reasons, reason_of)),
        ("_clear_groups", functools.partial(_link_removed, buffer, reason_of)),
    ):
        method = getattr(buffer, name, None)
        if callable(method) and not getattr(method, PATCHED, False):
            wrapper = surround("lineage", around)(method)
            setattr(wrapper, PATCHED, True)
            setattr(buffer, name, wrapper)


def _read_batch(progress: RolloutProgress, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    step, wanted = (
        to_number(argument(args, kwargs, 0, "global_steps")),
        to_number(argument(args, kwargs, 2, "batch_size")),
    )
    if wanted and argument(args, kwargs, 1, "partition_id") == "train":
        progress.begin(None if step is None else int(step), int(wanted))
    try:
        result = yield
    finally:
        progress.end()
    batch = result[0] if isinstance(result, tuple) else result
    texts = [tag.pop(TAG) for tag in batch.tags if TAG in tag]
    origins = [origin for origin in map(read_tag, texts) if origin is not None]
    if argument(args, kwargs, 1, "partition_id") == "train":
        consume(origins, step=None if step is None else int(step))
    else:
        gpu_time.note_samples(origins, validate=True)


def consume(origins: list[Origin], *, step: int | None, summarise: bool = True, logged_later: bool = False) -> None:
    """Link the step that trains on a batch to its trajectories, and keep them for what is recorded when the step ends.

    Args:
        origins: Origin of each row of the batch; padding rows and further outputs of one trajectory count once.
        step: Number of the step.
        summarise: Describe the slowest trajectory, too; trainers without TransferQueue log this themselves.
        logged_later: Whether verl logs the last batch of a step together with the next step.
    """
    distinct = find_distinct(origins)
    if not distinct or not RECORDER.on:
        return
    _compare_weights(distinct)
    gpu_time.note_samples(distinct, validate=False)
    _link(distinct)
    if len(_Step.consumed) + len(distinct) > MAX_ROWS:
        return
    _Step.consumed.extend(distinct)
    _Step.number, _Step.summarise, _Step.logged_later = step, summarise, logged_later
    around = find_open("step")
    if around is None or not around.site.hook:  # no trainer of verl ends a step
        end_step()


def _record(trained: list[Origin], number: int | None, signals: Mapping[str, bool]) -> None:
    """Record scores, groups, staleness, generation and tail of the trajectories that a step has trained on."""
    for origin in trained:
        if origin.version is not None and number is not None:
            histogram(metric_names.ROLLOUT_STALENESS).record(
                max(0, number - 1 - _updates.get(origin.version, origin.version))
            )
    sum_scores(trained)
    record_groups(_count_groups(trained, signals))
    seconds = find_generation(trained)
    if seconds is not None:
        histogram(metric_names.SAMPLE_GENERATION).record(seconds)
    learning.follow_trajectories(trained)
    if _Step.summarise:
        describe_tail(trained)


# -- Groups with a signal: by the advantages that verl computes. The scores of a group may be equal and its rewards differ (KL in the reward) --


def _count_groups(trained: list[Origin], signals: Mapping[str, bool]) -> dict[str, int]:
    """Return the number of groups by outcome; empty if the estimator does not compare the samples of a group."""
    if _Step.algorithm and _Step.algorithm not in GROUP_RELATIVE:
        return {}
    return count_groups(trained, signals)


def _note_advantages(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Note whether the samples of each group differ in their advantage, which is the same for all tokens of a response."""
    data = yield
    if not RECORDER.on or _Step.algorithm not in GROUP_RELATIVE:
        return
    advantages, uids = data.batch.get("advantages", None), data.non_tensor_batch.get("uid")
    if uids is None or not getattr(advantages, "is_cpu", False) or len(_Step.signals) + len(uids) > MAX_ROWS:
        return
    first_of: dict[str, float] = {}
    for uid, value in zip(map(str, uids), advantages[:, 0].tolist(), strict=True):
        _Step.signals[uid] = _Step.signals.get(uid, False) or first_of.setdefault(uid, value) != value


# -- Whether engines serve the weights of the last sync. The trainer knows when each sync ended; a trajectory that began after it and was generated
# with an older version was served by an engine that did not get it. So it is 0 however far ahead of the training the rollouts are --

MAX_SYNCS: Final = 256
"""Weight syncs that are known; a trajectory that is older than all of them is not compared."""
_syncs: Final[deque[tuple[float, int]]] = deque(maxlen=MAX_SYNCS)
"""When each sync ended, in Unix seconds, and the version that it sent."""
_updates: Final[dict[int, int]] = {}
"""Number of the step whose update is in the weights of a version: the version, but one less where verl syncs before the
update (one-step-off)."""


def note_sync(version: Any, ended: float) -> None:
    """Note a weight sync that has succeeded.

    Args:
        version: verl's ``global_steps``; of a sync without a number the engines keep theirs.
        ended: Unix time.
    """
    number = to_number(version)
    if number is None:
        return
    number = int(number)
    _syncs.append((ended, number))
    step = find_open("step")
    is_early = step is not None and step.attributes.get(attr.STEP_NUMBER) == number and not gpu_time.has_updated()
    _updates[number] = number - 1 if is_early else number
    if len(_updates) > MAX_SYNCS:
        del _updates[next(iter(_updates))]


def _compare_weights(origins: Iterable[Origin]) -> None:
    """Record by how many versions the weights of trajectories were behind the sync before they began."""
    syncs = list(reversed(_syncs))
    behind = []
    for origin in origins:
        start = origin.facts.get(START)
        synced = None if start is None else next((version for ended, version in syncs if ended <= start), None)
        if synced is not None and origin.version is not None:
            behind.append(max(0, synced - origin.version))
    if behind:
        gauge(metric_names.ROLLOUT_WEIGHTS_BEHIND).set(max(behind))


def find_distinct(origins: Iterable[Origin]) -> list[Origin]:
    """Return the first origin of each trajectory: padding rows and further outputs have the same."""
    by_span: dict[tuple[int, int], Origin] = {}
    for origin in origins:
        by_span.setdefault((origin.trace_id, origin.span_id), origin)
    return list(by_span.values())


def read_tag(text: str) -> Origin | None:
    """Return the origin of a tag; None, with one log line, if it is not valid."""
    try:
        return Origin.decode(text)
    except ValueError:
        error_boundary.warn_once(
            "tag", "verl-otel: a sample's tag %.100r is of another version; its trajectory is not linked", text
        )
        return None


def add_links(origins: list[Origin], attributes: dict[str, Any]) -> None:
    """Record spans ``verl.consume`` with a link to each origin.

    Args:
        origins: Of different trajectories.
        attributes: Of each link.
    """
    for begin in range(0, len(origins), MAX_LINKS):
        part = origins[begin : begin + MAX_LINKS]
        with Span(_CONSUME, {attr.SAMPLES: len(part)}) as span:
            for origin in part:
                span.link_record(LinkRecord(origin.trace_id, origin.span_id, attributes, "", REMOTE))


def _link(origins: list[Origin]) -> None:
    add_links(origins, {attr.LINK_TYPE: "consumed"})
    step = find_open("step")
    slowest = max(origins, key=lambda origin: origin.seconds)
    if step is not None and slowest.seconds >= float(to_number(step.attributes.get(attr.SLOWEST_SECONDS)) or 0):
        step.set_attribute(attr.SLOWEST_TRACE_ID, f"{slowest.trace_id:032x}")
        step.set_attribute(attr.SLOWEST_UID, slowest.uid)
        step.set_attribute(attr.SLOWEST_SECONDS, slowest.seconds)


# -- Links to the trajectories that a replay buffer removes: no step trains on them --
# A replay buffer of verl 0.9 removes groups of prompts that are stale, that have no signal (DAPO), that failed, or that
# are left over, and clears them from TransferQueue. The tags of their samples are in its partitions until then.

REASONS: Final = ("stale", "no_signal", "failed")
"""Why a group is evicted, in the order of verl's tuple of reasons."""
SURPLUS: Final = "surplus"
"""The reason of groups that are cleared without being evicted: a batch needed fewer."""


def _note_reasons(reason_of: dict[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Note the reason of each group while groups are evicted. One that has several has the first."""
    reasons = list(zip(REASONS, argument(args, kwargs, 2, "eviction_reasons"), strict=False))
    reason_of.update({uid: reason for reason, groups in reversed(reasons) for uid in groups})
    try:
        yield
    finally:
        reason_of.clear()


def _link_removed(buffer: Any, reason_of: Mapping[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Link the trajectories of groups that are cleared from the training partition."""
    partition, groups = argument(args, kwargs, 0, "partition_id"), argument(args, kwargs, 1, "uids")
    if not RECORDER.on or partition != "train" or not groups:
        return
    removed = _find_origins(buffer.partitions[partition], groups, reason_of)
    yield
    for reason, origins in removed.items():
        _link_dropped(find_distinct(origins), reason)


def _link_dropped(origins: list[Origin], reason: str) -> None:
    """Link and count different trajectories that no step trains on."""
    add_links(origins, {attr.LINK_TYPE: "evicted", attr.REASON: reason})
    counter(metric_names.ROLLOUT_DROPPED, ((attr.REASON, reason),)).record(len(origins))


def _find_origins(
    partition: Mapping[str, Mapping[str, Any]], groups: Collection[str], reason_of: Mapping[str, str]
) -> dict[str, list[Origin]]:
    """Return the origins of the samples of some groups by reason. A sample's key begins with its group: ``<uid>_<number>``."""
    removed: dict[str, list[Origin]] = {}
    for key, tags in partition.items():
        uid = key.split("_")[0]
        text = tags.get(TAG) if uid in groups else None
        origin = None if text is None else read_tag(text)
        if origin is not None:
            removed.setdefault(reason_of.get(uid, SURPLUS), []).append(origin)
    return removed


# -- Which of the trajectories that a trainer received in a step it trained on, without TransferQueue --
# A trainer that filters what it generated (dynamic sampling as in DAPO, a cut to the batch size) sends fewer rows to
# the update. A row is recognised by its tokens: recipes set ``uid`` after the generation, and filters, balancing and
# merges of rounds change the order of the rows.

ROW: Final = "row"
"""Key of a row's checksum among the facts of an `Origin`."""
FILTERED: Final = "filtered"
"""The reason of trajectories that the trainer received and did not train on."""
MAX_ROWS: Final = 100_000
"""Maximum number of rows that a step receives."""


class _Step:
    """The current step of the trainer in this process, with all of its rounds."""

    algorithm = ""
    """verl's estimator of advantages; empty: unknown."""
    signals: dict[str, bool] = {}
    """By group, whether the advantages of its samples differ."""
    number: int | None = None
    consumed: list[Origin] = []
    """Trajectories that its batches came from."""
    logged_later = False
    summarise = True
    """See `consume`."""
    received: list[Origin] = []
    """Origin of each row that was generated."""
    trained: set[int] = set()
    """Checksums of the rows that were sent to an update."""
    all_trained = False
    """Whether one update had at least as many rows as were generated."""
    filtered: dict[int, Origin] = {}
    """Rows of the step before that it did not train on, by checksum: a trainer may keep its surplus for the next step."""


def begin_run(algorithm: str = "") -> None:
    """Forget the run before.

    Args:
        algorithm: verl's estimator of advantages; empty: unknown.
    """
    _forget()
    _Step.algorithm, _Step.filtered = algorithm, {}
    _updates.clear()
    _syncs.clear()


process_state.register(clear=begin_run)


def _forget() -> None:
    _Step.received, _Step.trained, _Step.all_trained = [], set(), False
    _Step.number, _Step.consumed, _Step.signals = None, [], {}


def describe_row(output: Any) -> dict[str, float]:
    """Return the checksum of a trajectory's output as a fact, which a ``float`` holds exactly; nothing if it has no padded tokens."""
    prompts, responses = getattr(output, "prompt_ids", None), getattr(output, "response_ids", None)
    sums = _sum_rows(prompts, responses)
    return {ROW: float(sums[0])} if len(sums) == 1 else {}


def _sum_rows(prompts: Any, responses: Any) -> list[int]:
    """Return the checksum of each row of two tensors of the CPU; nothing for anything else: a device would be waited for."""
    tensors = (prompts, responses)
    if not all(getattr(tensor, "is_cpu", False) and not tensor.is_nested for tensor in tensors):
        return []
    rows = zip(*(tensor.contiguous().numpy() for tensor in tensors), strict=True)
    return [zlib.crc32(response, zlib.crc32(prompt)) for prompt, response in rows]


def note_received(origins: Sequence[Origin]) -> None:
    """Note the origins of a generated batch, one for each row."""
    if len(_Step.received) + len(origins) <= MAX_ROWS:
        _Step.received.extend(origins)


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
    """Link the trajectories that the step received and did not train on, and describe those that it trained on, of all of its rounds.

    No link is recorded unless each row of the updates is known: a trainer may also train on rows that were not generated, or change rows.
    """
    received, trained, all_trained = _Step.received, _Step.trained, _Step.all_trained
    number, consumed, signals = _Step.number, _Step.consumed, _Step.signals
    _forget()
    if not RECORDER.on or not (consumed or trained):
        return
    rows = {int(origin.facts[ROW]): origin for origin in received if ROW in origin.facts}
    late = {row: origin for row, origin in _Step.filtered.items() if row in trained and row not in rows}
    is_known = bool(trained) and trained <= rows.keys() | late.keys()
    if not all_trained and is_known:
        kept = [origin for origin in received if int(origin.facts.get(ROW, -1)) in trained]
        left = _subtract(received, kept)
        _Step.filtered = {int(origin.facts[ROW]): origin for origin in left if ROW in origin.facts}
        _link_dropped(left, FILTERED)
        add_links(find_distinct(late.values()), {attr.LINK_TYPE: "consumed"})
        consumed = [*kept, *late.values()]
    distinct = find_distinct(consumed)
    if not distinct:
        return
    _record(distinct, number, signals)
    step_log.note_trajectories(distinct, _count_groups(distinct, signals), logged_later=_Step.logged_later)


def _subtract(origins: Iterable[Origin], others: Iterable[Origin]) -> list[Origin]:
    """Return the origins of trajectories of which no row is among the others."""
    spans = {origin.span_id for origin in others}
    return [origin for origin in find_distinct(origins) if origin.span_id not in spans]


HOOKS: Final = (
    Hook.wrapping(
        "transfer_queue",
        "async_kv_batch_put",
        surround("lineage", _tag),
        "steps are not linked to the trajectories that they trained on (v1 trainers)",
        since="verl 0.9",
    ),
    Hook.wrapping(
        "verl.trainer.ppo.ray_trainer",
        "compute_advantage",
        surround("advantages", _note_advantages),
        "groups without a signal are those with equal scores",
    ),
)
