# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs for the tests of the analysis and of the report: told in seconds, written as the files of several processes."""

import itertools
import json
from pathlib import Path

from tests.builders.traces_object import traces_object
from verl_otel.analysis.io import run_files
from verl_otel.analysis.traces.whole_traces import assemble
from verl_otel.exporting import files
from verl_otel.model import Instrument, LinkRecord, Point, Resource, Scope, SpanRecord
from verl_otel.semconv.spans import CLIENT, SERVER

T0 = 1_790_000_000
"""When every story begins, in seconds since 1970."""
SCOPE = Scope("verl_otel", "0")
STEP, TRAJECTORY = "verl=s", "verl=t"
_IDS = itertools.count(1)


FIRST, SECOND = "aaaaaaaa-0000-0000-0000-000000000000", "bbbbbbbb-0000-0000-0000-000000000000"


def at(seconds):
    """A moment of a story, in nanoseconds."""
    return round((T0 + seconds) * 1e9)


class Story:
    """The files of one run."""

    def __init__(self, folder, run_id="r1"):
        self.folder = Path(folder)
        self.run_id = run_id
        self.processes = []

    def process(self, role="trainer", index=0, host="node-1", pid=None, **attributes):
        """A process of the run; its spans are written by `write`. ``__`` stands for a dot in attributes."""
        values = {
            "service.instance.id": f"{self.run_id}/{role}-{index}",
            "verl.run.id": self.run_id,
            "verl.role": role,
            "host.name": host,
            "process.pid": 1000 + len(self.processes) if pid is None else pid,
        }
        values |= {key.replace("__", "."): value for key, value in attributes.items()}
        made = Teller(self, Resource(values))
        self.processes.append(made)
        return made

    def next_id(self):
        return next(_IDS)

    def manifest(self, **facts):
        """Write run.json; ``__`` stands for a dot."""
        self.folder.mkdir(parents=True, exist_ok=True)
        named = {key.replace("__", "."): value for key, value in facts.items()}
        (self.folder / "run.json").write_text(json.dumps({"run_id": self.run_id, **named}))

    def status(self, *trainings, **status):
        """Add to run.json what processes with a training loop write; each is a dict of what differs from a running one."""
        path = self.folder / "run.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        running = {"process": "trainer-node-1-1000", "began": T0, "state": "running", "time": T0}
        self.manifest(**{**known, "status": {"trainings": [{**running, **each} for each in trainings], **status}})

    def write(self):
        """Write everything that was told."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for each in self.processes:
            each.write(self.folder)
        return self.folder


class Teller:
    """One process of a story."""

    def __init__(self, story, resource):
        self.story = story
        self.resource = resource
        self.spans, self.opened, self.points = [], [], []

    def span(self, name, begin, end, parent=None, *, state="", kind=1, flags=1, links=(), status=0, **attributes):
        """A span from ``begin`` to ``end`` seconds; ``end`` None: open. ``__`` stands for a dot in attributes."""
        values = {key.replace("__", "."): value for key, value in attributes.items()}
        made = SpanRecord(
            parent.trace_id if parent else 0xABC0000 + self.story.next_id(),
            self.story.next_id(),
            parent.span_id if parent else 0,
            name,
            kind,
            at(begin),
            0 if end is None else at(end),
            values,
            tuple(LinkRecord(each.trace_id, each.span_id, {"verl.link.type": "consumed"}) for each in links),
            (),
            status,
            "",
            flags,
            parent.trace_state if parent else state,
        )
        (self.opened if end is None else self.spans).append(made)
        return made

    def still_open(self, name, begin, seen, parent=None, *, last_child="", state=STEP, **attributes):
        """A span that began and had not ended when it was written at ``seen``."""
        row = {"verl.open.age": float(seen - begin), "verl.open.last_child": last_child, "verl.open.written": at(seen)}
        made = self.span(name, begin, None, parent, state=state, **attributes)
        self.opened[-1] = made._replace(attributes={**made.attributes, **row})
        return self.opened[-1]

    def scalar(self, name, seconds, value, **labels):
        """One value of a gauge."""
        pairs = tuple((key.replace("__", "."), text) for key, text in labels.items())
        self.points.append(Point(Instrument(name, "gauge", "", ""), pairs, at(0), at(seconds), value))

    def lines(self):
        """The lines of the three kinds of files."""
        return {
            "traces": [traces_object(self.resource, SCOPE, [span]) for span in self.spans],
            "open": [traces_object(self.resource, SCOPE, self.opened)] if self.opened else [],
            "metrics": [files.metrics_object(self.resource, SCOPE, [point]) for point in self.points],
        }

    def write(self, folder):
        values = self.resource.attributes
        who = f"{values['verl.role']}-{values['host.name']}-{values['process.pid']}"
        for kind, objects in self.lines().items():
            if objects:
                (folder / f"{kind}-{who}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in objects))


def trajectory(agent, begin, end, *, uid="u", index=0, step=1, calls=(), reward=None, whole=True, server=None, **more):
    """One trajectory: ``calls`` are (kind, name, begin, end) with kind ``llm`` or ``tool``; each pair opens a turn."""
    facts = {"verl__sample__uid": uid, "verl__rollout__index": index, "verl__step__number": step, **more}
    root = agent.span("verl.trajectory", begin, end, state=TRAJECTORY, flags=int(whole), **facts)
    for number, (kind, name, start, stop) in enumerate(calls):
        turn = agent.span("verl.turn", start, stop, root, verl__turn__index=number)
        if kind == "tool":
            agent.span(f"execute_tool {name}", start, stop, turn, gen_ai__tool__name=name)
            continue
        chat = agent.span(
            f"chat {name}", start, stop, turn, kind=CLIENT, gen_ai__request__model=name, gen_ai__operation__name="chat"
        )
        if server is not None:
            server.span("verl.generate", start, stop, chat, kind=SERVER)
    if reward is not None:
        agent.span("verl.reward", *reward, root)
    return root


def step(trainer, number, begin, end, phases=(), consumed=(), **more):
    """One step: ``phases`` are (key, begin, end); what it trained on is consumed below its first phase."""
    root = trainer.span("verl.step", begin, end, state=STEP, verl__step__number=number, **more)
    made = [trainer.span(f"verl.phase.{key}", start, stop, root) for key, start, stop in phases]
    for part in range(0, len(consumed), 128):
        below = made[0] if made else root
        trainer.span("verl.consume", end, end, below, links=consumed[part : part + 128])
    return root


def evict(trainer, root, when, trajectories):
    """Trajectories that a step removes without training on them."""
    span = trainer.span("verl.consume", when, when, root, links=trajectories)
    links = tuple(link._replace(attributes={"verl.link.type": "evicted"}) for link in span.links)
    trainer.spans[-1] = span._replace(links=links)


def training(folder, run_id="r1"):
    """Two steps of a small run in which the tool ``calculator`` held up the second one."""
    story = Story(folder, run_id)
    trainer, agent = story.process("trainer"), story.process("agent_loop")
    server, worker = story.process("llm_server"), story.process("actor_rollout_ref", verl__rank=0)
    fast = [("llm", "qwen", 0.1, 1.0)]
    first = [trajectory(agent, 0, 2, uid=FIRST, index=n, calls=fast, server=server) for n in range(2)]
    calls = [("llm", "qwen", 11.0, 12.0), ("tool", "calculator", 12.0, 19.0), ("llm", "qwen", 19.0, 19.5)]
    slow = trajectory(agent, 11, 20, uid=SECOND, step=2, calls=calls, reward=(19.5, 20), server=server)
    quick = trajectory(agent, 11, 13, uid=SECOND, index=1, step=2, calls=[("llm", "qwen", 11.0, 13.0)], server=server)
    step(trainer, 1, 0, 10, [("gen", 0, 3), ("update_actor", 4, 9)], first)
    second = step(trainer, 2, 10, 25, [("gen", 11, 21), ("update_actor", 21, 25)], [slow, quick])
    call = trainer.span("verl.call update_actor", 21, 25, second, kind=CLIENT, verl__world_size=1)
    worker.span("verl.worker Actor.update_actor", 21, 25, call, kind=SERVER)
    for number, when, reward in ((1, 9.5, 0.25), (2, 24.5, 0.75)):
        trainer.scalar("verl.training.step", when, number)
        trainer.scalar("verl.average_reward", when, reward)
    trainer.scalar("verl.run.state", 0, 1)
    trainer.scalar("verl.run.state", 25, 2)
    story.manifest(verl__project="bed", verl__experiment="demo", verl__algorithm="grpo", verl__version="0.9.1")
    return story


def traces_of(folder):
    """The traces of a folder, by trace id."""
    writers, by_trace = run_files.Writers(), {}
    for path in run_files.find_files([folder], "traces"):
        for process, spans in run_files.read_spans([run_files.Extent(path, 0, path.stat().st_size)], writers, []):
            for span in spans:
                by_trace.setdefault(span.trace_id, []).append((span, process))
    instances = [str(values["service.instance.id"]).rpartition("/")[2] for values in writers.resources]
    return {trace_id: assemble(trace_id, written, instances) for trace_id, written in by_trace.items()}
