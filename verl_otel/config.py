# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Settings: keywords over environment over default, checked once, frozen. There is no configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from verl_otel._internal.setting_parsers import TRUE, parse_path
from verl_otel.errors import ConfigError
from verl_otel.settings import SETTINGS, Setting, is_service_link


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
    keep_prometheus_yml: str
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
    on_stall: str
    hardware: bool
    cpu_budget: float
    exemplar_filter: str
    semconv_opt_in: str
    files_group: str
    project: str
    experiment: str
    verdict_lines: bool
    tracker_summary: bool
    stop_on_nan: int
    stop_on_kl: int
    stop_on_reward_fall: int
    stop_on_plateau: int
    best_checkpoint: str
    health_profile: str
    log_level: str
    log_debug_seconds: float

    @property
    def run_path(self) -> Path:
        """The folder of this run's files."""
        return self.run_dir / self.run_id


_OTLP_ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


def find_endpoint(environ: Mapping[str, str] | None = None) -> str:
    """Return the OTLP endpoint that the environment names; empty if it names none."""
    values = os.environ if environ is None else environ
    return next((values[name] for name in _OTLP_ENDPOINTS if values.get(name)), "")


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
    """Return whether the switch is not set. An explicit 0 is a decision, which `verl_otel.init` respects, too."""
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


def read(field: str, given: object = None) -> Any:
    """Return one setting of the environment. The others may have values that cannot be used: a command that reads runs needs the folder only.

    Args:
        field: Its field name, such as ``run_dir``.
        given: Its value, if it does not come from the environment.

    Raises:
        ConfigError: Its value cannot be used.
    """
    (setting,) = (each for each in SETTINGS if each.field == field)
    return _read(setting, os.environ, {} if given is None else {field: given})


def _read(setting: Setting, environ: Mapping[str, str], keywords: Mapping[str, object]) -> Any:
    if setting.field in keywords:
        name, given = setting.field, keywords[setting.field]
    else:
        name, given = setting.variable, environ.get(setting.variable) or setting.default
        if is_service_link(name, str(given)):
            given = setting.default
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
