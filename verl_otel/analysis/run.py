# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A recorded run for scripts and notebooks: steps, trajectories, verdicts, scalars and spans, also as tables.

This class is the public interface of `verl_otel.analysis`. The fields of what it returns are documented in `verl_otel.analysis.model`; fields
are added, and not renamed or removed without a note in the changelog.

Example:
    from verl_otel.analysis import Run

    run = Run.open("~/.local/state/verl-otel/runs/20261121-093000-a3f2")
    for step in run.steps():
        print(step.number, step.seconds, [verdict.subject for verdict in step.verdicts])
    frame = run.to_pandas("trajectories")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union

from verl_otel.analysis import reader
from verl_otel.analysis.io import run_files
from verl_otel.analysis.io.run_files import Writers
from verl_otel.analysis.levers.ranking import Levers, find_levers
from verl_otel.analysis.model import Event, Explanation, Process, Series, Step, Trajectory, Verdict
from verl_otel.analysis.reader import RunReader
from verl_otel.analysis.traces.span_names import CONSUME, TRAJECTORY
from verl_otel.analysis.traces.timeline import build_trajectory
from verl_otel.analysis.traces.tree import Node
from verl_otel.model import SpanRecord
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.kinds import GPU_CAUSES

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

# -- Tables of a run: columns of plain values, for data frames and Parquet. Times in seconds, ids in hexadecimal --

Row = tuple[Any, ...]

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "steps": (
        "step", "start", "seconds", "failed", "error", "no_phase", "trajectories", "verdicts",
        "trajectory_p50", "trajectory_p95", "trajectory_p99", "trajectory_max",
        "gpu_seconds", "trained_tokens", "wasted_tokens", "trace_id", "between",
    ),
    "phases": ("step", "phase", "seconds", "share"),
    "path": ("step", "kind", "name", "seconds", "part"),
    "trajectories": (
        "trace_id", "uid", "index", "step", "validate", "start", "seconds", "score", "failed", "outcome", "finish_reason",
        "turns", "prompt_tokens", "response_tokens", "process", "whole", "generated_tokens",
    ),
    "verdicts": (
        "step", "kind", "subject", "cause", "cause_name", "seconds", "saved", "process", "turn", "trace_id", "uncertainty",
    ),
    "gpu": ("step", "device", "cause", "state", "seconds"),
    "scalars": ("name", "labels", "time", "value"),
}  # fmt: skip
"""Columns of each table. New columns are added at the end."""


def _build(name: str, run: Explanation, trajectories: Iterable[Trajectory] = ()) -> dict[str, list[Any]]:
    """Return one table.

    Args:
        name: A key of `COLUMNS`.
        run: The explained run.
        trajectories: All trajectories, for the table of that name.
    """
    rows = list(_trajectories(trajectories) if name == "trajectories" else _ROWS[name](run))
    return {column: [row[place] for row in rows] for place, column in enumerate(COLUMNS[name])}


def _steps(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        quantiles = step.quantiles[1:] if step.quantiles else (None,) * 4
        cost = step.cost
        costs = (None, None, None)
        if cost is not None:
            costs = (cost.gpu_seconds, cost.trained_tokens, sum(cost.wasted_tokens.values()))  # type: ignore[assignment]
        yield (
            step.number, step.start_ns / 1e9, step.seconds, step.failed, step.error, step.no_phase, step.members,
            len(step.verdicts), *quantiles, *costs, _hex(step.trace_id), step.between,
        )  # fmt: skip


def _phases(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        yield from ((step.number, phase.key, phase.seconds, phase.share) for phase in step.phases)


def _path(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        for part, groups in (("step", step.groups), ("between", step.between_groups)):
            yield from ((step.number, kind, name, length / 1e9, part) for kind, name, length in groups)


def _verdicts(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        for verdict in step.verdicts:
            yield (
                step.number, verdict.kind, verdict.subject, verdict.cause, verdict.cause_name, verdict.seconds, verdict.saved,
                verdict.instance, verdict.turn, _hex(verdict.trace_id), verdict.uncertainty,
            )  # fmt: skip


def _gpu(run: Explanation) -> Iterator[Row]:
    for step in run.steps:
        for device in step.devices:
            for cause, length in device.nanoseconds.items():
                yield step.number, device.device, cause, GPU_CAUSES[cause].state, length / 1e9


def _scalars(run: Explanation) -> Iterator[Row]:
    for series in run.series:
        labels = ",".join(f"{key}={value}" for key, value in series.labels)
        for time_ns, value in zip(series.times_ns, series.values, strict=True):
            yield series.name, labels, time_ns / 1e9, value


def _trajectories(trajectories: Iterable[Trajectory]) -> Iterator[Row]:
    for one in trajectories:
        yield (
            _hex(one.trace_id), one.uid, one.rollout_index, one.step, one.validate, one.start_ns / 1e9, one.seconds, one.score,
            one.failed, one.outcome, one.finish, one.turns, one.prompt_tokens, one.response_tokens, one.instance, one.whole,
            one.generated_tokens,
        )  # fmt: skip


def _hex(trace_id: int) -> str | None:
    return f"{trace_id:032x}" if trace_id else None


_ROWS: Final[Mapping[str, Callable[[Explanation], Iterator[Row]]]] = {
    "steps": _steps,
    "phases": _phases,
    "path": _path,
    "verdicts": _verdicts,
    "gpu": _gpu,
    "scalars": _scalars,
}


FOREVER: Final = 1 << 63
"""After every time that a span can have."""
FolderPath = Union[str, "PathLike[str]"]
TABLES: Final = tuple(COLUMNS)
"""Names of the tables: ``steps``, ``phases``, ``path``, ``trajectories``, ``verdicts``, ``gpu``, ``scalars``."""


class Run:
    """One recorded run. Create it with `Run.open`.

    Args:
        explanation: The result of the analysis.
        reader: What has read it.
    """

    def __init__(self, explanation: Explanation, reader: RunReader) -> None:
        self.explanation: Final = explanation
        """Everything that `verl-otel explain` knows of the run."""
        self.folders: Final = reader.folders
        self._files: Final = reader.traces
        self._processes: Final = reader.processes(reader.open_spans())

    @classmethod
    def open(cls, *folders: FolderPath, progress: Callable[[int, int], None] | None = None) -> Run:
        """Read a run; it may be running, or have been killed.

        Args:
            *folders: Folder of the run; one per node if its nodes have folders of their own. ``~`` is expanded.
            progress: Called with the number of bytes read and the total, now and then.

        Raises:
            FileNotFoundError: A folder does not exist, or contains no file of a run.
            VerlOtelError: The folders belong to different runs.
        """
        if not folders:
            raise TypeError("give the folder of a run: `verl-otel runs` lists them")
        paths = tuple(Path(folder).expanduser() for folder in folders)
        return cls(*reader.read(paths, progress=progress))

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.state}, {len(self.explanation.steps)} steps>"

    @property
    def id(self) -> str:
        """Id of the run."""
        return self.explanation.run_id

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``failed``, ``stopped by guard``, ``interrupted``, ``crashed``, ``ended`` or ``no end seen``."""
        return self.explanation.state

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The facts of ``run.json``: project, experiment, model, versions, attempts."""
        return self.explanation.manifest

    @property
    def problems(self) -> tuple[str, ...]:
        """Messages about what is missing or could not be read."""
        return self.explanation.missing

    def steps(self) -> tuple[Step, ...]:
        """Return the training steps in the order of time, with phases, critical path, verdicts and GPU time."""
        return self.explanation.steps

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return the causes that held steps, in the order of the steps."""
        return tuple(verdict for step in self.steps() for verdict in step.verdicts)

    def events(self) -> tuple[Event, ...]:
        """Return the stalls, crashes, stops by guards and alerts that were reported during the run."""
        return self.explanation.events

    def scalars(self, name: str | None = None) -> tuple[Series, ...]:
        """Return series of gauges and counters over the run.

        Args:
            name: Name of a metric, such as ``verl.critic.rewards.mean``; None: all.
        """
        return tuple(series for series in self.explanation.series if name is None or series.name == name)

    def levers(self) -> Levers:
        """Return what would make the run faster, the largest gain first. It takes up to 10 s for steps with many trajectories."""
        return find_levers(self.explanation.recent_steps)

    def trajectories(self) -> Iterator[Trajectory]:
        """Read all trajectories again from the files, one by one, from their root spans: without parts and path.

        The step of each is the one that trained on it; of those that none trained on, the one for which they were generated. The files are read
        twice, and 100 bytes are kept for each trajectory that was trained on.
        """
        numbers = {step.trace_id: step.number for step in self.steps()}
        trained = self._find_trained(numbers)
        for process, span in self.spans():
            if span.name == TRAJECTORY and not span.parent_id:
                trajectory = build_trajectory(Node(span, process.instance, 0, []))
                named = numbers.get(trajectory.submitter) if trajectory.step is None else trajectory.step
                yield trajectory._replace(step=trained.get(trajectory.trace_id, named))

    def _find_trained(self, numbers: Mapping[int, int | None]) -> dict[int, int | None]:
        """Return the number of the step that trained on a trajectory, by the trace id of the trajectory.

        Args:
            numbers: The numbers of the steps by their trace ids.
        """
        trained: dict[int, int | None] = {}
        removed: set[int] = set()
        for _, span in self.spans():
            if span.name == CONSUME and numbers.get(span.trace_id) is not None:
                for link in span.links:
                    if link.attributes.get(attr.LINK_TYPE, "consumed") == "consumed":
                        trained[link.trace_id] = numbers[span.trace_id]
                    else:
                        removed.add(link.trace_id)
        return {trace_id: number for trace_id, number in trained.items() if trace_id not in removed}

    def spans(self, begin_ns: int = 0, end_ns: int = FOREVER) -> Iterator[tuple[Process, SpanRecord]]:
        """Read the spans that had ended when the run was opened, one by one, roughly in the order of their end.

        Times are those of the trainer's host: the estimated offset of another host's clock is taken out. Of a period
        only the parts of the files are read that have spans of it.

        Args:
            begin_ns: Spans that ended before are left out; nanoseconds since 1970, as the times of steps.
            end_ns: Spans that began at this time or after it are left out.
        """
        ahead = {host: round(seconds * 1e9) for host, seconds, _ in self.explanation.offsets}
        margins = [0, *ahead.values()]
        extents = self._files.find(begin_ns + min(margins), end_ns + max(margins))
        writers = Writers([dict(process.resource.attributes) for process in self._processes])
        for index, spans in run_files.read_spans(extents, writers, []):
            process = self._processes[index]
            offset = ahead.get(process.resource.text(attr.HOST_NAME), 0)
            for span in spans:
                moved = span._replace(start_ns=span.start_ns - offset, end_ns=span.end_ns - offset) if offset else span
                if moved.end_ns >= begin_ns and moved.start_ns < end_ns:
                    yield process, moved

    def table(self, name: str) -> dict[str, list[Any]]:
        """Return a table as columns of plain values.

        Args:
            name: One of `TABLES`.

        Raises:
            ValueError: There is no such table; the message lists the names.
        """
        if name not in COLUMNS:
            raise ValueError(f"{name!r} is no table: use {', '.join(TABLES)}")
        trajectories = self.trajectories() if name == "trajectories" else ()
        return _build(name, self.explanation, trajectories)

    def to_arrow(self, name: str) -> pa.Table:
        """Return a table as `pyarrow.Table` (``pip install pyarrow``)."""
        import pyarrow as pa

        return pa.table(self.table(name))

    def to_pandas(self, name: str) -> pd.DataFrame:
        """Return a table as `pandas.DataFrame` (``pip install pandas``)."""
        import pandas as pd

        return pd.DataFrame(self.table(name))

    def to_polars(self, name: str) -> pl.DataFrame:
        """Return a table as `polars.DataFrame` (``pip install polars``)."""
        import polars as pl

        return pl.DataFrame(self.table(name), strict=False)
