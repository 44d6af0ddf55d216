# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run by tests as a process: a step with trajectories of which it is known which are slow and which failed, through the real SDK.

Usage: send_to_tempo.py SLOW_SECONDS    prints one line of JSON: the trace id of each, by what it is
"""

import contextlib
import json
import sys
import time

from opentelemetry import trace

import verl_otel
from verl_otel import session
from verl_otel.semconv import attributes as attr

ANSWER = {"num_turns": 3, "response_ids": [1] * 17, "reward_score": 0.5}


def main(slow_seconds):
    session.describe({"verl.role": "agent_loop", "verl.rank": 0})
    verl_otel.init()
    found = {}

    def note(kind, span):
        found[kind] = f"{span.get_span_context().trace_id:032x}"

    @verl_otel.trajectory("prompt-2", 1, step=7, agent="toy")
    def answer_slowly():
        note("slow", trace.get_current_span())
        time.sleep(slow_seconds)
        return ANSWER

    with verl_otel.step(7) as step:
        note("step", step)
        step.set_attribute(attr.SLOWEST_SECONDS, slow_seconds)  # verl's trainer says it; this one is none
        with verl_otel.phase("gen"):
            pass
    with verl_otel.trajectory("prompt-0", 0, step=7, agent="toy") as plain:
        note("plain", plain)
    with contextlib.suppress(ValueError), verl_otel.trajectory("prompt-1", 0, step=7, agent="toy") as failed:
        note("failed", failed)
        raise ValueError("planted")
    answer_slowly()
    with verl_otel.trajectory("prompt-3", 0, step=7, agent="toy") as waited:
        note("tool", waited)
        with verl_otel.tool("calculator"):
            time.sleep(slow_seconds)
        with verl_otel.tool("quick"):
            pass
    verl_otel.shutdown()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
