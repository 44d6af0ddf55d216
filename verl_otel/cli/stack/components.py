# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Defines how each component of the stack is started: its command, files and environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from verl_otel._internal import safe_files
from verl_otel.cli import package_data
from verl_otel.cli.stack import ray_dashboard
from verl_otel.cli.stack.data_folder import COLLECTOR_FOLDER, SETTINGS_FILE
from verl_otel.cli.stack.processes import StackProcess
from verl_otel.errors import VerlOtelError
from verl_otel.health import profiles, rules_file
from verl_otel.health.profiles import Profile

MEMORY_MIB: Final = 1024
"""Memory limit of the Collector in MiB (`OTELCOL_MEMORY_MIB`); Go's own limit is four fifths of it."""
_HIDDEN: Final = ("OTEL_", "VERL_OTEL_")
"""Prefixes of variables for trainings, which components do not inherit: the stack does not trace itself."""
_BY_FILES: Final = 'file_sd_configs: [{files: ["targets/*.json"], refresh_interval: 15s}]'
"""How `prometheus.yml` finds what serves ``/metrics``."""
_ADMINISTRATOR: Final = "GF_SECURITY_ADMIN_PASSWORD"
"""Variable with the administrator's password, or with the suffix ``__FILE`` the file that contains it."""
_VIEWERS: Final = {
    "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
    "GF_AUTH_DISABLE_LOGIN_FORM": "true",
    "GF_AUTH_BASIC_ENABLED": "false",
    "GF_AUTH_ANONYMOUS_ENABLED": "true",
    "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
}
"""Settings for a Grafana without accounts: read-only access on the loopback, and no administrator with the default password."""


@dataclass(frozen=True)
class ClusterPlan:
    """The configuration of a stack for a Ray cluster.

    Args:
        token_file: File with the bearer token that the Collector asks for.
        certificate: Certificate chain of the Collector; None without TLS.
        key: Private key of the certificate.
    """

    token_file: Path
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Plan:
    """The shared configuration of the components.

    Args:
        addresses: ``host:port`` of every listener.
        data: The folder for all data.
        targets: The folder of the ``file_sd`` files of trainings on this machine.
        tempo: Whether the stack includes Tempo.
        cluster: What a stack for a Ray cluster has in addition.
        profile: The thresholds of the alerts.
    """

    addresses: Mapping[str, str]
    data: Path
    targets: Path
    tempo: bool
    cluster: ClusterPlan | None = None
    profile: Profile = field(default_factory=profiles.load)

    def url(self, name: str) -> str:
        """Return the URL of a listener."""
        return f"http://{self.addresses[name]}"

    def host(self, name: str) -> str:
        """Return the host of a listener."""
        return self.addresses[name].rpartition(":")[0]

    def port(self, name: str) -> str:
        """Return the port of a listener."""
        return self.addresses[name].rpartition(":")[2]

    @property
    def thresholds(self) -> Path:
        """The rules of Prometheus with the thresholds of the profile."""
        return self.data / rules_file.FILE

    @property
    def trace_file(self) -> Path:
        """File for sampled traces without Tempo."""
        return self.data / "traces.jsonl"

    def make_folder(self, name: str) -> Path:
        """Create the folder of one component."""
        folder = self.data / name
        safe_files.make_folder(folder)
        return folder


def make_collector(program: Path, plan: Plan) -> StackProcess:
    """Return the Collector: ``local.yaml``, with sampled traces in Tempo or in a file."""
    files = package_data.find_folder("collector")
    names = ["local.yaml"] if plan.tempo else ["local.yaml", "traces-to-file.yaml"]
    cluster = plan.cluster
    if cluster is not None:
        names += ["token.yaml", "tls.yaml"] if cluster.certificate is not None else ["token.yaml"]
    memory = os.environ.get("OTELCOL_MEMORY_MIB", str(MEMORY_MIB))
    environ = {
        **_environment(),
        "OTELCOL_GRPC": plan.addresses["grpc"],
        "OTELCOL_HTTP": plan.addresses["http"],
        "OTELCOL_METRICS": plan.addresses["metrics"],
        "OTELCOL_HEALTH": plan.addresses["health"],
        "OTELCOL_SELF_HOST": plan.host("self"),
        "OTELCOL_SELF_PORT": plan.port("self"),
        "OTELCOL_TRACE_STORE": plan.addresses["store"],
        "OTELCOL_STATE_DIR": str(plan.make_folder(COLLECTOR_FOLDER)),
        "OTELCOL_TRACE_FILE": str(plan.trace_file),
        "OTELCOL_MEMORY_MIB": memory,
    }
    if cluster is not None:
        environ["OTELCOL_TOKEN_FILE"] = str(cluster.token_file)
        if cluster.certificate is not None:
            environ |= {"OTELCOL_TLS_CERT": str(cluster.certificate), "OTELCOL_TLS_KEY": str(cluster.key)}
    if memory.isdecimal():
        environ.setdefault("GOMEMLIMIT", f"{int(memory) * 4 // 5}MiB")
    command = [str(program), *(f"--config={files / name}" for name in names)]
    return StackProcess("the Collector", command, environ, plan.url("health"), plan.data / "otelcol.log")


def make_prometheus(program: Path, plan: Plan) -> StackProcess:
    """Return Prometheus, with the rules that come with verl-otel."""
    settings = plan.data / SETTINGS_FILE
    safe_files.write_atomically(plan.thresholds, rules_file.render(plan.profile))
    safe_files.write_atomically(settings, write_settings(plan))
    command = [
        str(program),
        f"--config.file={settings}",
        f"--storage.tsdb.path={plan.make_folder('prometheus')}",
        f"--web.listen-address={plan.addresses['prometheus']}",
        "--enable-feature=exemplar-storage,created-timestamp-zero-ingestion",
        "--web.enable-otlp-receiver",
        *(["--web.enable-lifecycle"] if plan.cluster is not None else []),
    ]
    return StackProcess(
        "Prometheus", command, _environment(), f"{plan.url('prometheus')}/-/ready", plan.data / "prometheus.log"
    )


def write_settings(plan: Plan) -> str:
    """Return ``prometheus.yml`` with the addresses and folders of this stack in it.

    Raises:
        VerlOtelError: The file does not belong to this version.
    """
    text = (package_data.find_folder("collector") / "prometheus.yml").read_text("utf-8")
    if plan.cluster is None:
        discovery = _BY_FILES.replace('"targets/*.json"', json.dumps(f"{plan.targets}/*.json"))
    else:
        url = json.dumps(f"{plan.url('discovery')}/")
        discovery = f"http_sd_configs: [{{url: {url}, refresh_interval: 15s}}]"
    changes = {
        "[rules/*.rules.yml]": json.dumps(
            [str(plan.thresholds if path.name == rules_file.FILE else path) for path in find_rules()]
        ),
        '"127.0.0.1:8889"': json.dumps(plan.addresses["metrics"]),
        '"127.0.0.1:8888"': json.dumps(plan.addresses["self"]),
        _BY_FILES: discovery,
    }
    for old, new in changes.items():
        if text.count(old) != 1:
            raise VerlOtelError(f"prometheus.yml of this installation does not say {old} once")
        text = text.replace(old, new)
    return text + ray_dashboard.make_job()


def find_rules() -> list[Path]:
    """Return the rule files that come with verl-otel."""
    try:
        return sorted((package_data.find_folder("dashboards") / "rules").glob("*.rules.yml"))
    except VerlOtelError:
        return []


def make_tempo(program: Path, plan: Plan) -> StackProcess:
    """Return Tempo, with its disk in the stack's folder."""
    environ = {
        **_environment(),
        "TEMPO_DATA": str(plan.make_folder("tempo")),
        "TEMPO_OTLP": plan.addresses["store"],
        "TEMPO_HTTP_HOST": plan.host("tempo"),
        "TEMPO_HTTP_PORT": plan.port("tempo"),
        "TEMPO_GRPC_HOST": plan.host("tempo-grpc"),
        "TEMPO_GRPC_PORT": plan.port("tempo-grpc"),
    }
    settings = package_data.find_folder("collector") / "tempo.yaml"
    command = [str(program), f"-config.file={settings}", "-config.expand-env=true"]
    return StackProcess("Tempo", command, environ, f"{plan.url('tempo')}/ready", plan.data / "tempo.log")


def make_grafana(home: Path, plan: Plan, more: Mapping[str, str] = MappingProxyType({})) -> StackProcess:
    """Return Grafana, with the boards that come with verl-otel: for viewers, unless the environment has an administrator's password.

    Args:
        home: The folder of Grafana.
        plan: The shared configuration.
        more: Additional settings (`GF_*`).

    Raises:
        VerlOtelError: The folder contains no Grafana.
    """
    program = next(
        (home / "bin" / name for name in ("grafana", "grafana-server") if (home / "bin" / name).exists()), None
    )
    if program is None:
        raise VerlOtelError(f"--grafana-home {home}: there is no bin/grafana in it")
    boards = package_data.find_folder("dashboards")
    folder = plan.make_folder("grafana")
    inherited = _environment()
    has_password = any(name.startswith(_ADMINISTRATOR) for name in inherited)
    environ = {
        **({} if has_password else _VIEWERS),
        **inherited,
        "GF_PATHS_DATA": str(folder),
        "GF_PATHS_LOGS": str(folder / "log"),
        "GF_PATHS_PLUGINS": str(folder / "plugins"),
        "GF_PATHS_PROVISIONING": str(ray_dashboard.add_boards(boards / "provisioning", folder)),
        "GF_SECURITY_ALLOW_EMBEDDING": "true",  # in Ray's dashboard
        "GF_SERVER_HTTP_ADDR": plan.host("grafana"),
        "GF_SERVER_HTTP_PORT": plan.port("grafana"),
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",  # a node without internet access would wait for them
        "PROMETHEUS_URL": plan.url("prometheus"),
        "TEMPO_URL": plan.url("tempo"),
        "VERL_OTEL_BOARDS": str(boards / "generated"),
        **more,
    }
    words = [str(program), "server"] if program.name == "grafana" else [str(program)]
    command = [*words, "--homepath", str(home)]
    return StackProcess("Grafana", command, environ, f"{plan.url('grafana')}/api/health", plan.data / "grafana.log")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
