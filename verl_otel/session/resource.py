# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Who this process is: the resource attributes, resolved at the first export, and the identity of the run."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote

from verl_otel import _guard
from verl_otel._version import __version__
from verl_otel.config import Config
from verl_otel.model import AttributeValue, Resource
from verl_otel.parsers import MAX_NAME
from verl_otel.recording import ids
from verl_otel.semconv import attributes as attr

Describe = Callable[[], Mapping[str, AttributeValue]]
"""Asked for attributes that only an integration knows: at the first export, and again when more is said of the process."""

_described: dict[str, AttributeValue] = {}
_describers: list[Describe] = []
_CHILD: Final = "verl.child"
"""Process id of a forked child; like ``verl.index`` it becomes a part of the instance and no attribute."""
_NO_NAME: Final = re.compile(r"^\.|[^A-Za-z0-9._:-]")


def describe(attributes: Mapping[str, AttributeValue]) -> None:
    """Say something about this process. What was said first stays.

    Example:
        describe({attr.ROLE: "agent_loop", attr.RANK: 3})
    """
    for key, value in attributes.items():
        _described.setdefault(key, value)


def add_describer(describer: Describe) -> None:
    """Have an integration asked for attributes whenever the resource is built."""
    _describers.append(describer)


def make_run_id(environ: Mapping[str, str] | None = None) -> str:
    """Return an identity for a run that starts now: where it runs, when, and four random characters.

    Example:
        ``slurm-4711-20261121-093000-a3f2``
    """
    values = os.environ if environ is None else environ
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    tail = f"{started}-{ids.make_span_id() & 0xFFFF:04x}"
    for prefix, name in (("ray", "RAY_JOB_SUBMISSION_ID"), ("slurm", "SLURM_JOB_ID")):
        found = _as_name(values.get(name, "").removeprefix("raysubmit_"))
        if found:
            return f"{prefix}-{found[: MAX_NAME // 2]}-{tail}"
    return tail


def _as_name(text: str) -> str:
    """Return a job's id as a word that every worker accepts as the run's, and that a folder can have."""
    return _NO_NAME.sub("-", text.strip())[:MAX_NAME]


def find_run_id(config: Config, environ: Mapping[str, str] | None = None) -> str:
    """Return the identity of the run that this process belongs to; a new one where nothing tells."""
    values = os.environ if environ is None else environ
    elastic = _as_name(values.get("TORCHELASTIC_RUN_ID", ""))
    return config.run_id or (elastic if elastic != "none" else "") or make_run_id(values)


def mark_forked() -> None:
    """Say that this process is a forked child: what was said before is true of it, but its instance is not its parent's."""
    _described[_CHILD] = os.getpid()


def is_forked() -> bool:
    """Return whether this process is a forked child."""
    return _CHILD in _described


def build(config: Config) -> Resource:
    """Return the resource of this process. ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME`` win."""
    found: dict[str, AttributeValue] = dict(_described)
    for describer in _describers:
        with _guard.swallowed("resource"):
            for key, value in describer().items():
                found.setdefault(key, value)
    role = str(found.setdefault(attr.ROLE, "process"))
    rank = found.get(attr.RANK, found.get(attr.REPLICA_RANK))
    numbers = [found.pop("verl.index", rank), found.pop(_CHILD, None)]
    number = "-".join(str(each) for each in numbers if each is not None) or os.getpid()
    host = socket.gethostname()
    values: dict[str, AttributeValue] = {
        attr.SERVICE_NAME: "verl",
        attr.SERVICE_INSTANCE: f"{config.run_id}/{role}-{number}",
        attr.RUN_ID: config.run_id,
        attr.RUN_ATTEMPT: config.run_attempt,
        attr.HOST_NAME: host,
        attr.PROCESS_ID: os.getpid(),
        "process.runtime.name": platform.python_implementation().lower(),
        "process.runtime.version": platform.python_version(),
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.distro.name": "verl-otel",
        "telemetry.distro.version": __version__,
        **found,
    }
    if attr.PROJECT in found or attr.EXPERIMENT in found:
        values[attr.SERVICE_NAMESPACE] = f"{found.get(attr.PROJECT, '')}/{found.get(attr.EXPERIMENT, '')}".strip("/")
    for pair in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, separator, text = pair.partition("=")
        if separator and key.strip():
            values[key.strip()] = unquote(text.strip())
    name = os.environ.get("OTEL_SERVICE_NAME", "").strip()
    if name:
        values[attr.SERVICE_NAME] = name
    return Resource(values)


def clear() -> None:
    """Forget what was said. For tests and a forked child."""
    _described.clear()
    _describers.clear()
