# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The table "what grows with what": made from the results of the parts, multiplied by the shape of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.scale import shape

MIB: Final = 1 << 20
_COLLECTOR_BYTES: Final = 4.5 / 1024
"""MiB of a span that waits in a gateway: the formula of collector/README.md."""
_COLLECTOR_BASE: Final = 150.0
_COLLECTOR_SHARE: Final = 0.05
_COLLECTOR_CPU: Final = 56e-6
"""CPU seconds of a span in a gateway, measured there."""
Row = tuple[str, str, str, str]


def steps_kept(step_bytes: float, ratio: float) -> int:
    """Return the steps whose lines a file with its parts holds, of which the newest are not compressed."""
    return round((shape.PLAIN_BYTES + (shape.FILE_BYTES - shape.PLAIN_BYTES) * ratio) / step_bytes)


def gateway_mib(trajectories: int, spans: int) -> float:
    """Return the memory limit that a gateway needs for trajectories in flight, as collector/README.md has it."""
    waiting = trajectories * (1 - _COLLECTOR_SHARE) * spans
    return (_COLLECTOR_BASE + waiting * _COLLECTOR_BYTES) / 0.8


def rows(parts: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    """Yield what it is, what it grows with, the measured figure, and the figure of the whole run."""
    worker, trainer, watcher, reader = parts["worker"], parts["trainer"], parts["watcher"], parts["reader"]
    ranks = parts["ranks"]
    cpu = worker["cpu_seconds"]
    yield (
        "agent loop worker, CPU of recording a step", "its trajectories", f"{cpu / shape.PER_WORKER * 1e6:,.0f} µs a trajectory of 32 spans",
        f"{cpu * 1e3:,.0f} ms of {shape.STEP_SECONDS} s, {cpu / shape.STEP_SECONDS:.3%} of a core",
    )  # fmt: skip
    second = parts["busy"]["cpu_per_second"]
    yield (
        "agent loop worker, CPU of all by the second", "trajectories that are open",
        f"{second * 1e3:.1f} ms a second with {shape.PER_WORKER} open, two of which begin in a second",
        f"{second * shape.STEP_SECONDS * 1e3:,.0f} ms of {shape.STEP_SECONDS} s at most, {second:.2%} of a core",
    )  # fmt: skip
    yield (
        "agent loop worker, memory", "nothing", f"{worker['memory_begin_mib']:.0f} MiB after 3 steps",
        f"{worker['memory_end_mib']:.0f} MiB after {worker['steps'] + 3:.0f} steps",
    )  # fmt: skip
    yield _bytes("agent loop worker", worker)
    yield _kept("agent loop worker", worker)
    step = trainer["cpu_seconds"]
    yield (
        "trainer, CPU of a step", "trajectories: a link for each", f"{step / shape.TRAJECTORIES * 1e6:.1f} µs a link",
        f"{step * 1e3:,.0f} ms of {shape.STEP_SECONDS} s with {shape.TRAJECTORIES:,} links",
    )  # fmt: skip
    yield (
        "trainer, memory", "nothing", f"{trainer['memory_begin_mib']:.0f} MiB after 3 steps",
        f"{trainer['memory_end_mib']:.0f} MiB after {trainer['steps'] + 3:.0f} steps",
    )  # fmt: skip
    yield _bytes("trainer", trainer)
    yield _kept("trainer", trainer)
    idle = parts["idle"]["cpu_per_second"]
    yield (
        "a process in which nothing happens", "processes", f"{idle * 1e3:.2f} ms a second, {parts['idle']['memory_mib']:.0f} MiB with Python",
        f"{shape.PROCESSES:,} processes, {idle * shape.PROCESSES:.2f} cores of {shape.NODES} nodes",
    )  # fmt: skip
    own = watcher["check_here_seconds"] / watcher["peers"]
    node = shape.PROCESSES / shape.NODES
    far = watcher["check_elsewhere_seconds"] / watcher["peers"] * (shape.PROCESSES - node)
    yield (
        "watcher of a node", "processes of the node; on a shared file system all of them",
        f"{own * 1e6:.0f} µs a second for each of {watcher['peers']:,.0f} on the node, {far / shape.PROCESSES * 1e6:.1f} µs elsewhere",
        f"{(own * node + far) * 1e3:.1f} ms a second with {node:.0f} processes a node and one folder for all",
    )  # fmt: skip
    targets = parts["targets"]
    yield (
        "targets for Prometheus", "processes",
        f"{targets['bytes'] / targets['targets']:.0f} bytes a target, {targets['add_seconds'] * 1e3:.0f} ms CPU to add the last one", f"{targets['targets']:,.0f} targets, {targets['bytes'] / 1024:,.0f} KiB",
    )  # fmt: skip
    series = parts["series"]
    per_gpu = (series["own_1024"] - series["own_64"]) / (1024 - 64)
    yield (
        "series of verl-otel", "GPUs, agent loop workers", f"{per_gpu:.0f} a GPU (counted, not scraped)",
        f"{series['own_1024']:,.0f} with {shape.WORKERS} agent loop and reward workers",
    )  # fmt: skip
    rate = shape.SPANS / shape.STEP_SECONDS
    need = gateway_mib(shape.TRAJECTORIES, shape.SPANS // shape.TRAJECTORIES)
    yield (
        "gateways", "spans a second; trajectories in flight", "formula and CPU of collector/README.md (not measured again)",
        f"{rate:,.0f} spans a second, {rate * _COLLECTOR_CPU:.1%} of a core; OTELCOL_MEMORY_MIB={need:,.0f}: one gateway",
    )  # fmt: skip
    total = shape.SPANS * shape.STEPS
    hours = total / reader["spans_per_cpu_second"] * ranks["ratio"] / 3600
    of_span = f"{reader['cpu_seconds'] / reader['spans'] * 1e6:.1f} µs a span of 13 processes"
    memory = f"{reader['peak_mib']:.0f} MiB with {reader['spans']:,.0f} spans of 13 processes"
    of_ranks = f"{ranks['processes']:,.0f} processes"
    yield (
        "`explain`, CPU", "spans that are kept", f"{of_span}, {ranks['ratio']:.2f} times that with the files of {of_ranks}",
        f"{shape.SPANS / reader['spans_per_cpu_second'] * ranks['ratio']:.1f} s a step; {hours:,.0f} h if all spans of {shape.STEPS:,} steps were kept",
    )  # fmt: skip
    yield (
        "`explain`, memory",
        "files, up to 64 MiB of text in all, see [long runs](long-runs.md)",
        f"{memory}, {ranks['peak_mib']:.0f} MiB with as many of {of_ranks}",
        f"as with {of_ranks}",
    )


def _bytes(who: str, part: Mapping[str, float]) -> Row:
    size, ratio = part["bytes"], part["ratio"]
    return (
        f"{who}, files of a step", "spans, links", f"{size / MIB:.2f} MiB, {ratio:.0f} times smaller when compressed",
        f"{size / ratio / MIB * (shape.WORKERS if who != 'trainer' else 1):.2f} MiB in all such processes",
    )  # fmt: skip


def _kept(who: str, part: Mapping[str, float]) -> Row:
    kept = steps_kept(part["bytes"], part["ratio"])
    before = round(shape.FILE_BYTES / part["bytes"])
    return (
        f"{who}, steps in its 1 GiB of files", "", f"{before:,} without compression",
        f"{min(kept, shape.STEPS):,} of {shape.STEPS:,}" + (f" (room for {kept:,})" if kept > shape.STEPS else ""),
    )  # fmt: skip


def render(results: Mapping[str, Any]) -> str:
    """Return the table with the conditions of its figures."""
    machine = results["machine"]
    conditions = (
        f"{results['date']}, commit {machine['commit']}, {machine['python']}, {machine['cores']} cores, load {results['load'][0]:g} before and "
        f"{results['load'][1]:g} after. One process of each kind, one measurement; CPU figures of a busy machine are upper bounds."
    )
    lines = [f"| {' | '.join(row)} |" for row in rows(results["parts"])]
    return "\n".join(
        (conditions, "", "| what | grows with | measured | in the simulated run |", "|---|---|---|---|", *lines)
    )
