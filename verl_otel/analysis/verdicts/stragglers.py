# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Finds ranks that delayed the others of their group.

Collectives make all ranks equally slow, so the duration of a call identifies no rank. The time *before* the first collective does: when
the call reached a rank (``arrival``), when it had prepared its work (``data``), how many tokens it was given (``tokens``), how much
CPU time its thread used (``cpu``). Each rank is compared with the median of the *others*, so that it does not move its own baseline.

Sources: the modified z-score and its limit of 3.5 from Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993); that only
the time before the first collective distinguishes ranks, from "Understanding Stragglers in Large Model Training" (Lin et al., 2025).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from verl_otel.analysis.model import Step, Straggler
from verl_otel.analysis.traces.span_names import CALL_PREFIX, WORKER_PREFIX
from verl_otel.analysis.traces.tree import Node
from verl_otel.model import SpanRecord
from verl_otel.semconv import attributes as attr

# -- Detects outliers: compares each value with the median of the others --
#
# The median excludes the value itself, so that an outlier does not move its own baseline. The modified z-score its
# limit of 3.5: Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).

OUTLIER: Final = 3.5
"""Minimum distance from the median of the others, in scaled median absolute deviations."""
_MAD_TO_DEVIATION: Final = 1.4826
"""A normal distribution's standard deviation is so many of its median absolute deviations."""


class RankValues:
    """One value per rank of a call, at least two; sorted once, as groups have thousands of ranks.

    Args:
        values: One for each rank.
    """

    def __init__(self, values: Iterable[float]) -> None:
        self._ordered = sorted(values)

    def median_without(self, own: float) -> float:
        """Return the median of the others; ``own`` is one of the values."""
        ordered, left_out = self._ordered, bisect_left(self._ordered, own)
        half, is_odd = divmod(len(ordered) - 1, 2)
        upper = ordered[half + (half >= left_out)]
        return upper if is_odd else (ordered[half - 1 + (half - 1 >= left_out)] + upper) / 2

    def excess(self, own: float, lead: float) -> float:
        """Return by how much a value exceeds the median of the others; 0 if by less than ``lead`` or if it is no outlier."""
        median_of_others = self.median_without(own)
        beyond = own - median_of_others
        if beyond <= 0 or beyond < lead:
            return 0.0  # this is what most ranks end with: their spread need not be known
        left_out = bisect_left(self._ordered, own)
        others = (*self._ordered[:left_out], *self._ordered[left_out + 1 :])
        spread = _MAD_TO_DEVIATION * median([abs(value - median_of_others) for value in others])
        return beyond if beyond > OUTLIER * spread else 0.0


EVIDENCE: Final = ("arrival", "data", "tokens", "cpu")
LEAD_SECONDS: Final = 0.1
"""Minimum delay of a rank: Ray's dispatch to the actors of one group differs by tens of milliseconds in healthy runs."""
LEAD_SHARE: Final = 0.05
"""The same as a share of the call: less than a twentieth does not make it slow."""
PAIR_FACTOR: Final = 2.0
"""Two ranks have no spread: the minimum delay is multiplied by this."""
TOKEN_SHARE: Final = 0.1
"""Minimum excess of a rank's tokens over the median of the others: verl's balancing stays within a few per cent."""
MAX_STAGES: Final = 8
"""Maximum number of methods in a call before the one that computes; verl has one or two."""
RECENT_STEPS: Final = 20
"""Number of the last steps that `find_persistent` counts."""
_COMPUTE: Final = ("train_batch", "infer_batch")


class Persistence(NamedTuple):
    """How often a rank was late in the last steps."""

    rank: int
    instance: str
    late: int
    """Number of steps in which it was late."""
    steps: int
    """Number of steps counted."""
    seconds: float
    """Sum of its delays."""
    evidence: str
    method: str
    """Method of its largest delay, like ``evidence``."""


class _Rank(NamedTuple):
    """Times of one rank in one call, in seconds since the first rank started."""

    rank: int
    instance: str
    start: float
    end: float
    stages: tuple[tuple[str, float], ...]
    """Methods in the call up to the first that computes, and the start of each."""
    computes: float | None
    """When it started to compute."""
    tokens: float | None
    cpu: float | None


def find(root: Node, *, uncertainty: float = 0.0) -> tuple[Straggler, ...]:
    """Return the ranks that delayed the others of their group in one step, the largest delay first.

    Args:
        root: The step, including the spans of its workers.
        uncertainty: Seconds by which the clocks of its hosts may differ; smaller delays are ignored.
    """
    late = (each for method, ranks in _groups(root) if len(ranks) > 1 for each in _compare(method, ranks, uncertainty))
    return sum_delays(late)


def sum_delays(late: Iterable[Straggler]) -> tuple[Straggler, ...]:
    """Return late ranks with the delays of one rank, method and evidence added up, the largest first."""
    sums: dict[tuple[str, int, str, str], float] = defaultdict(float)
    for each in late:
        sums[each.method, each.rank, each.instance, each.evidence] += each.seconds
    found = [Straggler(*key[:3], seconds, key[3]) for key, seconds in sums.items()]
    return tuple(sorted(found, key=lambda each: (-each.seconds, each.rank, each.method, each.evidence)))


def find_blind_spots(root: Node) -> tuple[str, ...]:
    """Return the kinds of `EVIDENCE` that the spans of a step do not contain; all of it where no call reached more than one rank."""
    seen = {
        "arrival": False,
        "data": False,
        "tokens": False,
        "cpu": False,
    }
    for _, ranks in _groups(root):
        if len(ranks) > 1:
            seen["arrival"] = True
            for key, values in (
                ("data", [rank.stages or None for rank in ranks]),
                ("tokens", [rank.tokens for rank in ranks]),
                ("cpu", [rank.cpu for rank in ranks]),
            ):
                seen[key] |= None not in values
    return tuple(evidence for evidence in EVIDENCE if not seen[evidence])


def find_persistent(steps: Sequence[Step], *, recent: int = RECENT_STEPS) -> tuple[Persistence, ...]:
    """Return how often each rank was late in the last steps; the most frequent first.

    Args:
        steps: Steps in the order of time, with their stragglers.
        recent: Number of the last steps to count.
    """
    shown = steps[-recent:]
    delays: dict[tuple[int, str], list[Straggler]] = defaultdict(list)
    late: dict[tuple[int, str], int] = defaultdict(int)
    for step in shown:
        for key in {(straggler.rank, straggler.instance) for straggler in step.stragglers}:
            late[key] += 1
        for straggler in step.stragglers:
            delays[(straggler.rank, straggler.instance)].append(straggler)
    persistent = []
    for (rank, instance), stragglers in delays.items():
        worst = max(stragglers, key=lambda straggler: straggler.seconds)
        total = sum(straggler.seconds for straggler in stragglers)
        persistent.append(
            Persistence(rank, instance, late[(rank, instance)], len(shown), total, worst.evidence, worst.method)
        )
    return tuple(sorted(persistent, key=lambda entry: (-entry.late, -entry.seconds, entry.rank)))


def _groups(root: Node) -> Iterator[tuple[str, list[_Rank]]]:
    """Yield each call of a worker group: its method and the times of its ranks."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children)
        if not node.span.name.startswith(CALL_PREFIX):
            continue
        workers = [child for child in node.children if child.span.name.startswith(WORKER_PREFIX)]
        by_rank = {rank: child for child in workers if (rank := _number(child.span, attr.RANK)) is not None}
        if by_rank:
            first = min(child.span.start_ns for child in by_rank.values())
            yield (
                node.span.name.removeprefix(CALL_PREFIX),
                [_describe(int(rank), child, first) for rank, child in sorted(by_rank.items())],
            )


def _describe(rank: int, node: Node, first_ns: int) -> _Rank:
    stages, computing = _find_stages(node)
    tokens = _number(node.span, attr.BATCH_TOKENS)
    if tokens is None and computing:
        parts = [_number(child_span, attr.BATCH_TOKENS) for child_span in computing]
        tokens = None if None in parts else sum(part for part in parts if part is not None)
    begins = min((child_span.start_ns for child_span in computing), default=None)
    return _Rank(
        rank,
        node.instance,
        (node.span.start_ns - first_ns) / 1e9,
        (node.span.end_ns - first_ns) / 1e9,
        tuple((method_of(stage), (stage.start_ns - first_ns) / 1e9) for stage in stages),
        None if begins is None else (begins - first_ns) / 1e9,
        tokens,
        _number(node.span, attr.CPU_SECONDS),
    )


def _find_stages(node: Node) -> tuple[list[SpanRecord], list[SpanRecord]]:
    """Return the methods within a call up to the first one that computes, and all that compute."""
    stages: list[SpanRecord] = []
    computing: list[SpanRecord] = []
    waiting = list(reversed(node.children))
    while waiting:
        current = waiting.pop()
        if not current.span.name.startswith(WORKER_PREFIX):
            continue
        if not computing and len(stages) < MAX_STAGES:
            stages.append(current.span)
        if method_of(current.span) in _COMPUTE:
            computing.append(current.span)
        else:
            waiting.extend(reversed(current.children))
    return stages, computing


def method_of(span: SpanRecord) -> str:
    """Return the name of the method of a worker's span."""
    return str(span.attributes.get(attr.WORKER_METHOD, span.name.rpartition(".")[2]))


class _Stage(NamedTuple):
    """A method that all ranks of a call begin with."""

    begins: RankValues
    took: RankValues
    """How long what lies before it took."""


def _compare(method: str, ranks: Sequence[_Rank], uncertainty: float) -> Iterator[Straggler]:
    """Yield the ranks of one call that were late, each with its evidence."""
    length = max(rank.end for rank in ranks)
    lead = max(LEAD_SECONDS, LEAD_SHARE * length) * (PAIR_FACTOR if len(ranks) == 2 else 1.0)  # noqa: PLR2004 - a pair
    between_clocks = lead + uncertainty
    ends, starts = RankValues(rank.end for rank in ranks), RankValues(rank.start for rank in ranks)
    tokens, cpu = _gather([rank.tokens for rank in ranks]), _gather([rank.cpu for rank in ranks])
    stages = _align(ranks)
    for own in ranks:
        if own.end < ends.median_without(own.end) - LEAD_SECONDS:
            continue  # it finished before the others, so they did not wait for it
        delays = {
            "arrival": starts.excess(own.start, between_clocks),
            "data": _prepare(own, stages, between_clocks),
            "tokens": _overload(own, tokens, lead, length),
        }
        if cpu is not None and own.cpu is not None and not any(delays.values()):
            delays["cpu"] = cpu.excess(
                own.cpu, lead
            )  # what it does before it computes, or with more tokens, is CPU time, too
        for evidence, seconds in delays.items():
            if seconds:
                yield Straggler(method, own.rank, own.instance, seconds, evidence)


def _gather(values: Sequence[float | None]) -> RankValues | None:
    """Return one value of all ranks; None where a rank lacks it."""
    present = [value for value in values if value is not None]
    return RankValues(present) if len(present) == len(values) else None


def _align(ranks: Sequence[_Rank]) -> list[_Stage]:
    """Return the methods in a call up to the first one that differs between ranks."""
    aligned: list[_Stage] = []
    before = [rank.start for rank in ranks]
    for stage_of_ranks in zip(*(rank.stages for rank in ranks), strict=False):
        if len({method for method, _ in stage_of_ranks}) > 1:
            break
        begins = [begin for _, begin in stage_of_ranks]
        took = (begin - start for begin, start in zip(begins, before, strict=True))
        aligned.append(_Stage(RankValues(begins), RankValues(took)))
        before = begins
    return aligned


def _prepare(own: _Rank, stages: Sequence[_Stage], lead: float) -> float:
    """Return by how much longer a rank prepared, summed over the stages after which it was late.

    Both must hold, the stage took longer and the next starts late: there may be collectives in between (verl has one in
    ``train_mini_batch``), and ranks that wait in it for a late one take longer, too, but continue with the others.
    """
    total, before = 0.0, own.start
    for stage, (_, begins) in zip(stages, own.stages, strict=False):
        late = stage.begins.excess(begins, lead)
        total += min(late, stage.took.excess(begins - before, lead)) if late else 0.0
        before = begins
    return total


def _overload(own: _Rank, tokens: RankValues | None, lead: float, length: float) -> float:
    """Return the part of a call explained by a rank's larger number of tokens, assuming that time is proportional to tokens."""
    if tokens is None or not own.tokens:
        return 0.0
    median_tokens = tokens.median_without(own.tokens)
    if own.tokens < (1 + TOKEN_SHARE) * median_tokens or not tokens.excess(own.tokens, 0.0):
        return 0.0
    begin = own.start if own.computes is None else own.computes
    seconds = (min(own.end, length) - begin) * (1 - median_tokens / own.tokens)
    return seconds if seconds >= lead else 0.0


def _number(span: SpanRecord, key: str) -> float | None:
    value: Any = span.attributes.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
