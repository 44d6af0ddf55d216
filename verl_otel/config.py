# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Settings: keywords over environment over default, checked once, frozen. There is no configuration file.

`SETTINGS` is the one list: the loader, the guide's table and ``verl-otel check`` read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from verl_otel.errors import ConfigError
from verl_otel.parsers import (
    DEFAULT_DIR,
    TRUE,
    make_choice_parser,
    make_number_parser,
    make_whole_parser,
    parse_exporters,
    parse_flag,
    parse_host,
    parse_milliseconds,
    parse_name,
    parse_path,
    parse_run_dir,
    parse_sampler,
)


@dataclass(frozen=True)
class Setting:
    """One setting: its keyword, its environment variable, how it is read, and what the guide says of it."""

    field: str
    variable: str
    parse: Callable[[str], Any]
    default: str
    text: str


@dataclass(frozen=True)
class Config:
    """Every setting, checked. Make one with `load`."""

    enabled: bool
    exporters: tuple[str, ...]
    run_dir: Path
    run_id: str
    run_attempt: int
    prometheus_host: str
    prometheus_port: int
    prometheus_advertise: str
    keep_prometheus_yml: bool
    capture_content: bool
    drain_interval: float
    metric_interval: float
    exit_timeout: float
    memory_mib: int
    trajectories_per_step: int
    trajectory_share: float
    sampler: str
    sampler_ratio: float
    file_mib: int
    file_count: int
    ray_carrier: bool
    token_file: Path | None
    rl_insight: str
    engine_traces: bool
    stalls: bool
    stall_seconds: float
    hardware: bool
    cpu_budget: float
    exemplar_filter: str

    @property
    def run_path(self) -> Path:
        """The folder of this run's files."""
        return self.run_dir / self.run_id


SETTINGS: Final = (
    Setting("enabled", "VERL_OTEL_ENABLED", parse_flag, "0", "The switch. Everything is off without it."),
    Setting(
        "exporters",
        "VERL_OTEL_EXPORTERS",
        parse_exporters,
        "file",
        "Where telemetry goes: `otlp`, `prometheus`, `file`, `console`, or `none`. The default is `otlp` instead of `file` when an "
        "`OTEL_EXPORTER_OTLP_*ENDPOINT` is set.",
    ),
    Setting("run_dir", "VERL_OTEL_RUN_DIR", parse_run_dir, DEFAULT_DIR, "Folder that holds one folder per run."),
    Setting(
        "run_id",
        "VERL_OTEL_RUN_ID",
        parse_name,
        "",
        "Identity of the run, kept over a resume. Made by the driver, from a Ray or Slurm job id and the start time, when absent.",
    ),
    Setting(
        "run_attempt",
        "VERL_OTEL_RUN_ATTEMPT",
        make_whole_parser(1, 1_000_000),
        "1",
        "How often this run was started; counted by the driver.",
    ),
    Setting(
        "prometheus_host",
        "VERL_OTEL_PROMETHEUS_HOST",
        str,
        "127.0.0.1",
        "Address that `/metrics` binds to. Loopback unless you say otherwise.",
    ),
    Setting(
        "prometheus_port",
        "VERL_OTEL_PROMETHEUS_PORT",
        make_whole_parser(0, 65535),
        "0",
        "Port of `/metrics`; 0 takes a free one, which a run of several processes needs.",
    ),
    Setting(
        "prometheus_advertise",
        "VERL_OTEL_PROMETHEUS_ADVERTISE",
        parse_host,
        "",
        "Name or address by which others reach `/metrics`, set on each node by itself. Default: the address that it binds to, and "
        "the node's own address where that is all of them (`0.0.0.0`).",
    ),
    Setting(
        "keep_prometheus_yml",
        "VERL_OTEL_KEEP_PROMETHEUS_YML",
        parse_flag,
        "1",
        "With `rollout.prometheus.enable` verl overwrites `prometheus.yml` on every node. 1: the file stays yours and the engines are "
        "in the targets file; 0: verl writes it.",
    ),
    Setting(
        "capture_content",
        "VERL_OTEL_CAPTURE_CONTENT",
        parse_flag,
        "0",
        "Keep exception messages. Off, because they may hold prompts or answers.",
    ),
    Setting(
        "drain_interval",
        "VERL_OTEL_DRAIN_INTERVAL",
        make_number_parser(0.05, 60),
        "1",
        "Seconds between two drains: what a killed process can lose.",
    ),
    Setting(
        "metric_interval",
        "OTEL_METRIC_EXPORT_INTERVAL",
        parse_milliseconds,
        "10000",
        "Milliseconds between two exports of unchanged series and of what is asked at collection.",
    ),
    Setting(
        "exit_timeout",
        "VERL_OTEL_EXIT_TIMEOUT",
        make_number_parser(0, 300),
        "5",
        "Seconds that the exit of a process may wait for exporters, in all.",
    ),
    Setting(
        "memory_mib",
        "VERL_OTEL_MEMORY_MIB",
        make_whole_parser(1, 65536),
        "64",
        "MiB of telemetry that may wait in one process; then it is dropped and counted.",
    ),
    Setting(
        "trajectories_per_step",
        "VERL_OTEL_TRAJECTORIES_PER_STEP",
        make_whole_parser(0, 10_000_000),
        "2000",
        "Trajectories that each process keeps whole per step when files are written; 0: all.",
    ),
    Setting(
        "trajectory_share",
        "VERL_OTEL_TRAJECTORY_SHARE",
        make_number_parser(0, 1),
        "0.05",
        "Share of the trajectories beyond that number that is kept whole. Of the others the root span is kept.",
    ),
    Setting(
        "sampler",
        "OTEL_TRACES_SAMPLER",
        parse_sampler,
        "always_on",
        "Which trajectories are kept: `always_on`, `always_off`, `traceidratio`. Step traces are always kept.",
    ),
    Setting(
        "sampler_ratio",
        "OTEL_TRACES_SAMPLER_ARG",
        make_number_parser(0, 1),
        "1",
        "Share of trajectories that `traceidratio` keeps.",
    ),
    Setting(
        "file_mib", "VERL_OTEL_FILE_MIB", make_whole_parser(1, 1_048_576), "256", "MiB at which a file is rotated."
    ),
    Setting(
        "file_count",
        "VERL_OTEL_FILE_COUNT",
        make_whole_parser(1, 1000),
        "4",
        "Files that are kept of one kind and process.",
    ),
    Setting(
        "ray_carrier",
        "VERL_OTEL_RAY_CARRIER",
        parse_flag,
        "1",
        "Carry the trace context over Ray's actor calls. Without it every process has traces of its own.",
    ),
    Setting(
        "token_file",
        "VERL_OTEL_TOKEN_FILE",
        parse_path,
        "",
        "File with a bearer token for OTLP; read again at every export, never logged.",
    ),
    Setting(
        "rl_insight",
        "VERL_OTEL_RL_INSIGHT",
        make_choice_parser("auto", "on", "off"),
        "auto",
        "Who answers what reports to RL-Insight: `auto`, verl-otel where the package `rl-insight` is not installed; `on`, verl-otel always; "
        "`off`, verl-otel never.",
    ),
    Setting(
        "engine_traces",
        "VERL_OTEL_ENGINE_TRACES",
        parse_flag,
        "0",
        "Have vLLM make its own `llm_request` span of every request, below ours and sent with ours. Turns vLLM's statistics on. Not needed "
        "where vLLM has an `otlp_traces_endpoint` of its own.",
    ),
    Setting(
        "stalls",
        "VERL_OTEL_STALLS",
        parse_flag,
        "1",
        "Say while it happens what hangs and who died: one line in the log, and details in the run's folder. Off where nothing is exported.",
    ),
    Setting(
        "stall_seconds",
        "VERL_OTEL_STALL_SECONDS",
        make_number_parser(1, 1_000_000),
        "1800",
        "Seconds after which work is said to hang that is the first of its kind. Other work is compared with its peers.",
    ),
    Setting(
        "hardware",
        "VERL_OTEL_HARDWARE",
        parse_flag,
        "1",
        "Read GPUs (`pip install 'verl-otel[gpu]'`), host and processes when metrics are collected. Off where others do, such as DCGM.",
    ),
    Setting(
        "cpu_budget",
        "VERL_OTEL_CPU_BUDGET",
        make_number_parser(0, 1),
        "0.05",
        "Share of one CPU core that telemetry may take in a process, over a minute. Above it leaf spans (`timed(..., span=True)`, and your own "
        "`span` with nothing inside) are left out; steps, trajectories and metrics never are. 0: no limit.",
    ),
    Setting(
        "exemplar_filter",
        "OTEL_METRICS_EXEMPLAR_FILTER",
        make_choice_parser("trace_based", "always_on", "always_off"),
        "trace_based",
        "`always_off`: no exemplars, the traces to which a histogram's buckets lead. The other two are the same here: only what has a span is one.",
    ),
)

_OTLP_ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


def is_disabled(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether OpenTelemetry's own switch turns everything off. It knows no other word than ``true``."""
    values = os.environ if environ is None else environ
    return values.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def is_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the switch is on. Reads two variables and nothing else; an unknown word counts as off."""
    values = os.environ if environ is None else environ
    on = values.get("VERL_OTEL_ENABLED", "").strip().lower() in TRUE
    return on and not is_disabled(values)


def load(environ: Mapping[str, str] | None = None, **keywords: object) -> Config:
    """Return the settings of this process.

    Args:
        environ: The environment, `os.environ` if absent.
        **keywords: Settings by their field name, which win over the environment. Text is read as in the environment; None
            is as if it were not given.

    Raises:
        ConfigError: A value cannot be used, or a keyword is unknown. The message names the setting, the value, and
            what is allowed.

    Example:
        load(exporters="file,prometheus", drain_interval=0.5)
    """
    values = os.environ if environ is None else environ
    known = {setting.field for setting in SETTINGS}
    unknown = sorted(set(keywords) - known)
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no setting: use {', '.join(sorted(known))}")
    keywords = {name: value for name, value in keywords.items() if value is not None}
    parsed: dict[str, Any] = {}
    for setting in SETTINGS:
        parsed[setting.field] = _read(setting, values, keywords)
    if "exporters" not in keywords and not values.get("VERL_OTEL_EXPORTERS") and any(map(values.get, _OTLP_ENDPOINTS)):
        parsed["exporters"] = ("otlp",)
    if parsed["sampler"] != "traceidratio":
        parsed["sampler_ratio"] = 0.0 if parsed["sampler"] == "always_off" else 1.0
    if not is_enabled(values) and "enabled" not in keywords:
        parsed["enabled"] = False
    return Config(**parsed)


def _read(setting: Setting, environ: Mapping[str, str], keywords: Mapping[str, object]) -> Any:
    if setting.field in keywords:
        name, given = setting.field, keywords[setting.field]
    else:
        name, given = setting.variable, environ.get(setting.variable) or setting.default
    if isinstance(given, (tuple, list)):
        given = ",".join(map(str, given))
    text = str(int(given)) if isinstance(given, bool) else str(given)
    if not text and not setting.default:
        return None if setting.parse is parse_path else ""
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text!r}: {error}") from None


def with_run(config: Config, run_id: str, attempt: int) -> Config:
    """Return the settings with the identity of the run filled in."""
    return replace(config, run_id=run_id, run_attempt=attempt)


assert {setting.field for setting in SETTINGS} == {field.name for field in fields(Config)}  # noqa: S101 - one list, one class
