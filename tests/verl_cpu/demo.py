# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``make demo``: train real verl on the CPU with telemetry on, then show where the time went.

The training command is verl's own; the one difference to a run without telemetry is VERL_OTEL_ENABLED=1. One call of a tool is
planted to be slow, so that the report has something to find.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.verl_cpu import cpu_train

STEPS = 3
COMMANDS = 'export PATH="$PWD/.venv/bin:$PATH" VERL_OTEL_RUN_DIR="$PWD/runs"'
"""What makes the command of the clone available, and lets it find the run of the demo."""
SLOW_TOOL = "2.5:12"
"""The 12th call of the tool takes 2.5 s: it falls into the second step."""


def main():
    """Train, print progress, print the report; return the exit code of whatever failed."""
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs").absolute()
    out = runs / f".demo-{time.strftime('%Y%m%d-%H%M%S')}"
    out.mkdir(parents=True)
    say("making a tiny model, its tokenizer and a toy data set")
    command = cpu_train.make_command(out, steps=STEPS, tool=True, overrides=["trainer.experiment_name=demo"])
    environ = cpu_train.make_environment(
        out, tool=True, VERL_OTEL_ENABLED=1, VERL_OTEL_RUN_DIR=runs, CPU_BED_SLOW_TOOL=SLOW_TOOL
    )
    say("training: VERL_OTEL_ENABLED=1 python -m verl.trainer.main_ppo ... (real verl, GRPO with a tool agent, CPU)")
    code = train(command, environ, out)
    if code:
        print("\n".join((out / "training.log").read_text("utf-8", "replace").splitlines()[-40:]))
        say(f"the training failed with exit code {code}; its log: {out / 'training.log'}")
        return code
    folder = max((path.parent for path in runs.glob("*/run.json")), key=lambda path: path.stat().st_mtime)
    (out / "training.log").replace(folder / "training.log")
    shown, page = os.path.relpath(folder), os.path.relpath(folder / "report.html")
    for words in (["report", shown], ["explain", shown, "--steps", "1"], ["report", shown, "--html", page]):
        say(f"verl-otel {' '.join(words)}")
        print(flush=True)
        code = subprocess.call([Path(sys.executable).with_name("verl-otel"), *words])
        if code:
            return code
        print(flush=True)
    say(f"to go on with verl-otel explain, view, logs and others: {COMMANDS}")
    return 0


def train(command, environ, out):
    """Run the training with its log in a file, and print a line for every step and every quiet quarter of a minute."""
    scalars, shown, begin, said = out / "scalars.jsonl", 0, time.monotonic(), time.monotonic()
    with (out / "training.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, cwd=out, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            lines = scalars.read_text().splitlines() if scalars.exists() else []
            for line in lines[shown:]:
                data = json.loads(line)["data"]
                if "timing_s/step" in data:
                    step, reward = int(data["training/global_step"]), data["critic/rewards/mean"]
                    say(f"step {step} of {STEPS}: {data['timing_s/step']:.1f} s, mean reward {reward:.3f}")
                    said = time.monotonic()
            shown = len(lines)
            if time.monotonic() - said > 15:
                say(
                    f"starting Ray and the processes of verl, {time.monotonic() - begin:.0f} s so far"
                    if not shown
                    else "still training"
                )
                said = time.monotonic()
            time.sleep(0.3)
    return process.returncode


def say(text):
    """Print one line of progress."""
    print(f"[demo] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
