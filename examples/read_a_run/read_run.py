# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read a run in a script or, cell by cell, in an editor that knows ``# %%`` (VS Code, PyCharm, Jupytext).

Usage: python read_run.py [RUN]    the folder or id of a run; without one, the newest
"""

# %% The report as data. The commands are the public interface; a script needs nothing of the package's own modules.
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

RUN = sys.argv[1:2]  # in a notebook: RUN = ["20261121-093000-a3f2"], or [] for the newest


def ask(command: str, *options: str) -> dict:
    """Return the JSON of a command; raises `subprocess.CalledProcessError` if the run holds nothing."""
    answer = subprocess.run(["verl-otel", command, "--json", *options, *RUN], stdout=subprocess.PIPE, check=True)
    return json.loads(answer.stdout)


report, explanation = ask("report"), ask("explain", "--steps", "1")
counts = explanation["counts"]
print(f"run {report['run_id']}: {counts['steps']} steps, {counts['trajectories']} trajectories")

# %% Where the time of each step went. Seconds are wall-clock time; `no_phase` is what lies in no phase.
for step in report["steps"]:
    shares = {name: seconds / step["seconds"] for name, seconds in step["phases"].items()}
    largest = max(shares, key=shares.get)
    print(f"step {step['number']}: {step['seconds']:.2f} s, {shares[largest]:.0%} in {largest}")

# %% The slowest trajectory, by what it spent its time on. A report has the 20 slowest; `counts` counts all.
slowest = max(report["trajectories"], key=lambda trajectory: trajectory["seconds"])
parts = ", ".join(
    f"{part['kind']} {part['name']} {part['seconds']:.2f} s".replace("  ", " ") for part in slowest["parts"]
)
print(f"slowest: {slowest['uid']}/{slowest['index']} of step {slowest['step']}, {slowest['seconds']:.2f} s: {parts}")

# %% Why a step was slow: `verdicts` name causes, `path_summed` is what the step waited for (its critical path, summed).
for step in explanation["steps"]:
    longest = step["path_summed"][0]
    print(f"worst step: {step['number']}, most of it {longest['kind']} {longest['name']}: {longest['seconds']:.2f} s")

# %% Every span. The files are in the OTLP file format: one JSON object a line, resource > scope > spans.
names = Counter(
    span["name"]
    for folder in map(Path, report["folders"])
    for path in sorted(folder.glob("traces-*.jsonl"))
    for line in path.read_text("utf-8").splitlines()
    for resource in json.loads(line)["resourceSpans"]
    for scope in resource["scopeSpans"]
    for span in scope["spans"]
)
for name, count in sorted(names.items()):
    print(f"{count:6}  {name}")
