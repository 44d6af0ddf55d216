# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the programs of the stack, and describes how to install missing ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel.errors import VerlOtelError


class Program(NamedTuple):
    """A third-party program."""

    title: str
    names: tuple[str, ...]
    """Names in the path and in the cache, the preferred one first."""
    option: str
    ways: str
    """How to install it."""


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
    """Return the folder into which ``collector/build.sh`` installs programs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "verl-otel" / "bin"


def find_program(program: Program, given: Path | None = None) -> Path:
    """Return a program: the given one, else from the path, else from the cache.

    Raises:
        VerlOtelError: It was not found; the message describes how to install it.
    """
    if given is not None:
        path = shutil.which(given)
        if path is None:
            raise VerlOtelError(f"{program.option} {given}: there is no program of this name")
        return Path(path).absolute()
    for name in program.names:
        path = shutil.which(name) or shutil.which(name, path=str(cache_folder()))
        if path is not None:
            return Path(path).absolute()
    raise VerlOtelError(
        f"{program.title} is missing: no {' or '.join(program.names)} in the path or in {cache_folder()}.\n"
        f"  It is {program.ways}.\n  {program.option} PATH names one that is elsewhere."
    )
