# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run the unit tests on the lowest supported versions of every dependency, on other Pythons, and Ray's on the oldest Ray.

Usage: python tests/pythons.py --uv PATH [--only NAME]
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
UNIT = ("-m", "not verl and not ray and not gate")
SMOKE = ("tests/ray", "-k", "every_kind_of_call or context_goes")
ENVIRONMENTS = {
    "lowest": ("3.10", "requirements/lowest.txt", UNIT),
    "3.12": ("3.12", "requirements/unit.txt", UNIT),
    "3.13": ("3.13", "requirements/unit.txt", UNIT),
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
    """Make the environment, once per lock file, and run its tests. Returns the exit code, None without Python."""
    python = find_python(uv, version)
    if python is None:
        print(f"[pythons] {name}: skipped, this machine has no Python {version}", flush=True)
        return None
    folder = TOP / f".venv-{name}"
    executable = folder / "bin" / "python"
    begin = time.monotonic()
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", python, folder], check=True)
    subprocess.run([uv, "pip", "sync", "--quiet", "--python", executable, "--require-hashes", TOP / lock], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", executable, "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--editable", TOP], check=True)
    print(f"[pythons] {name}: Python {version}, {lock}, ready after {time.monotonic() - begin:.0f} s", flush=True)
    command = [executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selection]
    return subprocess.run(command, cwd=TOP, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--uv", required=True)
    parser.add_argument("--only", choices=sorted(ENVIRONMENTS))
    arguments = parser.parse_args()
    chosen = {name: each for name, each in ENVIRONMENTS.items() if arguments.only in (None, name)}
    codes = {name: run(arguments.uv, name, *each) for name, each in chosen.items()}
    words = {None: "skipped", 0: "passed"}
    print("[pythons]", ", ".join(f"{name}: {words.get(code, 'FAILED')}" for name, code in codes.items()), flush=True)
    return int(any(codes.values()))


if __name__ == "__main__":
    sys.exit(main())
