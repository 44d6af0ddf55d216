# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The watcher of a node: looks every second whether something is stuck, has the stacks written, and says so once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from verl_otel import _guard
from verl_otel.config import Config
from verl_otel.exporting.exporter import remaining
from verl_otel.recording.progress import Peers
from verl_otel.session.bell import Bell
from verl_otel.session.black_box import culprits, limits, run_end
from verl_otel.session.black_box.culprits import OVERDUE, Finding
from verl_otel.session.black_box.inquiry import Incident, Inquiry
from verl_otel.session.black_box.post import Post
from verl_otel.session.black_box.report import Reporter
from verl_otel.session.black_box.roll import Roll, Sight
from verl_otel.session.black_box.scene import ALIVE, DIED, Scene, could_be_overdue, is_users_own

POLL: Final = 1.0
LATE: Final = 6.0
"""Seconds between two rounds after which this watcher itself was stopped or frozen, and knows nothing of what happened meanwhile."""
AGAIN: Final = 2.0
"""Seconds between two looks at everything that is open while the same processes are suspicious."""
KNOWN: Final = 5.0
"""The same while all that was found has been said."""
CONFIRM: Final = 2.0
"""Seconds between the discovery of a death and its report: the end of a run kills everybody, the watcher a little later than others."""
GATHER: Final = 3.0
"""Seconds that the stacks are waited for."""
REPEAT: Final = 600.0
"""Seconds after which what still hangs is said again."""
LINGER: Final = 5.0
"""Seconds after a trainer has failed in which deaths from before are still looked for: a process with a GPU takes long to die."""
FORGET: Final = 60.0
"""Seconds that a dead process is kept whom nobody misses."""
MAX_INCIDENTS: Final = 32


class Watcher(threading.Thread):
    """Watches the processes of a run on this node as long as its process has the post.

    Args:
        config: The settings.
        folder: Where the processes tell what they know.
        place: This node.
        since: Unix time at which this process began to be watched.
        post: The post, held.
    """

    def __init__(self, config: Config, folder: Path, place: str, since: float, post: Post) -> None:
        super().__init__(name="verl-otel-watch", daemon=True)
        self.cpu_seconds = 0.0
        self._folder = folder
        self._alone = config.stall_seconds
        self._post = post
        self._bell = Bell()
        self._roll = Roll(config.run_path, place, since)
        self._inquiry = Inquiry(folder, self._roll)
        self._reporter = Reporter(config, place)
        self._peers: dict[str, Peers] = {}
        self._incidents: dict[tuple[str, str, str], Incident] = {}
        self._known: dict[tuple[str, str, str], None] = {}
        self._signature: object = None
        self._looked = 0.0
        self._last_said: dict[tuple[str, str, str], float] = {}
        self._saw_running = False
        self._ended: float | None = None
        """When the end of the run was seen."""

    def run(self) -> None:
        """Look once a second until stopped or relieved; once more if this process ends because the run has failed."""
        last = 0.0
        while not self._bell.wait(POLL):
            now = time.monotonic()
            with _guard.swallowed("watcher"):
                self._post.touch()
                if not self._post.is_held or self._post.is_relieved():
                    return  # a session that ended could not wait for this round
                if not last or now - last > LATE:
                    self._roll.forgive() if last else None
                    self._known = dict.fromkeys(self._reporter.read_reported())
                self._look()
            last = time.monotonic()
            self.cpu_seconds = time.thread_time()
        with _guard.swallowed("watcher"):
            if run_end.read(self._folder) is not None:
                self._look()

    def stop(self, deadline: float) -> None:
        """End, until ``deadline`` (`time.monotonic`)."""
        self._bell.ring()
        self.join(min(1.0, remaining(deadline)))

    # -- one round ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._roll.refresh()
        sights = self._roll.sights
        if self._roll.changed:
            self._roll.changed = False
            self._peers = limits.merge_all([self._roll.left, *(sight.member.peers for sight in sights.values())])
        mark = run_end.read(self._folder)
        if mark is not None:
            self._end(mark)
            return
        self._saw_running, self._ended = True, None
        self._forget_unmissed()
        signature = [(who, each.state) for who, each in sights.items() if self._is_suspicious(each)]
        if not signature and not self._incidents:
            return
        now = time.monotonic()
        waiting = any(incident.said is None for incident in self._incidents.values())
        pause = 0.0 if waiting else KNOWN if self._incidents else AGAIN
        if signature == self._signature and now - self._looked < pause:
            return
        self._signature, self._looked = signature, now
        scene = self._make_scene(now)
        self._settle(scene, self._find(scene))

    def _make_scene(self, now: float) -> Scene:
        sights = self._roll.sights
        alive = {who: now - sight.moved for who, sight in sights.items() if sight.state == ALIVE}
        return Scene(
            time.time_ns(),
            {who: each.member._replace(suspects=()) if each.is_stuck else each.member for who, each in sights.items()},
            {who: sight.state for who, sight in sights.items()},
            self._roll.read_rows(),
            self._peers,
            self._alone,
            {who for who, moved in alive.items() if moved < limits.QUIET},
            {who for who, sight in sights.items() if now - sight.moved < self._alone},
        )

    def _find(self, scene: Scene) -> list[Finding]:
        return [*culprits.find(scene), *self._find_rowless(scene)]

    def _is_suspicious(self, sight: Sight) -> bool:
        """Return whether it is worth while to read what is open everywhere."""
        if sight.state != ALIVE:
            return True
        now = time.time_ns()
        busy = time.monotonic() - sight.moved < self._alone
        return not sight.is_stuck and any(
            could_be_overdue(each.name, (now - each.start_ns) / 1e9, self._peers, self._alone)
            for each in sight.member.suspects
            if int(each.parent, 16) or not busy or not is_users_own(each.name, self._peers)
        )

    # -- the dead -----------------------------------------------------------------------------------------------------

    def _end(self, mark: run_end.Mark) -> None:
        """Miss nobody any more. If the run has failed, say first who had died before: that is why, as a rule."""
        now = time.monotonic()
        first = self._ended is None
        if self._ended is None:
            self._ended = now
            self._roll.refresh()  # somebody may have died between the look at the processes and the one at the mark
        if mark.state != run_end.FAILED or now - self._ended > LINGER:
            self._incidents.clear()
            return
        scene = self._make_scene(now)
        for finding in self._find(scene):
            sight = self._roll.sights.get(finding.who)
            if finding.kind != "crash" or sight is None:
                continue
            incident = self._incidents.get(finding.key)
            if incident is None:
                if finding.key in self._known or not self._died_before(
                    sight, mark, certain=first and self._saw_running
                ):
                    continue
                incident = self._incidents[finding.key] = Incident(finding, now)
            if incident.said is None and not self._is_muted(incident, sight, now):
                self._report(scene, incident, sight, now)

    def _died_before(self, sight: Sight, mark: run_end.Mark, *, certain: bool) -> bool:
        """Return whether a process gave its last sign of life before the run failed, and is not one of those killed for that.

        Args:
            sight: The dead process.
            mark: The end of the run.
            certain: Whether this watcher has seen the run alive within the last second; later it is the cluster that knows.
        """
        return sight.beat < mark.time_ns and (certain or self._reporter.explain(sight) is not None)

    def _forget_unmissed(self) -> None:
        """Forget the dead whom nobody misses: no open work was found to be theirs for a while."""
        now = time.monotonic()
        for who, sight in list(self._roll.sights.items()):
            if sight.state == DIED and sight.died is not None and now - sight.died > FORGET:
                self._roll.forget(who)

    def _bury(self, scene: Scene, incident: Incident) -> None:
        """Forget a dead process that was reported, once what waited for it has ended: what hangs then hangs for another reason."""
        sight = self._sight(incident)
        if sight is None or incident.finding.kind != "crash" or incident.said is None:
            return
        if incident.missed in scene.rows:
            sight.died = time.monotonic()
        else:
            self._roll.forget(incident.finding.who)

    # -- findings -----------------------------------------------------------------------------------------------------

    def _find_rowless(self, scene: Scene) -> list[Finding]:
        """Return processes that died or froze with no open span in their file: all their work was younger than a second.

        To die with no work at all is a crash, too, if the cluster says that nobody wanted it: its next work is never done.
        """
        found = []
        busy = {row.who for row in scene.rows.values()}
        for who, sight in self._roll.sights.items():
            if sight.state == ALIVE or who in busy:
                continue
            if sight.state != DIED:
                hangs: object = sight.held and sight.silent > limits.silent_limit(_longest(sight), self._alone)
            else:
                hangs = sight.held or self._reporter.explain(sight) is not None
            if hangs:
                found.append(Finding(sight.state, who, None, culprits.find_trainers(scene)))
        return found

    def _settle(self, scene: Scene, findings: list[Finding]) -> None:
        now = time.monotonic()
        for finding in findings:
            incident = self._incidents.get(finding.key)
            if incident is None:
                if len(self._incidents) >= MAX_INCIDENTS:
                    continue
                incident = self._incidents[finding.key] = Incident(finding, now)
                if finding.key in self._known:
                    incident.said = now  # by the watcher before this one
                    incident.missed = finding.waiting_span
                else:
                    self._inquiry.ask(scene, incident)
            incident.finding, incident.seen = finding, now
            self._say(scene, incident, now)
            self._bury(scene, incident)
        present = {finding.key for finding in findings}
        troubled = {finding.who for finding in findings}
        for key in [key for key in self._incidents if key not in present]:
            if key[0] == "stall" and (sight := self._sight(self._incidents[key])) is not None and sight.is_doubtful:
                continue  # it may go on, or be found frozen
            incident = self._incidents.pop(key)
            self._inquiry.clear(incident)
            if incident.said is not None:
                self._known.pop(key, None)
                self._take_back(incident, now, troubled)
        self._reporter.publish()

    def _take_back(self, incident: Incident, now: float, troubled: set[str]) -> None:
        """Say that a process goes on, if it does: it may as well have died, or frozen, meanwhile."""
        sight = self._sight(incident)
        if incident.silent:
            return
        finding = incident.finding
        goes_on = finding.kind == "stall" and sight is not None and sight.state == ALIVE and finding.who not in troubled
        (self._reporter.resolve if goes_on else self._reporter.drop)(finding, now - incident.first)

    def _say(self, scene: Scene, incident: Incident, now: float) -> None:
        if incident.said is not None:
            if now - incident.said >= REPEAT:
                incident.said = self._last_said[incident.finding.key] = now
                self._reporter.repeat(scene, incident.finding, self._sight(incident))
            return
        if not self._is_ready(incident, now):
            return
        sight = self._sight(incident)
        if sight is not None and sight.member.blocked and self._is_said(sight):
            incident.said = now  # everything in it hangs because its event loop does
            incident.silent = True
            return
        if self._is_muted(incident, sight, now):
            return
        if incident.finding.reason == OVERDUE and any(each.is_doubtful for each in self._roll.sights.values()):
            return  # it may wait for one that is about to be found frozen
        if self._reporter.awaits_neighbours(incident.finding, scene, now - incident.first):
            return
        self._report(scene, incident, sight, now)

    def _is_muted(self, incident: Incident, sight: Sight | None, now: float) -> bool:
        """Note a finding that is not to be said: somebody wanted that death, or the same was said lately."""
        finding = incident.finding
        last = self._last_said.get(finding.key)
        if finding.kind == "crash" and sight is not None and self._reporter.is_expected(sight):
            incident.said, incident.silent = now, True
        elif last is not None and now - last < REPEAT:
            incident.said, incident.silent = last, True
        return incident.said is not None

    def _report(self, scene: Scene, incident: Incident, sight: Sight | None, now: float) -> None:
        finding = incident.finding
        incident.said = now
        incident.missed = finding.waiting_span
        self._last_said = {key: said for key, said in self._last_said.items() if now - said < REPEAT}
        self._last_said[finding.key] = now
        self._reporter.report(scene, finding, sight, self._inquiry.find_stacks(incident))
        self._inquiry.clear(incident)

    def _is_said(self, sight: Sight) -> bool:
        """Return whether something of this process was reported."""
        who = sight.member.who
        return any(other.said is not None for key, other in self._incidents.items() if key[1] == who)

    def _sight(self, incident: Incident) -> Sight | None:
        return self._roll.sights.get(incident.finding.who)

    def _is_ready(self, incident: Incident, now: float) -> bool:
        """Return whether the stacks are there, and a death is no part of the end of the run."""
        if incident.answered is None and self._inquiry.has_answered(incident):
            incident.answered = now
        if incident.finding.kind == "crash" and now - incident.first < CONFIRM:
            return False
        return now - incident.first >= GATHER or (incident.answered is not None and now > incident.answered)


def _longest(sight: Sight) -> Peers | None:
    """Return the longest work that a process has done so far: what it was at is not known."""
    return max(sight.member.peers.values(), key=lambda each: each.longest, default=None)
