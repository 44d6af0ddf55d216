# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Tells what is open on a node, for tests of whom everybody waits for."""

import itertools

from verl_otel.recording.progress import Peers
from verl_otel.session.black_box.members import Member, Suspect
from verl_otel.session.black_box.processes import Process
from verl_otel.session.black_box.scene import ALIVE, Row, Scene

NOW = 1_700_000_000_000_000_000
PEERS = Peers(20, (2.0,) * 16)
"""Twenty that took two seconds: 13 are too many, 7 in a process that does not move."""
_numbers = itertools.count(1)


def member(who, role="agent_loop", rank=None, served=(), **more):
    """A process of the run."""
    number = next(_numbers)
    return Member(
        who, Process(number, 1), "here", who, role, rank, "", 60, 1.0, (), {}, (), tuple(served), "host", **more
    )


class Story:
    """A node at one moment."""

    def __init__(self, alone=1800.0):
        self._members, self._states, self._rows, self._peers = {}, {}, [], {}
        self._alone, self._moving, self._busy = alone, set(), set()

    def process(self, who, role="agent_loop", state=ALIVE, **more):
        self._members[who] = member(who, role, **more)
        self._states[who] = state
        return self

    def peers(self, *names, peers=PEERS):
        self._peers.update(dict.fromkeys(names, peers))
        return self

    def moving(self, *whos):
        self._moving.update(whos)
        return self

    def busy(self, *whos):
        self._busy.update(whos)
        return self

    def open(self, who, name, age, parent=None, links=(), quiet=None, **attributes):
        """Open a span; in a live process it is a suspect if nothing has ended below it for ``quiet`` seconds, or ever."""
        number = next(_numbers)
        trace = parent.trace if parent is not None else f"{number:032x}"
        above = parent.span if parent is not None else ""
        traces = tuple(link.trace for link in links)
        start = NOW - int(age * 1e9)
        row = Row(who, trace, f"{number:016x}", above, name, start, "", attributes, traces)
        self._rows.append(row)
        known = self._members[who]
        if (quiet is None or quiet >= 10) and age >= 10:
            suspect = Suspect(row.trace, row.span, row.parent, name, start, start)
            self._members[who] = known._replace(suspects=(*known.suspects, suspect))
        return row

    def scene(self):
        above = {(row.who, row.parent) for row in self._rows}
        members = {
            who: each._replace(suspects=tuple(s for s in each.suspects if (who, s.span) not in above))
            for who, each in self._members.items()
        }
        return Scene(NOW, members, self._states, self._rows, self._peers, self._alone, self._moving, self._busy)
