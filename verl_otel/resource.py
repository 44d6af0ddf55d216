# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Resource attributes of this process, resolved at the first export, and the id of the run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote

from verl_otel._internal import error_boundary, process_state
from verl_otel._internal.machine import identify_machine
from verl_otel._internal.ranks import find_rank
from verl_otel._version import __version__
from verl_otel.config import MAX_NAME, Config
from verl_otel.model import AttributeValue, Resource
from verl_otel.recording.context import make_span_id
from verl_otel.semconv import attributes as attr

Describe = Callable[[], Mapping[str, AttributeValue]]
"""Returns attributes that only an integration knows. Called at the first export, and again when attributes are added."""

_described: dict[str, AttributeValue] = {}
_describers: list[Describe] = []
_RAY_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_CHILD: Final = "verl.child"
"""Process id of a forked child. Like ``verl.index`` it becomes part of the instance and is no attribute."""
OURS: Final = frozenset((attr.SERVICE_INSTANCE, attr.RUN_ID, attr.RUN_ATTEMPT, attr.PROCESS_ID))
"""Attributes that identify a process and its run. All processes of a pod share ``OTEL_RESOURCE_ATTRIBUTES``, in which the OpenTelemetry operator
puts one ``service.instance.id``: their counters would be one series that jumps."""
_NO_NAME: Final = re.compile(r"^[^A-Za-z0-9_:]+|[^A-Za-z0-9._:-]")


def describe(attributes: Mapping[str, AttributeValue]) -> None:
    """Add resource attributes. Existing ones are not replaced.

    Example:
        describe({attr.ROLE: "agent_loop", attr.RANK: 3})
    """
    for key, value in attributes.items():
        _described.setdefault(key, value)


def add_describer(describer: Describe) -> None:
    """Register a function that returns attributes whenever the resource is built."""
    _describers.append(describer)


def make_run_id(environ: Mapping[str, str] | None = None) -> str:
    """Return an id for a run that starts now: scheduler and job, time, and four random characters.

    Example:
        ``slurm-4711-20261121-093000-a3f2``
    """
    values = os.environ if environ is None else environ
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    tail = f"{started}-{make_span_id() & 0xFFFF:04x}"
    jobs = (("ray", _find_ray_job(values)), ("slurm", values.get("SLURM_JOB_ID", "")))
    for prefix, name in jobs:
        job = _as_name(name)
        if job:
            return f"{prefix}-{job[: MAX_NAME // 2]}-{tail}"
    return tail


def _find_ray_job(values: Mapping[str, str]) -> str:
    """Return the id of the job that ``ray job submit`` has started this process for, without its prefix; empty if none has.

    Ray's supervisor of jobs sets the variable with the configuration of the job only.
    """
    try:
        job = json.loads(values.get(_RAY_JOB, ""))
        submitted = str(job["metadata"]["job_submission_id"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
    return submitted.removeprefix("raysubmit_")


def _as_name(text: str) -> str:
    """Return the id of a job as a valid run id, which is also a folder name."""
    return _NO_NAME.sub(lambda match: "-" if match.start() else "", text.strip())[:MAX_NAME]


def find_run_id(config: Config, environ: Mapping[str, str] | None = None, launcher: str = "") -> str:
    """Return the id of the run of this process; a new one if neither settings nor environment have one.

    Args:
        config: The settings.
        environ: Instead of the environment of this process.
        launcher: What identifies the process that has started this one; empty: unknown.
    """
    values = os.environ if environ is None else environ
    elastic = _as_name(values.get("TORCHELASTIC_RUN_ID", ""))
    return config.run_id or (elastic if elastic != "none" else "") or _name_job(values, launcher) or make_run_id(values)


def _name_job(values: Mapping[str, str], launcher: str) -> str:
    """Return an id that all ranks of a distributed job derive alike: one job is one run. Empty if nothing is known that they have in common.

    That is a step of Slurm, on all nodes, or the launcher that has started the ranks of one node (``torchrun`` without an id, DeepSpeed).
    """
    if find_rank(values) is None:
        return ""
    step = [values.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    if all(step):
        return _as_name(f"slurm-{'-'.join(step)}")
    if not launcher:
        return ""
    meeting = "|".join((launcher, *(values.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))))
    return f"{_OF_LAUNCHER}{hashlib.sha256(meeting.encode('utf-8', 'replace')).hexdigest()[:12]}"


_OF_LAUNCHER: Final = "job-"


def is_of_one_node(run_id: str, environ: Mapping[str, str]) -> bool:
    """Return whether a run id is that of the ranks of this node only, and there are others. Of the first rank of the job only: one line says it."""
    size = environ.get("LOCAL_WORLD_SIZE")
    is_first = find_rank(environ) == 0
    return run_id.startswith(_OF_LAUNCHER) and is_first and size not in (None, environ.get("WORLD_SIZE"))


def mark_forked() -> None:
    """Mark this process as a forked child: it keeps the attributes of its parent and gets an instance of its own."""
    _described[_CHILD] = os.getpid()


def is_forked() -> bool:
    """Return whether this process is a forked child."""
    return _CHILD in _described


def build_resource(config: Config) -> Resource:
    """Return the resource of this process. ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME`` take precedence, except over `OURS`."""
    described: dict[str, AttributeValue] = dict(_described)
    for describer in _describers:
        with error_boundary.suppress_errors("resource"):
            for key, value in describer().items():
                described.setdefault(key, value)
    names = {attr.PROJECT: config.project, attr.EXPERIMENT: config.experiment}
    described.update({name: value for name, value in names.items() if value})
    role = str(described.setdefault(attr.ROLE, "process"))
    rank = described.get(attr.RANK, described.get(attr.REPLICA_RANK))
    host = socket.gethostname()
    index, child = described.pop(attr.INDEX, rank), described.pop(_CHILD, None)
    number = "-".join(str(number) for number in (index, child) if number is not None) or os.getpid()
    # Process ids are equal in many containers, and so are host names.
    place = config.run_id if index is not None else f"{config.run_id}/{host}-{identify_machine()}"
    values: dict[str, AttributeValue] = {
        attr.SERVICE_NAME: "verl",
        attr.SERVICE_INSTANCE: f"{place}/{role}-{number}",
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
        **described,
    }
    # Of the settings only, which all processes have. The trainer learns both from verl as well, perhaps before its resource is built, and
    # would have another `job` in Prometheus than its workers.
    namespace = "/".join(filter(None, names.values()))
    if namespace:
        values[attr.SERVICE_NAMESPACE] = namespace
    for pair in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, separator, text = pair.partition("=")
        if separator and key.strip() and key.strip() not in OURS:
            values[key.strip()] = unquote(text.strip())
    name = os.environ.get("OTEL_SERVICE_NAME", "").strip()
    if name:
        values[attr.SERVICE_NAME] = name
    return Resource(values)


def clear() -> None:
    """Discard every description and describer. For tests."""
    _described.clear()
    _describers.clear()


process_state.register(reset=clear)
