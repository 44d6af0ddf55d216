# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the figures were measured on: processor, interpreter, versions, and how busy the machine was."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.processes import TOP

PACKAGES: Final = (
    "verl-otel",
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-prometheus",
    "protobuf",
    "prometheus-client",
    "ray",
    "verl",
    "torch",
)
_GOVERNOR: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def describe() -> dict[str, str]:
    """Return what does not change while the benchmarks run. Nothing of it names the machine or a folder of it."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    optimized = [flag for flag in ("--enable-optimizations", "--with-lto") if flag in flags]
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "governor": _read(_GOVERNOR) or "unknown",
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "build": f"{' '.join(optimized) or 'without PGO and LTO'}, {'with' if locked else 'without'} the GIL",
        "commit": _commit(),
        **{name: release for name in PACKAGES if (release := _version(name))},
    }


def load() -> float:
    """Return how many processes wanted to run in the last minute, on average."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Return the commit that is measured, with a plus sign when files differ from it."""
    try:
        command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
