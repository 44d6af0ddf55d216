# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Record the runs that ``verl-otel demo`` shows: real trainings of verl on two CPU cores, each but one with a planted fault.

What names the machine or its user is replaced: host, paths, command line. After this, `make docs` writes the outputs that the documents show.

Usage: python -m tests.end_to_end.record_demo [NAME...] [--out DIR] [--again]
"""

import argparse
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

from tests.end_to_end import bed_run
from tests.end_to_end.faults.evidence import wait_for_crash
from tests.end_to_end.planted import GROUP
from verl_otel._internal.rotated_files import encode_block
from verl_otel.cli.demo.command import RECORDED, RECORDINGS
from verl_otel.exporting.line_file import encode_line

STEPS = 8
FAULTY = 4
"""The step with the fault."""
_CALL = GROUP * (FAULTY - 1) + 4
PLANTS = {
    "slow-tool": f"tool:2.5:{_CALL}",
    "blocked-event-loop": f"block:2.5:{_CALL}",
    "late-rank": f"rank:2:{FAULTY}:1",
    "stall": f"tool:45:{_CALL}",
    "crash": f"tool!kill:0:{_CALL}",
    "healthy": "",
    "slower-tools": "tool:0.5:*",
}
"""As `cpu_plant` reads them."""
HOST = "node-1"
COMPRESSED = ("traces-", "metrics-", "verl_logs")
"""Beginnings of the names of files that are read compressed, too; the others are small."""
_PATH = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+([\w.@+-]*)")
_PACKAGE = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+site-packages/")


def train(out, name):
    """Train once, on two cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    overrides = [
        "trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2", "trainer.test_freq=-1",
        "trainer.project_name=demo", f"trainer.experiment_name={name}",
    ]  # fmt: skip
    options = {
        "overrides": overrides, "steps": STEPS, "tool": True, "gen": "apart", "CPU_BED_PLANT": PLANTS[name],
        "VERL_OTEL_ENABLED": 1, "VERL_OTEL_RUN_DIR": out / "runs", "VERL_OTEL_RUN_ID": name,
    }  # fmt: skip
    if name != "crash":
        training = bed_run.train(out, **options)
        assert training.returncode == 0, training.log[-3000:]
        return
    with bed_run.start(out, **options) as (training, process):
        wait_for_crash(training, process)


def keep(folder, target):
    """Write a run again: without what names the machine, compressed, and without what only running processes read."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in sorted(folder.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        data = b"".join(encode_line(mask(line)) for line in lines)
        name = path.name.replace(f"-{socket.gethostname()}-", f"-{HOST}-")
        if name.startswith(COMPRESSED):
            (target / f"{name}.gz").write_bytes(encode_block(data, level=9))
        elif data:
            (target / name).write_bytes(data)
    for path in sorted(folder.glob("black-box/stacks-*.txt")):
        if text := path.read_text("utf-8"):
            (target / "black-box").mkdir(exist_ok=True)
            (target / "black-box" / path.name.replace(f"-{socket.gethostname()}-", f"-{HOST}-")).write_text(
                mask(text), "utf-8"
            )
    manifest = json.loads((folder / "run.json").read_text("utf-8"))
    for attempt in manifest["attempts"]:
        attempt["command"] = ["python", *attempt["command"][1:3]]
    (target / "run.json").write_text(json.dumps(mask(manifest), indent=1) + "\n", "utf-8")


def mask(value):
    """Return JSON without the name of this host and without the folders of its files, except those within a package."""
    if isinstance(value, dict):
        return {mask(key): mask(each) for key, each in value.items()}
    if isinstance(value, list):
        return [mask(each) for each in value]
    if not isinstance(value, str):
        return value
    value = re.sub(rf"\b{re.escape(socket.gethostname())}\b", HOST, value)
    return _PATH.sub(r"\1", _PACKAGE.sub("", value))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *RECORDINGS], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--again", action="store_true", help="keep what was trained before, and train nothing")
    arguments = parser.parse_args()
    for name in arguments.names or RECORDINGS:
        out = arguments.out.absolute() / name
        if not arguments.again:
            shutil.rmtree(out, ignore_errors=True)
            train(out, name)
        keep(out / "runs" / name, RECORDED / name)
        print(f"{name}: {sum(path.stat().st_size for path in (RECORDED / name).iterdir()):,} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
