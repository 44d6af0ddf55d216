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

from verl_otel._internal.setting_parsers import (
    DEFAULT_DIR,
    TRUE,
    make_choice_parser,
    make_integer_parser,
    make_number_parser,
    parse_exporters,
    parse_flag,
    parse_group,
    parse_host,
    parse_milliseconds,
    parse_name,
    parse_path,
    parse_run_dir,
    parse_sampler,
)
from verl_otel.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """One setting: keyword, environment variable, parser, default and description."""

    field: str
    variable: str
    parse: Callable[[str], Any]
    default: str
    text: str


@dataclass(frozen=True)
class Config:
    """All settings, validated. Created by `load`."""

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
    files_group: str
    project: str
    experiment: str

    @property
    def run_path(self) -> Path:
        """The folder of this run's files."""
        return self.run_dir / self.run_id


SETTINGS: Final = (
    Setting("enabled", "VERL_OTEL_ENABLED", parse_flag, "0", "Switches verl-otel on."),
    Setting(
        "exporters",
        "VERL_OTEL_EXPORTERS",
        parse_exporters,
        "file",
        "Exporters, separated by commas: `otlp`, `prometheus`, `file`, `console`, or `none`. The default is `file,otlp` if an "
        "`OTEL_EXPORTER_OTLP_*ENDPOINT` is set.",
    ),
    Setting("run_dir", "VERL_OTEL_RUN_DIR", parse_run_dir, DEFAULT_DIR, "Folder that holds one folder per run."),
    Setting(
        "run_id",
        "VERL_OTEL_RUN_ID",
        parse_name,
        "",
        "Id of the run, which a resumed run keeps. By default the driver generates one from the Ray or Slurm job id and the start time.",
    ),
    Setting(
        "run_attempt",
        "VERL_OTEL_RUN_ATTEMPT",
        make_integer_parser(1, 1_000_000),
        "1",
        "Number of the attempt of this run. The driver counts the attempts.",
    ),
    Setting(
        "prometheus_host",
        "VERL_OTEL_PROMETHEUS_HOST",
        str,
        "127.0.0.1",
        "Address that `/metrics` binds to. The default is the loopback address.",
    ),
    Setting(
        "prometheus_port",
        "VERL_OTEL_PROMETHEUS_PORT",
        make_integer_parser(0, 65535),
        "0",
        "Port of `/metrics`; 0: any free port. The first process on a machine binds to the given port, the others to free ones.",
    ),
    Setting(
        "prometheus_advertise",
        "VERL_OTEL_PROMETHEUS_ADVERTISE",
        parse_host,
        "",
        "Name or address at which others reach `/metrics`, set separately on each node. The default is the bound address, or "
        "the address of the node if all addresses are bound (`0.0.0.0`).",
    ),
    Setting(
        "keep_prometheus_yml",
        "VERL_OTEL_KEEP_PROMETHEUS_YML",
        parse_flag,
        "1",
        "With `rollout.prometheus.enable` verl overwrites `prometheus.yml` on every node. 1: the file is not changed, and the engines "
        "are added to the targets file; 0: verl writes it.",
    ),
    Setting(
        "capture_content",
        "VERL_OTEL_CAPTURE_CONTENT",
        parse_flag,
        "0",
        "Record exception messages, and content in your own OpenTelemetry spans. Off by default, because they may contain prompts or answers.",
    ),
    Setting(
        "drain_interval",
        "VERL_OTEL_DRAIN_INTERVAL",
        make_number_parser(0.05, 60),
        "1",
        "Seconds between two drains. A killed process loses at most the data of this interval.",
    ),
    Setting(
        "metric_interval",
        "OTEL_METRIC_EXPORT_INTERVAL",
        parse_milliseconds,
        "10000",
        "Milliseconds between two collections of observable metrics, and between two exports of unchanged series.",
    ),
    Setting(
        "exit_timeout",
        "VERL_OTEL_EXIT_TIMEOUT",
        make_number_parser(0, 300),
        "5",
        "Seconds that the exit of a process may wait for all exporters together.",
    ),
    Setting(
        "memory_mib",
        "VERL_OTEL_MEMORY_MIB",
        make_integer_parser(1, 65536),
        "64",
        "MiB of telemetry that one process may queue. Beyond it telemetry is dropped and counted.",
    ),
    Setting(
        "trajectories_per_step",
        "VERL_OTEL_TRAJECTORIES_PER_STEP",
        make_integer_parser(0, 10_000_000),
        "2000",
        "Trajectories per step of which each process keeps all spans when files are written; 0: all.",
    ),
    Setting(
        "trajectory_share",
        "VERL_OTEL_TRAJECTORY_SHARE",
        make_number_parser(0, 1),
        "0.05",
        "Share of the trajectories beyond that number of which all spans are kept. Of the others only the root span is kept.",
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
        "file_mib", "VERL_OTEL_FILE_MIB", make_integer_parser(1, 1_048_576), "256", "MiB at which a file is rotated."
    ),
    Setting(
        "file_count",
        "VERL_OTEL_FILE_COUNT",
        make_integer_parser(1, 1000),
        "4",
        "Number of files that are kept per kind and process.",
    ),
    Setting(
        "ray_carrier",
        "VERL_OTEL_RAY_CARRIER",
        parse_flag,
        "1",
        "Propagate the trace context over Ray actor calls. Without it every process has separate traces.",
    ),
    Setting(
        "token_file",
        "VERL_OTEL_TOKEN_FILE",
        parse_path,
        "",
        "File with a bearer token for OTLP. It is read at every export and never logged.",
    ),
    Setting(
        "rl_insight",
        "VERL_OTEL_RL_INSIGHT",
        make_choice_parser("auto", "on", "off"),
        "auto",
        "Whether verl-otel receives what reports to RL-Insight. `auto`: if the package `rl-insight` is not installed; `on`: always; "
        "`off`: never.",
    ),
    Setting(
        "engine_traces",
        "VERL_OTEL_ENGINE_TRACES",
        parse_flag,
        "0",
        "Let vLLM create its own `llm_request` span for every request, as a child of ours and exported with ours. Enables the statistics of "
        "vLLM. Not needed if vLLM has an `otlp_traces_endpoint` of its own.",
    ),
    Setting(
        "stalls",
        "VERL_OTEL_STALLS",
        parse_flag,
        "1",
        "Report stalls and crashes while they happen: one line in the log, and details in the run's folder. Off without exporters.",
    ),
    Setting(
        "stall_seconds",
        "VERL_OTEL_STALL_SECONDS",
        make_number_parser(1, 1_000_000),
        "1800",
        "Seconds after which work that is the first of its kind is reported as stalled. Other work is compared with its peers.",
    ),
    Setting(
        "hardware",
        "VERL_OTEL_HARDWARE",
        parse_flag,
        "1",
        "Collect metrics of GPUs, hosts and processes. Switch it off if another exporter, such as DCGM, collects them.",
    ),
    Setting(
        "cpu_budget",
        "VERL_OTEL_CPU_BUDGET",
        make_number_parser(0, 1),
        "0.05",
        "Share of one CPU core that telemetry may take in a process, over a minute. Above it leaf spans (`timed(..., span=True)`, and your own "
        "`span` without children) are dropped; spans of steps and trajectories, and metrics, never are. 0: no limit.",
    ),
    Setting(
        "exemplar_filter",
        "OTEL_METRICS_EXEMPLAR_FILTER",
        make_choice_parser("trace_based", "always_on", "always_off"),
        "trace_based",
        "`always_off`: no exemplars, which link the buckets of a histogram to traces. The other two are equivalent here: only values with a span become exemplars.",
    ),
    Setting(
        "files_group",
        "VERL_OTEL_FILES_GROUP",
        parse_group,
        "",
        "Name or number of a group whose members may read the files of runs and the targets. By default only their user can read them "
        "(folders 0700, files 0600; with a group 0750 and 0640).",
    ),
    Setting("project", "VERL_OTEL_PROJECT", str, "", "Project of a loop of your own; verl's trainers report theirs."),
    Setting("experiment", "VERL_OTEL_EXPERIMENT", str, "", "Experiment of a loop of your own, as `VERL_OTEL_PROJECT`."),
)

_OTLP_ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


def is_disabled(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether OpenTelemetry's own switch turns everything off. Its only value is ``true``."""
    values = os.environ if environ is None else environ
    return values.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def is_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the switch is on. Reads two variables only; an unknown value counts as off."""
    values = os.environ if environ is None else environ
    on = values.get("VERL_OTEL_ENABLED", "").strip().lower() in TRUE
    return on and not is_disabled(values)


def is_unset(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether nobody has decided about the switch. An explicit 0 is a decision, which `verl_otel.init` respects, too."""
    values = os.environ if environ is None else environ
    return not values.get("VERL_OTEL_ENABLED", "").strip() and not is_disabled(values)


def to_variables(keywords: Mapping[str, object]) -> dict[str, str]:
    """Return settings given as keywords as the environment variables that have the same effect in another process.

    Example:
        to_variables({"exporters": ("file", "otlp")}) == {"VERL_OTEL_EXPORTERS": "file,otlp"}
    """
    return {
        setting.variable: _to_text(keywords[setting.field])
        for setting in SETTINGS
        if keywords.get(setting.field) is not None
    }


def load(environ: Mapping[str, str] | None = None, **keywords: object) -> Config:
    """Return the settings of this process.

    Args:
        environ: The environment, `os.environ` if absent.
        **keywords: Settings by their field name, which override the environment. Text is parsed as in the environment; None counts
            as absent.

    Raises:
        ConfigError: A value cannot be used, or a keyword is unknown. The message names the setting, the value, and
            what is allowed.

    Example:
        load(exporters="file,prometheus", drain_interval=0.5)
    """
    values = os.environ if environ is None else environ
    names = {setting.field for setting in SETTINGS}
    unknown = sorted(set(keywords) - names)
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no setting: use {', '.join(sorted(names))}")
    keywords = {name: value for name, value in keywords.items() if value is not None}
    parsed: dict[str, Any] = {}
    for setting in SETTINGS:
        parsed[setting.field] = _read(setting, values, keywords)
    if "exporters" not in keywords and not values.get("VERL_OTEL_EXPORTERS") and any(map(values.get, _OTLP_ENDPOINTS)):
        parsed["exporters"] = ("file", "otlp")
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
    text = _to_text(given)
    if not text and not setting.default:
        return None if setting.parse is parse_path else ""
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text!r}: {error}") from None


def _to_text(given: object) -> str:
    if isinstance(given, (tuple, list)):
        return ",".join(map(str, given))
    return str(int(given)) if isinstance(given, bool) else str(given)


def with_run(config: Config, run_id: str, attempt: int) -> Config:
    """Return the settings with the identity of the run filled in."""
    return replace(config, run_id=run_id, run_attempt=attempt)


assert {setting.field for setting in SETTINGS} == {field.name for field in fields(Config)}  # noqa: S101 - one list, one class
