# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``make demo STACK=1``: train real verl on the CPU against a real Collector and a real Prometheus, and ask them how it went.

The training has the two variables that `verl-otel stack` prints, and nothing else. What is printed are answers of Prometheus.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

from tests.verl_cpu import cpu_train, demo

STEPS = 3
PATIENCE = 60.0
"""Seconds for the last values to be scraped."""
QUESTIONS = (
    ("training steps", "sum(verl_training_steps_total)", "{:.0f}"),
    ("mean reward of the last step", "verl_average_reward", "{:.3f}"),
    ("mean step", "sum(verl_step_duration_seconds_sum) / sum(verl_step_duration_seconds_count)", "{:.2f} s"),
    (
        "slowest phases, in all",
        "topk(3, sum by (verl_phase) (verl_phase_duration_seconds_sum))",
        "{:.2f} s  {verl_phase}",
    ),
    (
        "trajectory, median and p95",
        (
            'label_replace(histogram_quantile(0.5, sum by (le) (verl_rollout_trajectory_duration_seconds_bucket)), "q", "median", "", "")'
            ' or label_replace(histogram_quantile(0.95, sum by (le) (verl_rollout_trajectory_duration_seconds_bucket)), "q", "p95", "", "")'
        ),
        "{:.2f} s  {q}",
    ),
    ("tool calls, and how many took over a second", "sum(verl_tool_call_duration_seconds_count)", "{:.0f}"),
    (
        "",
        'sum(verl_tool_call_duration_seconds_count) - sum(verl_tool_call_duration_seconds_bucket{le=~"1(\\\\.0)?"})',
        "{:.0f} over a second",
    ),
    ("generated tokens", 'sum(verl_rollout_tokens_total{verl_token_type="generated"})', "{:.0f}"),
    ("processes that sent metrics", "count(count by (instance) (target_info))", "{:.0f}"),
)
EXEMPLARS = "verl_rollout_trajectory_duration_seconds_bucket"


def main():
    """Start the stack, train, ask, stop; return the exit code of whatever failed."""
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs").absolute()
    out = runs / f".demo-stack-{time.strftime('%Y%m%d-%H%M%S')}"
    out.mkdir(parents=True)
    with start_stack(runs, out) as stack:
        demo.say(f"OTLP at {stack['otlp_http']}, Prometheus at {stack['prometheus']}, data in {os.path.relpath(out)}")
        command = cpu_train.make_command(out, steps=STEPS, tool=True, overrides=["trainer.experiment_name=demo"])
        environ = cpu_train.make_environment(
            out,
            tool=True,
            VERL_OTEL_ENABLED=1,
            OTEL_EXPORTER_OTLP_ENDPOINT=stack["otlp_http"],
            VERL_OTEL_RUN_DIR=runs,
            CPU_BED_SLOW_TOOL=demo.SLOW_TOOL,
        )
        demo.say(
            f"training: VERL_OTEL_ENABLED=1 OTEL_EXPORTER_OTLP_ENDPOINT={stack['otlp_http']} python -m verl.trainer.main_ppo ..."
        )
        code = demo.train(command, environ, out)
        if code:
            demo.say(f"the training failed with exit code {code}; its log: {out / 'training.log'}")
            return code
        wait_for_steps(stack["prometheus"])
        answer(stack["prometheus"])
        return show_slowest(stack)


@contextlib.contextmanager
def start_stack(runs, out):
    """Start ``verl-otel stack`` on free ports; yields the addresses that it says."""
    words = ["stack", "--free-ports", "--json", "--data", out / "stack", "--run-dir", runs]
    process = subprocess.Popen([Path(sys.executable).with_name("verl-otel"), *words], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        if not line:
            sys.exit(process.wait())
        yield json.loads(line)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def ask(url, path, **form):
    """Return the data of an answer of Prometheus."""
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(form)}", timeout=30) as answer:
        return json.load(answer)["data"]


def wait_for_steps(url):
    """Wait until the last step has been scraped."""
    deadline = time.monotonic() + PATIENCE
    demo.say("waiting for Prometheus to scrape the last values")
    while time.monotonic() < deadline:
        found = ask(url, "query", query=QUESTIONS[0][1])["result"]
        if found and float(found[0]["value"][1]) >= STEPS:
            return
        time.sleep(0.5)


def answer(url):
    """Print what Prometheus answers to each question."""
    print()
    width = max(len(title) for title, _, _ in QUESTIONS)
    for title, query, form in QUESTIONS:
        for number, each in enumerate(ask(url, "query", query=query)["result"]):
            text = form.format(float(each["value"][1]), **each["metric"])
            print(f"  {(title if number == 0 else '').ljust(width)}  {text}")
    print("\n  in PromQL:")
    for _, query, _ in QUESTIONS:
        print(f"    {query}")


def show_slowest(stack):
    """Follow the exemplar of the slowest trajectory to its trace; returns 1 when the trace was not kept."""
    now = time.time()
    groups = ask(stack["prometheus"], "query_exemplars", query=EXEMPLARS, start=now - 3600, end=now + 60)
    found = [each for group in groups for each in group["exemplars"]]
    slowest = max(found, key=lambda each: float(each["value"]), default=None)
    if slowest is None:
        demo.say("Prometheus has no exemplar of a trajectory")
        return 1
    trace_id = slowest["labels"]["trace_id"]
    spans = [
        span["name"]
        for line in Path(stack["traces"]).read_text("utf-8").splitlines()
        for group in json.loads(line)["resourceSpans"]
        for scope in group["scopeSpans"]
        for span in scope["spans"]
        if span["traceId"] == trace_id
    ]
    print(f"\n  the slowest trajectory took {float(slowest['value']):.2f} s: trace {trace_id}, {len(spans)} spans")
    print(f"    {', '.join(f'{spans.count(name)} x {name}' for name in dict.fromkeys(spans))}\n")
    return int(not spans)


if __name__ == "__main__":
    sys.exit(main())
