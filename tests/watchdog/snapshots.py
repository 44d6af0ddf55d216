# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Builds snapshots of the open spans of a node, for the tests of the diagnosis."""

import itertools

from verl_otel.recording.duration_stats import DurationStats
from verl_otel.system.procfs import Process
from verl_otel.watchdog.overdue import ALIVE, OpenSpanRow, Snapshot
from verl_otel.watchdog.process_reports import ProcessReport, SuspectSpan

NOW = 1_700_000_000_000_000_000
PEERS = DurationStats(20, (2.0,) * 16)
"""Twenty spans of two seconds: 13 s are overdue, 7 s in a process that does not move."""
_numbers = itertools.count(1)


def make_report(process_name, role="agent_loop", rank=None, served=(), **fields):
    """The report of a process of the run."""
    number = next(_numbers)
    return ProcessReport(
        process_name,
        Process(number, 1),
        "here",
        process_name,
        role,
        rank,
        "",
        60,
        1.0,
        (),
        {},
        (),
        tuple(served),
        "host",
        **fields,
    )


class SnapshotBuilder:
    """The processes and open spans of a node at one moment."""

    def __init__(self, default_timeout=1800.0):
        self._reports, self._states, self._rows, self._peers = {}, {}, [], {}
        self._default_timeout, self._moving, self._busy = default_timeout, set(), set()
        self._is_still = False

    def process(self, process_name, role="agent_loop", state=ALIVE, **fields):
        self._reports[process_name] = make_report(process_name, role, **fields)
        self._states[process_name] = state
        return self

    def peers(self, *names, peers=PEERS):
        self._peers.update(dict.fromkeys(names, peers))
        return self

    def moving(self, *process_names):
        self._moving.update(process_names)
        return self

    def busy(self, *process_names):
        self._busy.update(process_names)
        return self

    def still(self, is_still=True):
        self._is_still = is_still
        return self

    def open(self, process_name, name, age, parent=None, links=(), quiet=None, **attributes):
        """Open a span; in a live process it is a suspect if nothing has ended below it for ``quiet`` seconds, or ever."""
        number = next(_numbers)
        trace_id = parent.trace_id if parent is not None else f"{number:032x}"
        parent_id = parent.span_id if parent is not None else ""
        linked_traces = tuple(link.trace_id for link in links)
        start = NOW - int(age * 1e9)
        row = OpenSpanRow(
            process_name, trace_id, f"{number:016x}", parent_id, name, start, "", attributes, linked_traces
        )
        self._rows.append(row)
        report = self._reports[process_name]
        if (quiet is None or quiet >= 10) and age >= 10:
            suspect = SuspectSpan(row.trace_id, row.span_id, row.parent_id, name, start, start)
            self._reports[process_name] = report._replace(suspects=(*report.suspects, suspect))
        return row

    def build(self):
        parents = {(row.process_name, row.parent_id) for row in self._rows}
        reports = {
            process_name: report._replace(
                suspects=tuple(span for span in report.suspects if (process_name, span.span_id) not in parents)
            )
            for process_name, report in self._reports.items()
        }
        return Snapshot(
            NOW, reports, self._states, self._rows, self._peers, self._default_timeout, self._moving, self._busy,
            lambda: self._is_still,
        )  # fmt: skip
