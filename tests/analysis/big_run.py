# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the files of a long run fast: real format, several processes, lines of up to 256 spans, rotated files.

    python -m tests.analysis.big_run FOLDER --steps 1000 --trajectories 64

Each trajectory has 8 spans in three processes, each step about 20 in three; a span has 650 bytes. Times are told, not waited for:
a step takes 10 seconds, and every 50th waits 20 more for one trajectory's tool. The trainer has scalars of each step, each rank some of every
sixth one.
"""

import argparse
import json
import random
from pathlib import Path

T0 = 1_790_000_000
STEP_SECONDS = 10
LINE_SPANS = 256
ROTATE_BYTES = 1 << 28
AGENTS, SERVERS, RANKS = 4, 4, 4
SCALARS_EVERY = 6
RANK_SCALARS = (
    "process.cpu.time",
    "process.memory.usage",
    "process.thread.count",
    "verl.worker.calls",
    "verl.a",
    "verl.b",
)


class Writer:
    """The trace files of one process."""

    def __init__(self, folder, role, number, host, pid, **more):
        values = {
            "service.name": "verl",
            "service.instance.id": f"big/{role}-{number}",
            "verl.run.id": "big",
            "verl.role": role,
            "host.name": host,
            "process.pid": pid,
            "process.runtime.name": "cpython",
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.distro.name": "verl-otel",
            "ray.node.id": f"{host:0>56}",
            **more,
        }
        resource = json.dumps({"attributes": pairs(values)}, separators=(",", ":"))
        self.head = (
            f'{{"resourceSpans":[{{"resource":{resource},"scopeSpans":[{{"scope":{{"name":"verl_otel"}},"spans":['
        )
        self.metrics_head = (
            f'{{"resourceMetrics":[{{"resource":{resource},"scopeMetrics":[{{"scope":{{"name":"verl_otel"}},"metrics":['
        )
        self.metrics_path = folder / f"metrics-{role}-{host}-{pid}.jsonl"
        self.path = folder / f"traces-{role}-{host}-{pid}.jsonl"
        self.file = self.path.open("w")
        self.size = 0
        self.waiting = []

    def add(self, span):
        """Take a span; spans come in about the order of their ends."""
        self.waiting.append(span)
        if len(self.waiting) == LINE_SPANS:
            self.drain()

    def drain(self):
        """Write a line."""
        if not self.waiting:
            return
        if self.size >= ROTATE_BYTES:
            self.rotate()
        self.size += self.file.write(f"{self.head}{','.join(self.waiting)}]}}]}}]}}\n")
        self.waiting.clear()

    def add_scalars(self, time_ns, values):
        """Write a line of gauges."""
        gauges = ",".join(
            f'{{"name":"{name}","gauge":{{"dataPoints":[{{"timeUnixNano":"{time_ns}","asDouble":{value}}}]}}}}'
            for name, value in values.items()
        )
        with self.metrics_path.open("a") as file:
            file.write(f"{self.metrics_head}{gauges}]}}]}}]}}\n")

    def rotate(self):
        """Make room, as the file exporter does."""
        self.file.close()
        for number in range(3, 0, -1):
            newer = self.path if number == 1 else self.path.with_suffix(f".{number - 1}.jsonl")
            if newer.exists():
                newer.replace(self.path.with_suffix(f".{number}.jsonl"))
        self.file, self.size = self.path.open("w"), 0


def pairs(values):
    """Attributes of OTLP/JSON."""
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return [
        {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for key, value in values.items()
    ]


def template(name, kind, state, links=False, **attributes):
    """A span as text with holes: trace, id, parent, begin and end in nanoseconds, then those of ``attributes``."""
    values = {key.replace("__", "."): value for key, value in attributes.items()}
    text = json.dumps(pairs(values), separators=(",", ":")).replace("%", "%%")
    text = text.replace("hole:s", "%s")
    tail = ',"links":[%s]' if links else ""
    return (
        '{"traceId":"%032x","spanId":"%016x","name":"'
        + name
        + f'","kind":{kind},"startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":{text},"flags":257,'
        + f'"parentSpanId":"%016x","traceState":"verl={state}"{tail}}}'
    )


TRAJECTORY = template(
    "verl.trajectory", 1, "t", True,
    gen_ai__operation__name="invoke_agent", gen_ai__agent__name="tool_agent", verl__agent="tool_agent", verl__validate=False,
    verl__sample__uid="hole:s", verl__rollout__index="hole:s", verl__step__number="hole:s", verl__data__source="gsm8k",
    verl__turns=4, verl__prompt__tokens=160, verl__response__tokens=910, verl__outcome="success", verl__reward__score=0.5,
).replace('{"stringValue":"%s"}', '{"intValue":"%s"}').replace('{"intValue":"%s"}', '{"stringValue":"%s"}', 1).replace(
    '"parentSpanId":"%016x",', ""
)  # fmt: skip
TURN = template("verl.turn", 1, "t", verl__turn__index=0)
CHAT = template(
    "chat qwen", 3, "t",
    gen_ai__operation__name="chat", gen_ai__provider__name="verl", gen_ai__request__model="qwen",
    gen_ai__usage__input_tokens=160, gen_ai__usage__output_tokens=455, gen_ai__response__finish_reasons="stop",
    verl__preemptions=0, server__address="10.0.0.7", server__port=8000,
)  # fmt: skip
GENERATE = template(
    "verl.generate", 2, "t",
    verl__worker__class="vLLMHttpServer", verl__replica__rank=0, verl__preemptions=0, gen_ai__usage__input_tokens=160,
    gen_ai__usage__output_tokens=455, gen_ai__response__finish_reasons="stop", gen_ai__request__model="qwen",
)  # fmt: skip
TOOL = template(
    "execute_tool search", 1, "t",
    gen_ai__tool__name="search", gen_ai__operation__name="execute_tool", verl__outcome="success", verl__turn__index=0,
)  # fmt: skip
REWARD = template(
    "verl.reward", 1, "t",
    verl__data__source="gsm8k", verl__reward__function="compute_score", verl__reward__score=0.5,
)  # fmt: skip
STEP = template(
    "verl.step", 1, "s", verl__step__number="hole:s", verl__trainer__mode="sync", verl__algorithm="grpo"
).replace('{"stringValue":"%s"}', '{"intValue":"%s"}').replace('"parentSpanId":"%016x",', "")  # fmt: skip
CONSUME = template("verl.consume", 1, "s", True, verl__samples=64)
LINK = '{"traceId":"%032x","spanId":"%016x","attributes":[{"key":"verl.link.type","value":{"stringValue":"%s"}}],"flags":256}'


CALL = {"verl__worker__group": "actor", "verl__call__blocking": True}
WORKER = {"verl__rank": 0, "verl__worker__nested": False, "verl__batch__size": 16}
KEYS = ("gen", "old_log_prob", "adv", "update_actor", "update_weights")
PHASES = {key: template(f"verl.phase.{key}", 1, "s", verl__phase=key) for key in KEYS}
CALLS = {key: template(f"verl.call {key}", 3, "s", **CALL) for key in KEYS}
WORKERS = {key: template(f"verl.worker ActorRolloutRefWorker.{key}", 2, "s", **WORKER) for key in KEYS}


class Run:
    """A run that is being told."""

    def __init__(self, folder, hosts, ranks):
        folder.mkdir(parents=True, exist_ok=True)
        self.ids = 0
        self.random = random.Random(7)
        host = [f"node-{number}" for number in range(hosts)]
        self.trainer = Writer(folder, "trainer", 0, host[0], 100)
        self.agents = [Writer(folder, "agent_loop", n, host[n % hosts], 200 + n) for n in range(AGENTS)]
        self.servers = [
            Writer(folder, "llm_server", n, host[n % hosts], 300 + n, **{"verl.replica.rank": n})
            for n in range(SERVERS)
        ]
        self.reward = Writer(folder, "reward", 0, host[0], 400)
        self.ranks = [
            Writer(
                folder, "actor_rollout_ref", n, host[n % hosts], 500 + n, **{"verl.rank": n, "verl.world_size": ranks}
            )
            for n in range(ranks)
        ]
        (folder / "run.json").write_text(json.dumps({"run_id": "big", "verl.algorithm": "grpo"}))

    def next_id(self):
        self.ids += 1
        return self.ids

    def step(self, number, begin, trajectories):
        """Tell one step that begins at ``begin`` nanoseconds; return when it ends."""
        step, gen = self.next_id(), self.next_id()
        trace = (1 << 100) + step
        slow = number % 50 == 49
        made = [self.trajectory(index, number, begin, (trace, gen), slow) for index in range(trajectories)]
        ends = max(end for end, *_ in made)
        for _, spans, *_ in sorted(made, key=lambda each: each[0]):
            for writer, span in spans:
                writer.add(span)
        now = ends + 200_000_000
        self.trainer.add(PHASES["gen"] % (trace, gen, begin + 1_000_000, now, step))
        for part in range(0, trajectories, 128):
            links = ",".join(LINK % (other, span, "consumed") for *_, other, span in made[part : part + 128])
            self.trainer.add(CONSUME % (trace, self.next_id(), now - 1_000_000, now - 500_000, gen, links))
        for key, seconds in (("old_log_prob", 0.5), ("adv", 0.1), ("update_actor", 2.0), ("update_weights", 0.3)):
            now = self.phase(trace, step, key, now, round(seconds * 1e9))
        self.trainer.add(STEP % (trace, step, begin, now + 1_000_000, number))
        for writer in (self.trainer, *self.ranks):
            writer.drain()
        self.trainer.add_scalars(now, {"verl.training.step": number, "verl.average_reward": number / 1000})
        if number % SCALARS_EVERY == 1:
            for rank in self.ranks:
                rank.add_scalars(now, dict.fromkeys(RANK_SCALARS, number))
        return now + 2_000_000

    def phase(self, trace, step, key, begin, length):
        phase_id, end = self.next_id(), begin + length
        if key != "adv":
            call = self.next_id()
            for rank in self.ranks:
                rank.add(WORKERS[key] % (trace, self.next_id(), begin + 3_000_000, end - 3_000_000, call))
            self.trainer.add(CALLS[key] % (trace, call, begin + 1_000_000, end - 1_000_000, phase_id))
        self.trainer.add(PHASES[key] % (trace, phase_id, begin, end, step))
        return end

    def trajectory(self, index, number, begin, submitted, slow):
        """Return when it ends, its spans with their writers, its trace id and root."""
        agent, server = self.agents[index % AGENTS], self.servers[index % SERVERS]
        root, turn, chat, tool, second = (self.next_id() for _ in range(5))
        trace = (2 << 100) + root
        begin += 2_000_000 + index * 100_000
        first = begin + round(self.random.uniform(0.5, 1.5) * 1e9)
        done = first + round(self.random.uniform(0.5, 1.5) * 1e9) + (20_000_000_000 if slow and index == 5 else 0)
        last = done + round(self.random.uniform(0.5, 2.0) * 1e9)
        end = last + 50_000_000
        spans = [
            (server, GENERATE % (trace, self.next_id(), begin + 3_000_000, first - 1_000_000, chat)),
            (agent, CHAT % (trace, chat, begin + 1_000_000, first, turn)),
            (agent, TOOL % (trace, tool, first + 1_000_000, done, turn)),
            (agent, TURN % (trace, turn, begin + 500_000, done, root)),
            (server, GENERATE % (trace, self.next_id(), done + 3_000_000, last - 1_000_000, second)),
            (agent, CHAT % (trace, second, done + 1_000_000, last, root)),
            (self.reward, REWARD % (trace, self.next_id(), last + 5_000_000, end - 5_000_000, root)),
        ]
        uid = f"{number * 1000 + index // 8:08x}-0000-0000-0000-000000000000"
        link = LINK % (*submitted, "submitted_by")
        spans.append((agent, TRAJECTORY % (trace, root, begin, end, uid, index % 8, number, link)))
        return end, spans, trace, root

    def close(self):
        """Write what waits."""
        for writer in (self.trainer, self.reward, *self.agents, *self.servers, *self.ranks):
            writer.drain()
            writer.file.close()


def write(folder, steps, trajectories=64, hosts=1, ranks=RANKS):
    """Write a run and return its folder."""
    run = Run(Path(folder), hosts, ranks)
    now = T0 * 1_000_000_000
    for number in range(1, steps + 1):
        now = run.step(number, now, trajectories)
    run.close()
    return Path(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=RANKS)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.steps, arguments.trajectories, arguments.hosts, arguments.ranks)
