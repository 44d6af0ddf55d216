# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run the unit tests on the lowest supported versions of every dependency, on other Pythons, and Ray's on the oldest Ray.

Usage: python tests/pythons.py --uv PATH [--only NAME | --without NAME] [--jobs N]

Pythons are those of this machine, none is fetched. Where one is missing its tests are "NOT RUN", which is a failure when they were asked for
by --only, or when the environment variable CI is set.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
UNIT = (
    "-m",
    "not verl and not ray and not browser and not collector and not sources and not alone",
    "-n",
    "2",
    "--dist",
    "loadfile",
    "--timeout",
    "600",
    *(f"--ignore=tests/{room}" for room in ("benchmarks", "collector", "dashboards")),
)  # of one Python only
SMOKE = ("tests/ray", "--timeout", "600", "-k", "every_kind_of_call or context_goes")
ENVIRONMENTS = {
    "lowest": ("3.10", "requirements/lowest.txt", UNIT),
    "3.12": ("3.12", "requirements/unit.txt", UNIT),
    "3.13": ("3.13", "requirements/unit.txt", UNIT),
    "3.14": ("3.14", "requirements/unit.txt", UNIT),
    "ray-oldest": ("3.11", "requirements/ray-oldest.txt", SMOKE),
}
"""Name: Python version, lock file, what pytest runs."""


def find_python(uv, version):
    """Return an interpreter of this machine, or None."""
    found = subprocess.run(
        [uv, "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
    )
    if found.returncode == 0:
        return found.stdout.strip()
    # pyenv keeps versions that no command on the path leads to
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return max(kept.glob(f"{version}.*/bin/python"), default=None)


def run(uv, name, version, lock, selection):
    """Make the environment, once per lock file, and run its tests. Returns the exit code (None without Python) and what was said."""
    python = find_python(uv, version)
    if python is None:
        return None, f"this machine has no Python {version}"
    folder = TOP / f".venv-{name}"
    executable = folder / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", executable, "--no-deps", "--no-build-isolation"]
    commands = [
        [uv, "venv", "--quiet", "--allow-existing", "--python", python, folder],
        [uv, "pip", "sync", "--quiet", "--python", executable, "--require-hashes", TOP / lock],
        [*install, "--editable", TOP],
        [executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selection],
    ]
    said = ""
    for command in commands:
        done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode:
            return done.returncode, said
    return 0, said.splitlines()[-1]


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--uv", required=True)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--only", choices=sorted(ENVIRONMENTS), action="append", help="run these, which must be possible"
    )
    choice.add_argument("--without", choices=sorted(ENVIRONMENTS), action="append", default=[], help="leave these out")
    parser.add_argument(
        "--jobs", type=int, default=2, help="how many at once (default: 2; they wait for processes a lot)"
    )
    arguments = parser.parse_args(words)
    chosen = {name: each for name, each in ENVIRONMENTS.items() if name not in arguments.without}
    chosen = {name: each for name, each in chosen.items() if name in (arguments.only or chosen)}
    begin, codes = time.monotonic(), {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {pool.submit(run, arguments.uv, name, *each): name for name, each in chosen.items()}
        for done in as_completed(waiting):
            name, (code, said) = waiting[done], done.result()
            codes[name] = code
            word = {None: "NOT RUN", 0: "passed"}.get(code, "FAILED")
            print(f"[pythons] {name}: {word} after {time.monotonic() - begin:.0f} s: {said}", flush=True)
    lacking = sorted(name for name, code in codes.items() if code is None)
    if lacking:
        print(f"[pythons] NOT RUN, for want of a Python: {', '.join(lacking)}", flush=True)
    must_run = bool(arguments.only) or os.environ.get("CI", "").lower() not in ("", "0", "false")
    return int(any(codes.values()) or (must_run and bool(lacking)))


if __name__ == "__main__":
    sys.exit(main())
