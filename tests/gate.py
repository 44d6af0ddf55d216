# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run what every change has to pass, or everything, and print what took how long.

    python -m tests.gate                  what `make test` runs: three streams side by side
    python -m tests.gate --full           what `make test-full` runs: one part after the other, to the end
    python -m tests.gate --only unit      one part; may be repeated
    python -m tests.gate --list           the parts and their commands

A test of the gate that fails is run once more, alone, after everything else. If it passes then, the gate passes and ends with `FLAKY name`: such a
test has a defect, which is to be fixed the same day. The exit code is 0 if everything passed, otherwise 1. What each part printed is in
.cache/gate.
"""

import argparse
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
LOGS = TOP / ".cache" / "gate"
BIN = Path(sys.executable).parent
UV = TOP / ".cache" / "uv" / "bin" / "uv"

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "600")

HOSTS = "verl or ray or collector or browser"
"""Tests that train, start Ray, or need the Collector, Prometheus or Chromium."""
SLOW = "full or alone or quarantine"
"""Tests that only `make test-full` runs."""
FEW = 5
"""Failures in more files than this are not a matter of chance, and nothing is run again."""


class Part(NamedTuple):
    """A command and its name. ``test``: arguments of pytest instead of a command."""

    name: str
    command: tuple[str | Path, ...] = ()
    test: tuple[str, ...] = ()


def find_smoke():
    """The files that have tests marked `smoke`. To import all others costs as much time as a tenth of the gate, in each process of pytest."""
    files = sorted((TOP / "tests").rglob("test_*.py"))
    return tuple(str(path.relative_to(TOP)) for path in files if "mark.smoke" in path.read_text("utf-8"))


UNIT = f"not ({HOSTS} or {SLOW} or smoke)"
SOURCES = ("tests/contracts", "tests/dashboards")
READING = ("tests/analysis", "tests/cli")
"""Tests of what reads runs, as many seconds as all other unit tests: in another stream, so that no core is left without work."""
SMOKE = find_smoke()
STREAMS = (
    (
        Part("ruff", (BIN / "ruff", "check", ".")),
        Part("format", (BIN / "ruff", "format", "--check", ".")),
        Part("types", (BIN / "mypy",)),
        Part("imports", (BIN / "lint-imports",)),
        Part("sources", test=("-m", UNIT, *SOURCES)),
        Part("reading", test=("-m", UNIT, *READING)),
        Part("processes", test=("-m", f"smoke and not ({HOSTS} or {SLOW})", *SMOKE)),
    ),
    (Part("unit", test=("-m", UNIT, *(f"--ignore={folder}" for folder in (*SOURCES, *READING)))),),
    (Part("hosts", test=("-m", f"smoke and ({HOSTS}) and not ({SLOW})", *SMOKE)),),
)
"""The gate. Each stream is a list of parts that run in this order; which tests share a process does not depend on the speed of the machine."""

THOROUGH = (
    "--hypothesis-profile=thorough",
    *("-W", "error::ResourceWarning", "-W", "error::pytest.PytestUnraisableExceptionWarning"),
)
MAKE = ("make", "--no-print-directory")
MATRIX = tuple((TOP / "tests" / "end_to_end" / "matrix.txt").read_text("utf-8").split())
"""What `make matrix` runs, each training once for all tests that read it."""
FULL = (
    *STREAMS[0][:4],
    Part("unit", test=("-m", f"not ({HOSTS} or alone)", "-n", "2", "--dist", "loadfile", *THOROUGH)),
    Part("alone", test=("-m", f"alone and not ({HOSTS})")),
    Part("pythons", (sys.executable, "tests/pythons.py", "--uv", UV)),
    Part("hosts", test=("-m", HOSTS, "-n", "2", "--dist", "loadgroup", *(f"--ignore={path}" for path in MATRIX))),
    Part("beside", (*MAKE, "test-extra", "ONLY=beside")),
    Part("pipeline", (*MAKE, "test-pipeline")),
    Part("matrix", (*MAKE, "matrix")),
    Part("docs", (*MAKE, "docs")),
)
"""Everything, the parts with most tests first."""


class Result(NamedTuple):
    """How a part ended. ``failed``: ids of the tests that failed; empty where the part is no pytest or did not come that far."""

    part: Part
    code: int
    seconds: float
    failed: tuple[str, ...]


class Run:
    """Runs parts, prints when one begins and ends, and keeps the results."""

    def __init__(self):
        self.results = []
        self.begin = time.monotonic()

    def say(self, text):
        print(f"[{time.monotonic() - self.begin:4.0f} s] {text}", flush=True)

    def run(self, part):
        """Run a part to its end; a stream goes on after a failure, so that one run shows every failure."""
        log, failures = LOGS / f"{part.name}.log", LOGS / f"{part.name}.failed"
        LOGS.mkdir(parents=True, exist_ok=True)
        failures.write_text("")
        command = part.command or (*PYTEST, f"--failures={failures}", *part.test)
        self.say(f"{part.name} ...")
        begin = time.monotonic()
        with log.open("wb") as out:
            done = subprocess.run(command, cwd=TOP, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
        failed = tuple(sorted(set(failures.read_text("utf-8").splitlines())))
        result = Result(part, done.returncode, time.monotonic() - begin, failed)
        self.results.append(result)
        text = log.read_text("utf-8", "replace")
        how = f"FAILED (code {result.code})" if result.code else "passed"
        self.say(f"{part.name} {how} after {result.seconds:.0f} s: {text.strip().rpartition(chr(10))[2]}")
        if result.code:
            print(text[-6000:], flush=True)
        return result

    def run_side_by_side(self, streams):
        threads = [threading.Thread(target=lambda stream=stream: list(map(self.run, stream))) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def retry(self):
        """Run tests that failed once more; return the names of those that passed then, or None where something failed for good."""
        wrong = [result for result in self.results if result.code]
        names = [name for result in wrong for name in result.failed]
        files = {name.partition("::")[0] for name in names}
        if not wrong:
            return ()
        if len(files) > FEW or any(result.code != 1 or not result.failed for result in wrong):
            return None
        self.say(f"once more, alone: {' '.join(names)}")
        return tuple(names) if not self.run(Part("again", test=tuple(names))).code else None


def find_parts(parts, names):
    unknown = set(names) - {part.name for part in parts}
    if unknown:
        raise SystemExit(f"there is no part {', '.join(sorted(unknown))}: {', '.join(part.name for part in parts)}")
    return [part for part in parts if part.name in names]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="everything, one part after the other")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="this part")
    parser.add_argument("--list", action="store_true", help="print the parts and end")
    chosen = parser.parse_args(arguments)
    parts = FULL if chosen.full else tuple(part for stream in STREAMS for part in stream)
    if chosen.list:
        for part in parts:
            print(f"{part.name:10} {shlex.join(map(str, part.command or ('pytest', *part.test)))}")
        return 0
    run = Run()
    if chosen.full or chosen.only:
        for part in find_parts(parts, chosen.only) if chosen.only else parts:
            run.run(part)
    else:
        run.run_side_by_side(STREAMS)
    flaky = None if chosen.full else run.retry()
    print(f"\n{'part':12} {'seconds':>8}  result")
    for result in run.results:
        print(f"{result.part.name:12} {result.seconds:8.0f}  {'FAILED' if result.code else 'passed'}")
    print(f"{'all':12} {time.monotonic() - run.begin:8.0f}")
    if chosen.full:
        flaky = None if any(result.code for result in run.results) else ()
    if flaky is None:
        for name in sorted({name for result in run.results for name in result.failed}):
            print(f"FAILED {name}")
        return 1
    for name in flaky:
        print(f"FLAKY {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
