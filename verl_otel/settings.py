# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The list of all settings: keyword, variable, parser, default, description. The loader, the reference page and `verl-otel check` read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from verl_otel._internal.setting_parsers import (
    DEFAULT_DIR,
    make_choice_parser,
    make_integer_parser,
    make_number_parser,
    make_profile_parser,
    parse_exporters,
    parse_flag,
    parse_group,
    parse_host,
    parse_milliseconds,
    parse_name,
    parse_path,
    parse_run_dir,
    parse_sampler,
    parse_semconv_opt_in,
)
from verl_otel.health.profiles import DEFAULT as DEFAULT_PROFILE
from verl_otel.health.profiles import PROFILES


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
        "Exporters, separated by commas: `otlp`, `prometheus`, `file`, `tensorboard`, `console`, or `none`. The default is `file,otlp` if an "
        "`OTEL_EXPORTER_OTLP_*ENDPOINT` is set."),
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
        "What happens to `prometheus.yml` with `rollout.prometheus.enable`. `merge`: one marked job that discovers the engines is added to it, "
        "and Prometheus is reloaded; `keep`: it is not changed; `verl`: verl overwrites it on every node."),
    Setting("capture_content", "VERL_OTEL_CAPTURE_CONTENT", parse_flag, "0",
        "Record exception messages, and content in your own OpenTelemetry spans. Off by default, because they may contain prompts or answers."),
    Setting("drain_interval", "VERL_OTEL_DRAIN_INTERVAL", make_number_parser(0.05, 60), "1",
        "Seconds between two drains. A killed process loses at most the data of this interval."),
    Setting("metric_interval", "OTEL_METRIC_EXPORT_INTERVAL", parse_milliseconds, "10000",
        "Milliseconds between two collections of observable metrics, and between two exports of unchanged series."),
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
        "Propagate the trace context over Ray actor calls. Without it every process has separate traces."),
    Setting("token_file", "VERL_OTEL_TOKEN_FILE", parse_path, "",
        "File with a bearer token for OTLP. It is read at every export and never logged."),
    Setting("rl_insight", "VERL_OTEL_RL_INSIGHT", make_choice_parser("auto", "on", "off"), "auto",
        "Whether verl-otel receives what reports to RL-Insight. `auto`: if the package `rl-insight` is not installed; `on`: always; "
        "`off`: never."),
    Setting("engine_traces", "VERL_OTEL_ENGINE_TRACES", parse_flag, "0",
        "Let vLLM create its own `llm_request` span for every request, as a child of ours and exported with ours. Enables the statistics of "
        "vLLM. Not needed if vLLM has an `otlp_traces_endpoint` of its own."),
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
        "Share of one CPU core that telemetry may take in a process, over a minute. Above it leaf spans (`timed(..., span=True)`, and your own "
        "`span` without children) are dropped; spans of steps and trajectories, and metrics, never are. 0: no limit."),
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
        "Write a line into the log of the training when a step was held, and one on the whole run when it ends or fails, with the command that shows "
        "the evidence. A run that nothing held has none."),
    Setting("tracker_summary", "VERL_OTEL_TRACKER_SUMMARY", parse_flag, "0",
        "Write the id and folder of the run, its goodput and a verdict on its steps into the run summary of W&B and the tags of MLflow, where verl logs to them."),
    Setting("stop_on_nan", "VERL_OTEL_STOP_ON_NAN", make_integer_parser(0, 1_000_000), "0",
        "Stop the training after this many steps in a row with a loss, reward, KL or gradient norm that is not finite; 0: never."),
    Setting("stop_on_kl", "VERL_OTEL_STOP_ON_KL", make_integer_parser(0, 1_000_000), "0",
        "Stop the training after this many steps in a row with a KL divergence above the threshold of the alerts; 0: never."),
    Setting("stop_on_reward_fall", "VERL_OTEL_STOP_ON_REWARD_FALL", make_integer_parser(0, 1_000_000), "0",
        "Stop the training after this many steps in a row in which the reward has lost half of what it had gained; 0: never."),
    Setting("stop_on_plateau", "VERL_OTEL_STOP_ON_PLATEAU", make_integer_parser(0, 1_000_000), "0",
        "Stop the training after this many steps without a better mean reward and without a rise; 0: never."),
    Setting("best_checkpoint", "VERL_OTEL_BEST_CHECKPOINT", str, "",
        "Scalar of verl, as `val-core/math/acc/mean@1` or `min:actor/ppo_kl`: of the checkpoints that verl saves, the one with its best value is kept "
        "in `best/` of the checkpoint folder."),
    Setting("health_profile", "VERL_OTEL_HEALTH_PROFILE", make_profile_parser(PROFILES), DEFAULT_PROFILE,
        "Profile of the thresholds of guards and of the live page: `default`, `rlhf`, `math`, `agent`, or the path of a file. "
        "`verl-otel boards export --profile` writes the same ones for Prometheus."),
    Setting("log_level", "VERL_OTEL_LOG_LEVEL", make_choice_parser("off", "debug", "info", "warning", "error"), "info",
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
