# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank kept the others of its group waiting.

Collectives make all ranks equally slow, so the length of a call names nobody. What happens *before* the first collective does: when the
call reached a rank (``arrival``), when it had prepared its work (``data``), how many tokens it was given (``tokens``), how much its
thread computed (``cpu``). Each rank is compared with the median of the *others*, so that one late rank does not move its own yardstick.

Sources: the modified z-score and its limit of 3.5 from Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993); that only
what lies before the first collective tells ranks apart, from "Understanding Stragglers in Large Model Training" (Lin et al., 2025).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from verl_otel.analysis.facts import Step, Straggler
from verl_otel.analysis.outliers import Field
from verl_otel.analysis.traces import Node
from verl_otel.model import SpanRecord
from verl_otel.semconv import attributes as attr

EVIDENCE: Final = ("arrival", "data", "tokens", "cpu")
LEAD_SECONDS: Final = 0.1
"""What a rank has to be late by at least: Ray's dispatch to the actors of one group differs by tens of milliseconds in healthy runs."""
LEAD_SHARE: Final = 0.05
"""The same as a share of the call: a twentieth of a call is not what makes it slow."""
PAIR_FACTOR: Final = 2.0
"""Two ranks have no spread: the lead has to be this many times as clear."""
TOKEN_SHARE: Final = 0.1
"""By how much a rank's tokens have to exceed the median of the others: verl's balancing stays within a few per cent."""
MAX_STAGES: Final = 8
"""How many methods within a call are looked at before the one that computes; verl has one or two."""
RECENT_STEPS: Final = 20
"""How many of the last steps `persist` looks at."""
_COMPUTE: Final = ("train_batch", "infer_batch")
_WORKER: Final = "verl.worker "
_CALL: Final = "verl.call "


class Persistence(NamedTuple):
    """A rank that was late more than once, or not."""

    rank: int
    instance: str
    late: int
    """In how many of the steps."""
    steps: int
    """How many steps were looked at."""
    seconds: float
    """By how much in all."""
    evidence: str
    method: str
    """Of its largest delay, like ``evidence``."""


class _Rank(NamedTuple):
    """What one rank did in one call, in seconds since the first rank began."""

    rank: int
    instance: str
    start: float
    end: float
    stages: tuple[tuple[str, float], ...]
    """Methods within the call up to the first that computes, and when each began."""
    computes: float | None
    """When it began to compute."""
    tokens: float | None
    cpu: float | None


def find(root: Node, *, uncertainty: float = 0.0) -> tuple[Straggler, ...]:
    """Return the ranks that kept the others of their group waiting in one step, the worst first.

    Args:
        root: The step, with the spans of its workers below.
        uncertainty: Seconds by which the clocks of its hosts may be apart; no smaller delay is believed.
    """
    sums: dict[tuple[str, int, str, str], float] = defaultdict(float)
    for method, ranks in _groups(root):
        if len(ranks) > 1:
            for straggler in _compare(method, ranks, uncertainty):
                sums[(straggler.method, straggler.rank, straggler.instance, straggler.evidence)] += straggler.seconds
    found = [
        Straggler(method, rank, instance, seconds, evidence)
        for (method, rank, instance, evidence), seconds in sums.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.seconds, each.rank, each.method, each.evidence)))


def find_blind_spots(root: Node) -> tuple[str, ...]:
    """Return what of `EVIDENCE` the spans of a step cannot show; all of it where no call reached more than one rank."""
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
                ("data", [each.stages or None for each in ranks]),
                ("tokens", [each.tokens for each in ranks]),
                ("cpu", [each.cpu for each in ranks]),
            ):
                seen[key] |= None not in values
    return tuple(evidence for evidence in EVIDENCE if not seen[evidence])


def persist(steps: Sequence[Step], *, recent: int = RECENT_STEPS) -> tuple[Persistence, ...]:
    """Sum up which rank was late in how many of the last steps; the most persistent first.

    Args:
        steps: Steps in the order of time, with their stragglers.
        recent: How many of the last ones count.
    """
    shown = steps[-recent:]
    delays: dict[tuple[int, str], list[Straggler]] = defaultdict(list)
    late: dict[tuple[int, str], int] = defaultdict(int)
    for step in shown:
        for key in {(each.rank, each.instance) for each in step.stragglers}:
            late[key] += 1
        for each in step.stragglers:
            delays[(each.rank, each.instance)].append(each)
    found = []
    for (rank, instance), stragglers in delays.items():
        worst = max(stragglers, key=lambda each: each.seconds)
        total = sum(each.seconds for each in stragglers)
        found.append(
            Persistence(rank, instance, late[(rank, instance)], len(shown), total, worst.evidence, worst.method)
        )
    return tuple(sorted(found, key=lambda each: (-each.late, -each.seconds, each.rank)))


def _groups(root: Node) -> Iterator[tuple[str, list[_Rank]]]:
    """Yield each call of a worker group: its method and what each rank did."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children)
        if not node.span.name.startswith(_CALL):
            continue
        workers = [child for child in node.children if child.span.name.startswith(_WORKER)]
        by_rank = {rank: child for child in workers if (rank := _number(child.span, attr.RANK)) is not None}
        if by_rank:
            first = min(child.span.start_ns for child in by_rank.values())
            yield (
                node.span.name.removeprefix(_CALL),
                [_describe(int(rank), child, first) for rank, child in sorted(by_rank.items())],
            )


def _describe(rank: int, node: Node, first_ns: int) -> _Rank:
    stages, computing = _find_stages(node)
    tokens = _number(node.span, attr.BATCH_TOKENS)
    if tokens is None and computing:
        parts = [_number(each, attr.BATCH_TOKENS) for each in computing]
        tokens = None if None in parts else sum(part for part in parts if part is not None)
    begins = min((each.start_ns for each in computing), default=None)
    return _Rank(
        rank,
        node.instance,
        (node.span.start_ns - first_ns) / 1e9,
        (node.span.end_ns - first_ns) / 1e9,
        tuple((_method(each), (each.start_ns - first_ns) / 1e9) for each in stages),
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
        each = waiting.pop()
        if not each.span.name.startswith(_WORKER):
            continue
        if not computing and len(stages) < MAX_STAGES:
            stages.append(each.span)
        if _method(each.span) in _COMPUTE:
            computing.append(each.span)
        else:
            waiting.extend(reversed(each.children))
    return stages, computing


def _method(span: SpanRecord) -> str:
    return str(span.attributes.get(attr.WORKER_METHOD, span.name.rpartition(".")[2]))


class _Stage(NamedTuple):
    """A method that all ranks of a call begin with."""

    begins: Field
    took: Field
    """How long what lies before it took."""


def _compare(method: str, ranks: Sequence[_Rank], uncertainty: float) -> Iterator[Straggler]:
    """Yield the ranks of one call that were late, each with its evidence."""
    length = max(each.end for each in ranks)
    lead = max(LEAD_SECONDS, LEAD_SHARE * length) * (PAIR_FACTOR if len(ranks) == 2 else 1.0)  # noqa: PLR2004 - a pair
    between_clocks = lead + uncertainty
    ends, starts = Field(each.end for each in ranks), Field(each.start for each in ranks)
    tokens, cpu = _gather([each.tokens for each in ranks]), _gather([each.cpu for each in ranks])
    stages = _align(ranks)
    for own in ranks:
        if own.end < ends.median_without(own.end) - LEAD_SECONDS:
            continue  # it was done before the others: whatever it was late for, nobody waited for it
        delays = {
            "arrival": starts.exceed(own.start, between_clocks),
            "data": _prepare(own, stages, between_clocks),
            "tokens": _overload(own, tokens, lead, length),
        }
        if cpu is not None and own.cpu is not None and not any(delays.values()):
            delays["cpu"] = cpu.exceed(
                own.cpu, lead
            )  # what it does before it computes, or with more tokens, is CPU time, too
        for evidence, seconds in delays.items():
            if seconds:
                yield Straggler(method, own.rank, own.instance, seconds, evidence)


def _gather(values: Sequence[float | None]) -> Field | None:
    """Return a number of all ranks; None where one does not say it."""
    known = [each for each in values if each is not None]
    return Field(known) if len(known) == len(values) else None


def _align(ranks: Sequence[_Rank]) -> list[_Stage]:
    """Return the methods within a call up to the first one in which ranks do not do the same any more."""
    found: list[_Stage] = []
    before = [each.start for each in ranks]
    for same in zip(*(each.stages for each in ranks), strict=False):
        if len({method for method, _ in same}) > 1:
            break
        begins = [begin for _, begin in same]
        took = (begin - start for begin, start in zip(begins, before, strict=True))
        found.append(_Stage(Field(begins), Field(took)))
        before = begins
    return found


def _prepare(own: _Rank, stages: Sequence[_Stage], lead: float) -> float:
    """Return by how much longer a rank prepared, stage by stage, so that it came late to the next one.

    Both must hold, the stage took longer and the next begins late: there may be collectives in between (verl has one in
    ``train_mini_batch``), and ranks that wait in it for a late one take longer, too, but go on when everybody does.
    """
    total, before = 0.0, own.start
    for stage, (_, begins) in zip(stages, own.stages, strict=False):
        late = stage.begins.exceed(begins, lead)
        total += min(late, stage.took.exceed(begins - before, lead)) if late else 0.0
        before = begins
    return total


def _overload(own: _Rank, tokens: Field | None, lead: float, length: float) -> float:
    """Return how much of a call goes back to a rank's larger share of tokens, as if time were in proportion to tokens."""
    if tokens is None or not own.tokens:
        return 0.0
    usual = tokens.median_without(own.tokens)
    if own.tokens < (1 + TOKEN_SHARE) * usual or not tokens.exceed(own.tokens, 0.0):
        return 0.0
    begin = own.start if own.computes is None else own.computes
    seconds = (min(own.end, length) - begin) * (1 - usual / own.tokens)
    return seconds if seconds >= lead else 0.0


def _number(span: SpanRecord, key: str) -> float | None:
    value: Any = span.attributes.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
