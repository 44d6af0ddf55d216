# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of the stack: where they are, and what to do where they are not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel.errors import VerlOtelError


class Program(NamedTuple):
    """A program that somebody else makes."""

    title: str
    names: tuple[str, ...]
    """What it is called in the path and in the cache, the best first."""
    option: str
    ways: str
    """How one gets it."""


OTELCOL: Final = Program(
    "OpenTelemetry Collector",
    ("otelcol-verl", "otelcol-contrib"),
    "--otelcol",
    "built from what comes with verl-otel (make collector; or verl-otel collector export DIR && sh DIR/build.sh otelcol, which needs Go, "
    "pip or uv), or otelcol-contrib 0.155 or newer from OpenTelemetry's releases",
)
PROMETHEUS: Final = Program(
    "Prometheus",
    ("prometheus",),
    "--prometheus",
    "built likewise (make collector; or sh DIR/build.sh prometheus), or Prometheus 3.8 or newer from prometheus.io",
)
TEMPO: Final = Program("Tempo", ("tempo",), "--tempo", "at grafana.com/oss/tempo; without it, kept traces go to a file")


def cache_folder() -> Path:
    """Return where ``collector/build.sh`` installs what it builds."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "verl-otel" / "bin"


def find_program(program: Program, given: Path | None = None) -> Path:
    """Return a program: the one given, else of the path, else of the cache.

    Raises:
        VerlOtelError: It is nowhere; the message says how to get it.
    """
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise VerlOtelError(f"{program.option} {given}: there is no program of this name")
        return Path(found).absolute()
    for name in program.names:
        found = shutil.which(name) or shutil.which(name, path=str(cache_folder()))
        if found is not None:
            return Path(found).absolute()
    raise VerlOtelError(
        f"{program.title} is missing: no {' or '.join(program.names)} in the path or in {cache_folder()}.\n"
        f"  It is {program.ways}.\n  {program.option} PATH names one that is elsewhere."
    )
