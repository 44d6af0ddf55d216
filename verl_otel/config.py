# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Settings: keywords over environment over default, checked once, frozen. There is no configuration file.

`SETTINGS` is the list of all: keyword, variable, parser, default and description. The loader, the reference page and `verl-otel check` read it.
A parser raises a `ValueError` that says what is allowed; the loader adds the setting and the value. A variable of OpenTelemetry may be meant for
another SDK: a value that is not understood is then ignored, with one line in the log, as its specification requires.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeVar

from verl_otel._internal import error_boundary, process_state
from verl_otel._internal.error_boundary import RAISE_INTERNAL_ERRORS
from verl_otel._internal.safe_files import find_temporary
from verl_otel.errors import ConfigError
from verl_otel.health import profiles

# -- parsers --

EXPORTERS: Final = ("otlp", "prometheus", "file", "tensorboard", "console", "sdk", "none")
MAX_NAME: Final = 128
DEFAULT_DIR: Final = "~/.local/state/verl-otel/runs"
TRUE: Final = ("1", "true", "yes", "on")
FALSE: Final = ("", "0", "false", "no", "off")
_Number = TypeVar("_Number", int, float)


def parse_flag(text: str) -> bool:
    """Return a Boolean setting."""
    word = text.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError("use 1 or 0")


def parse_exporters(text: str) -> tuple[str, ...]:
    """Return the exporters of a comma-separated list, without duplicates and ``none``."""
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if not names or any(name not in EXPORTERS for name in names):
        raise ValueError(f"use a comma-separated list of {', '.join(EXPORTERS)}")
    return tuple(name for name in names if name != "none")


def make_number_parser(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of numbers in a range."""
    return functools.partial(_parse_between, float, low, high, f"use a number from {low:g} to {high:g}")


def make_integer_parser(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of integers in a range."""
    return functools.partial(_parse_between, int, low, high, f"use a whole number from {low} to {high}")


def _parse_between(convert: Callable[[str], _Number], low: _Number, high: _Number, problem: str, text: str) -> _Number:
    try:
        value = convert(text)
    except ValueError:
        raise ValueError(problem) from None
    if not low <= value <= high:
        raise ValueError(problem)
    return value


def make_choice_parser(*words: str, **others: str) -> Callable[[str], str]:
    """Return a parser that accepts one of several words.

    Args:
        words: The words.
        others: Other names of them.
    """

    def parse(text: str) -> str:
        word = text.strip().lower()
        word = others.get(word, word)
        if word not in words:
            raise ValueError(f"use {', '.join(words)}")
        return word

    return parse


def make_profile_parser(names: Collection[str]) -> Callable[[str], str]:
    """Return a parser that accepts one of several names, or a path, which it makes absolute. The file need not be there: it may be on another node."""

    def parse(text: str) -> str:
        word = text.strip()
        if word.lower() in names:
            return word.lower()
        if "/" not in word and "." not in word:
            raise ValueError(f"use {', '.join(names)}, or the path of a file")
        return str(parse_path(word))

    return parse


_parse_level: Final = make_choice_parser(
    "off",
    "debug",
    "info",
    "warning",
    "error",
    none="off",
    warn="warning",
    critical="error",
    fatal="error",
    trace="debug",
)


def parse_milliseconds(text: str) -> float:
    """Return milliseconds, at most an hour, as seconds."""
    return make_number_parser(1, 3_600_000)(text) / 1000.0


def parse_path(text: str) -> Path:
    """Return an absolute path, which stays valid after a change of the working directory and in another process."""
    if any(char < " " or char == "\x7f" for char in text):
        raise ValueError("use a path without control characters")
    if (
        text.startswith(("$", '"', "'")) or "://" in text
    ):  # of an --env-file of Docker, or a manifest: no shell has read it
        raise ValueError(
            "use a path of a mounted file system: no shell expands variables or removes quotes here, and URLs are no paths"
        )
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError("use a path that does not begin with '~': that home folder is not known here") from None
    except OSError:
        raise ValueError("use an absolute path: the working directory is gone") from None


def parse_run_dir(text: str) -> Path:
    """Return the folder of all runs. Without a home folder that can be written, as for users of containers, the default is a temporary folder."""
    try:
        path = parse_path(text)
    except ValueError:
        if text != DEFAULT_DIR:
            raise
        return find_temporary_dir()
    return find_temporary_dir() if text == DEFAULT_DIR and not _can_make(path) else path


def find_temporary_dir() -> Path:
    """Return the folder of all runs of a user without a home folder."""
    return find_temporary() / "runs"


def _can_make(folder: Path) -> bool:
    """Return whether a folder is there, or can be made where the nearest folder above it is."""
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            return place == folder or os.access(place, os.W_OK | os.X_OK)
    return False


def parse_name(text: str) -> str:
    """Return a word that is valid as the name of a folder, as a label, and as an argument of a command, which an option is not."""
    word = text.strip()
    if (
        not word
        or len(word) > MAX_NAME
        or any(not (char.isalnum() or char in "._-:") for char in word)
        or word.startswith((".", "-"))
    ):
        raise ValueError("use 1 to 128 letters, digits, '.', '_', '-' or ':', not beginning with '.' or '-'")
    return word


def parse_group(text: str) -> str:
    """Return the name or number of a group. Each process checks whether its machine has the group."""
    word = text.strip()
    if not word or len(word) > MAX_NAME or any(not (char.isalnum() or char in "._-$@\\") for char in word):
        raise ValueError("use the name or the number of a group")
    return word


def parse_host(text: str) -> str:
    """Return the name or address of a host, an IPv6 address without brackets."""
    word = text.strip().removeprefix("[").removesuffix("]")
    try:
        return str(ip_address(word))
    except ValueError:
        if not word or any(not (char.isalnum() or char in ".-_") for char in word):
            raise ValueError("use the name or the address of a host, without a port") from None
    return word


def parse_sampler(text: str) -> str:
    """Return the name of an OpenTelemetry sampler without ``parentbased_``, which always applies here."""
    samplers = ("always_on", "always_off", "traceidratio")
    word = text.strip().lower()
    if word.removeprefix("parentbased_") not in samplers:
        raise ValueError(f"use {', '.join(samplers)}, or one of them after parentbased_")
    return word.removeprefix("parentbased_")


def parse_semconv_opt_in(text: str) -> str:
    """Return ``gen_ai_latest_experimental`` if it is one of the comma-separated words, else nothing: others address other instrumentations."""
    word = "gen_ai_latest_experimental"
    return word if word in (given.strip() for given in text.split(",")) else ""


# -- the list --


@dataclass(frozen=True)
class Setting:
    """One setting: keyword, environment variable, parser, default and description."""

    field: str
    variable: str
    parse: Callable[[str], Any]
    default: str
    text: str


# fmt: off
SETTINGS: Final = (
    Setting("enabled", "VERL_OTEL_ENABLED", parse_flag, "0",
        "Switches verl-otel on."),
    Setting("exporters", "VERL_OTEL_EXPORTERS", parse_exporters, "file",
        "Exporters, separated by commas: `otlp`, `prometheus`, `file`, `tensorboard`, `console`, `sdk`, or `none`. The default is `file,otlp` if an "
        "`OTEL_EXPORTER_OTLP_*ENDPOINT` is set, and `file,sdk` if providers of OpenTelemetry are given to `init` or `instrument`."),
    Setting("run_dir", "VERL_OTEL_RUN_DIR", parse_run_dir, DEFAULT_DIR,
        "Folder that holds one folder per run."),
    Setting("run_id", "VERL_OTEL_RUN_ID", parse_name, "",
        "Id of the run, which a resumed run keeps. By default the driver generates one from the Ray or Slurm job id and the start time."),
    Setting("run_attempt", "VERL_OTEL_RUN_ATTEMPT", make_integer_parser(1, 1_000_000), "1",
        "Number of the attempt of this run. The driver counts the attempts."),
    Setting("prometheus_host", "VERL_OTEL_PROMETHEUS_HOST", str, "127.0.0.1",
        "Address that `/metrics` binds to. The default is the loopback address."),
    Setting("prometheus_port", "VERL_OTEL_PROMETHEUS_PORT", make_integer_parser(0, 65535), "0",
        "Port of `/metrics`; 0: any free port. The first process on a machine binds to the given port, the others to free ones."),
    Setting("prometheus_advertise", "VERL_OTEL_PROMETHEUS_ADVERTISE", parse_host, "",
        "Name or address at which others reach `/metrics`, set separately on each node. The default is the bound address, or "
        "the address of the node if all addresses are bound (`0.0.0.0`)."),
    Setting("keep_prometheus_yml", "VERL_OTEL_KEEP_PROMETHEUS_YML", make_choice_parser("merge", "keep", "verl"), "merge",
        "What happens to `prometheus.yml` with `rollout.prometheus.enable`. `merge`: a line is added to it that names a file "
        "with a job for the engines, and Prometheus is reloaded; `keep`: it is not changed; `verl`: verl overwrites it on every node."),
    Setting("capture_content", "VERL_OTEL_CAPTURE_CONTENT", parse_flag, "0",
        "Record exception messages, messages of logs, the last lines of the log of a process that hangs or has died, and content in your own "
        "OpenTelemetry spans. Off by default, because they may contain prompts or answers."),
    Setting("drain_interval", "VERL_OTEL_DRAIN_INTERVAL", make_number_parser(0.05, 60), "1",
        "Seconds between two drains. A killed process loses at most the data of this interval; in one in which nothing happened for ten seconds "
        "it is two seconds at least."),
    Setting("metric_interval", "OTEL_METRIC_EXPORT_INTERVAL", parse_milliseconds, "10000",
        "Milliseconds between two collections of observable metrics, and between two exports of unchanged series. In a process in which nothing "
        "happens and that writes files only it is six times as long."),
    Setting("exit_timeout", "VERL_OTEL_EXIT_TIMEOUT", make_number_parser(0, 300), "5",
        "Seconds that the exit of a process may wait for all exporters together."),
    Setting("memory_mib", "VERL_OTEL_MEMORY_MIB", make_integer_parser(1, 65536), "64",
        "MiB of telemetry that one process may queue. Beyond it telemetry is dropped and counted."),
    Setting("trajectories_per_step", "VERL_OTEL_TRAJECTORIES_PER_STEP", make_integer_parser(0, 10_000_000), "2000",
        "Trajectories per step of which each process keeps all spans when files are written; 0: all."),
    Setting("trajectory_share", "VERL_OTEL_TRAJECTORY_SHARE", make_number_parser(0, 1), "0.05",
        "Share of the trajectories beyond that number of which all spans are kept. Of the others only the root span is kept."),
    Setting("sampler", "OTEL_TRACES_SAMPLER", parse_sampler, "always_on",
        "Which trajectories are kept: `always_on`, `always_off`, `traceidratio`. Step traces are always kept."),
    Setting("sampler_ratio", "OTEL_TRACES_SAMPLER_ARG", make_number_parser(0, 1), "1",
        "Share of trajectories that `traceidratio` keeps."),
    Setting("file_mib", "VERL_OTEL_FILE_MIB", make_integer_parser(1, 1_048_576), "64",
        "MiB at which a file is rotated. Of the rotated files all but the newest are compressed."),
    Setting("file_count", "VERL_OTEL_FILE_COUNT", make_integer_parser(1, 1000), "16",
        "Files of the full size that the files of one kind and process may take together, compressed or not; beyond it the oldest are deleted."),
    Setting("ray_carrier", "VERL_OTEL_RAY_CARRIER", parse_flag, "1",
        "Propagate the trace context over Ray's calls of actors and tasks. Without it every process has separate traces."),
    Setting("token_file", "VERL_OTEL_TOKEN_FILE", parse_path, "",
        "File with a bearer token for OTLP. It is read at every export and never logged."),
    Setting("rl_insight", "VERL_OTEL_RL_INSIGHT", make_choice_parser("auto", "on", "off"), "auto",
        "Whether verl-otel receives what reports to RL-Insight. `auto`: if the package `rl-insight` is not installed; `on`: always; "
        "`off`: never."),
    Setting("engine_traces", "VERL_OTEL_ENGINE_TRACES", parse_flag, "0",
        "Let vLLM create its own `llm_request` span for every request, as a child of ours and exported with ours. Enables the statistics of "
        "vLLM. Not needed if vLLM has an `otlp_traces_endpoint` of its own."),
    Setting("aiohttp", "VERL_OTEL_AIOHTTP", make_choice_parser("rewards", "all"), "rewards",
        "Which calls by aiohttp get a client span and the header `traceparent`, with the package of `verl-otel[aiohttp]`: those of reward models and "
        "remote rewards, or all below a span, such as those of tools and agent loops."),
    Setting("stalls", "VERL_OTEL_STALLS", parse_flag, "1",
        "Report stalls and crashes while they happen: one line in the log, and details in the run's folder. Off without exporters."),
    Setting("stall_seconds", "VERL_OTEL_STALL_SECONDS", make_number_parser(1, 1_000_000), "1800",
        "Seconds after which work that is the first of its kind is reported as stalled. Other work is compared with its peers."),
    Setting("on_stall", "VERL_OTEL_ON_STALL", str, "",
        "Command that gets each stall, crash and their end as JSON on its standard input, or an `http(s)://` address to which that is sent. "
        "An address is not forwarded to the workers of a cluster: it may hold a secret."),
    Setting("hardware", "VERL_OTEL_HARDWARE", parse_flag, "1",
        "Collect metrics of GPUs, hosts and processes. Switch it off if another exporter, such as DCGM, collects them."),
    Setting("cpu_budget", "VERL_OTEL_CPU_BUDGET", make_number_parser(0, 1), "0.05",
        "Share of one CPU core that telemetry may take in a process, over a minute. More is logged once; `verl.otel.budget.used` has what is "
        "taken of it. 0: no budget."),
    Setting("exemplar_filter", "OTEL_METRICS_EXEMPLAR_FILTER", make_choice_parser("trace_based", "always_on", "always_off"), "trace_based",
        "`always_off`: no exemplars, which link the buckets of a histogram to traces. The other two are equivalent here: only values with a span become exemplars."),
    Setting("semconv_opt_in", "OTEL_SEMCONV_STABILITY_OPT_IN", parse_semconv_opt_in, "",
        "`gen_ai_latest_experimental`: emit the metrics and attributes of the newest GenAI conventions, too: `gen_ai.invoke_agent.duration`, "
        "`gen_ai.execute_tool.duration`, `gen_ai.conversation.id`. Other words of this variable are of other instrumentations."),
    Setting("files_group", "VERL_OTEL_FILES_GROUP", parse_group, "",
        "Name or number of a group whose members may read the files of runs and the targets. By default only their user can read them "
        "(folders 0700, files 0600; with a group 0750 and 0640)."),
    Setting("project", "VERL_OTEL_PROJECT", str, "",
        "Project of a loop of your own; verl's trainers report theirs."),
    Setting("experiment", "VERL_OTEL_EXPERIMENT", str, "",
        "Experiment of a loop of your own, as `VERL_OTEL_PROJECT`."),
    Setting("verdict_lines", "VERL_OTEL_VERDICT_LINES", parse_flag, "1",
        "Write a line into the log of the training each minute of a wait for rollouts, when a step took longer than usual, and on the whole run when it ends or "
        "fails, with the command that shows the evidence."),
    Setting("tracker_summary", "VERL_OTEL_TRACKER_SUMMARY", parse_flag, "0",
        "Write the id and folder of the run, its goodput and a verdict on its steps into the run summary of W&B, the tags of MLflow and the texts of TensorBoard, where verl logs to them."),
    Setting("stop_on_nan", "VERL_OTEL_STOP_ON_NAN", make_integer_parser(0, 1_000_000), "0",
        "Stop the training after this many steps in a row with a loss, reward, KL or gradient norm that is not finite; 0: never."),
    Setting("stop_on_kl", "VERL_OTEL_STOP_ON_KL", make_integer_parser(0, 1_000_000), "0",
        "Stop the training after this many steps in a row with a KL divergence above the threshold of the alerts; 0: never."),
    Setting("stop_on_reward_fall", "VERL_OTEL_STOP_ON_REWARD_FALL", make_integer_parser(0, 1_000_000), "0",
        "Stop the training after this many steps in a row in which the reward has lost half of what it had gained; 0: never."),
    Setting("stop_on_plateau", "VERL_OTEL_STOP_ON_PLATEAU", make_integer_parser(0, 1_000_000), "0",
        "Stop the training after this many steps without a better mean reward and without a rise; 0: never."),
    Setting("best_checkpoint", "VERL_OTEL_BEST_CHECKPOINT", str, "",
        "Scalar of verl, as `val-core/math/acc/mean@1` or `min:actor/ppo_kl`, or its name in the run log, as `rollout/reward_mean`: of the checkpoints "
        "that verl saves, the one with its best value is kept in `best/` of the checkpoint folder."),
    Setting("health_profile", "VERL_OTEL_HEALTH_PROFILE", make_profile_parser(profiles.PROFILES), profiles.DEFAULT,
        "Profile of the thresholds of guards and of the live page: `default`, `rlhf`, `math`, `agent`, or the path of a file. "
        "`verl-otel boards export --profile` writes the same ones for Prometheus."),
    Setting("log_level", "VERL_OTEL_LOG_LEVEL", _parse_level, "info",
        "Lowest level of the run log (`verl_logs.jsonl`): `off`, `debug`, `info`, `warning` or `error`. `debug` adds all scalars of a step, each "
        "trajectory and each worker call."),
    Setting("log_debug_seconds", "VERL_OTEL_LOG_DEBUG_SECONDS", make_number_parser(0, 10_000_000), "3600",
        "Seconds after which each process ends the records of level `debug`, since they take disk space; 0: never."),
)
# fmt: on

_LINK_NAME: Final = re.compile(
    r"VERL_OTEL_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_LINK_VALUE: Final = re.compile(r"(?:tcp|udp|sctp)://\S+:\d+")


def is_service_link(name: str, value: str) -> bool:
    """Return whether a variable is one of those that Kubernetes sets in each container for each Service of the namespace.

    A Service ``verl-otel-prometheus`` sets ``VERL_OTEL_PROMETHEUS_PORT=tcp://...``, which is no value of our setting. Source: Kubernetes,
    "Accessing the Service", environment variables.
    """
    is_port = name.endswith("_PORT") and _LINK_VALUE.fullmatch(value) is not None
    return is_port or _LINK_NAME.fullmatch(name) is not None


_PREFIX: Final = "VERL_OTEL_"
_OTHER_VARIABLES: Final = ("VERL_OTEL_BOARDS", RAISE_INTERNAL_ERRORS)
"""Variables that are no settings: Grafana's path of the boards, and that of verl-otel's own tests."""


def find_unknown(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that begin as settings do and are none, each with the setting that may be meant and is not set, or empty."""
    values = os.environ if environ is None else environ
    known = {setting.variable for setting in SETTINGS}
    unknown = {}
    for name in sorted(values):
        is_ours = name.startswith(_PREFIX) and name not in known and name not in _OTHER_VARIABLES
        if is_ours and not is_service_link(name, values[name]):
            meant = _find_similar(name, known)
            unknown[name] = "" if values.get(meant) else meant
    return unknown


def _find_similar(name: str, settings: Iterable[str]) -> str:
    """Return the setting whose name without its prefix is the most similar; empty if none is."""
    import difflib

    suffixes = {setting.partition("OTEL_")[2]: setting for setting in settings}
    similar = difflib.get_close_matches(name.removeprefix(_PREFIX), sorted(suffixes), n=1)
    return suffixes[similar[0]] if similar else ""


# -- loading --


@dataclass(frozen=True)
class Config:
    """All settings, validated. Created by `load_config`."""

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
    aiohttp: str
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
    return next((values[name].strip() for name in _OTLP_ENDPOINTS if values.get(name, "").strip()), "")


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


def with_sdk(exporters: object) -> str:
    """Return the exporters, given or of the environment, and ``sdk``: providers of OpenTelemetry were given in code.

    The endpoint that OpenTelemetry's variables name is then that of the user's providers.
    """
    return f"{_to_text(exporters or os.environ.get('VERL_OTEL_EXPORTERS') or 'file')},sdk"


def load_config(environ: Mapping[str, str] | None = None, **keywords: object) -> Config:
    """Return the settings of this process.

    Args:
        environ: The environment, `os.environ` if absent.
        **keywords: Settings by their field name, which override the environment. Text is parsed as in the environment; None counts
            as absent.

    Raises:
        ConfigError: A value cannot be used, or a keyword is unknown. The message names the setting, the value, and
            what is allowed. Values of OpenTelemetry's own variables (``OTEL_``) are ignored instead.

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
    text = _to_text(given).strip()  # a file with the line ends of Windows has "\r" at the end of each value
    if not text and not setting.default:
        return None if setting.parse is parse_path else ""
    try:
        return setting.parse(text)
    except ValueError as error:
        problem = f"{name}={_to_text(given)!r}: {error}"
        if not name.startswith(_SHARED):
            raise ConfigError(problem) from None
        note_ignored(name, problem)
        return setting.parse(setting.default)


_SHARED: Final = "OTEL_"
"""Variables that begin so belong to every SDK of the process, pod or machine: a value that only another one understands is ignored here."""
_ignored: dict[str, str] = {}


def note_ignored(variable: str, problem: str, instead: str = "its default is used") -> None:
    """Note that the value of a variable of OpenTelemetry is ignored, and log it, once per process.

    Args:
        variable: Its name.
        problem: The variable, its value, and what is allowed.
        instead: What is done instead.
    """
    _ignored[variable] = problem
    error_boundary.warn_once(f"ignored {variable}", "verl-otel: %s; %s", problem, instead)


def list_ignored() -> list[str]:
    """Return what was noted by `note_ignored` in this process."""
    return list(_ignored.values())


process_state.register(reset=_ignored.clear)


def _to_text(given: object) -> str:
    if isinstance(given, (tuple, list)):
        return ",".join(map(str, given))
    return str(int(given)) if isinstance(given, bool) else str(given)


def with_run(config: Config, run_id: str, attempt: int) -> Config:
    """Return the settings with the identity of the run filled in."""
    return replace(config, run_id=run_id, run_attempt=attempt)


assert {setting.field for setting in SETTINGS} == {field.name for field in fields(Config)}  # noqa: S101 - one list, one class
