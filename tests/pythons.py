# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run the unit tests on other Pythons: the lowest supported versions of every dependency, and the newest Python.

Usage: python tests/pythons.py --uv PATH [--only NAME]
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {
    "lowest": ("3.10", "requirements/lowest.txt"),
    "3.12": ("3.12", "requirements/unit.txt"),
    "3.13": ("3.13", "requirements/unit.txt"),
}
"""Name: Python version and lock file."""


def find_python(uv, version):
    """Return an interpreter of this machine, or None."""
    found = subprocess.run(
        [uv, "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else None


def run(uv, name, version, lock):
    """Make the environment, once per lock file, and run the unit tests in it. Returns the exit code."""
    python = find_python(uv, version)
    if python is None:
        print(f"[pythons] {name}: skipped, this machine has no Python {version}", flush=True)
        return 0
    folder = TOP / f".venv-{name}"
    executable = folder / "bin" / "python"
    begin = time.monotonic()
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", python, folder], check=True)
    subprocess.run([uv, "pip", "sync", "--quiet", "--python", executable, "--require-hashes", TOP / lock], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", executable, "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--editable", TOP], check=True)
    print(f"[pythons] {name}: Python {version}, {lock}, ready after {time.monotonic() - begin:.0f} s", flush=True)
    command = [executable, "-m", "pytest", "-q", "-m", "not verl and not ray and not gate", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=TOP, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--uv", required=True)
    parser.add_argument("--only", choices=sorted(ENVIRONMENTS))
    arguments = parser.parse_args()
    chosen = {name: each for name, each in ENVIRONMENTS.items() if arguments.only in (None, name)}
    failed = [name for name, each in chosen.items() if run(arguments.uv, name, *each)]
    print(
        f"[pythons] failed: {', '.join(failed)}" if failed else f"[pythons] passed on {', '.join(chosen)}", flush=True
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
