# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The components of a stack: command, files and variables of each, their addresses and processes, and Ray beside them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel._internal import safe_files
from verl_otel.cli import package_data
from verl_otel.cli.run_folders import COLLECTOR_FOLDER, SETTINGS_FILE
from verl_otel.errors import VerlOtelError
from verl_otel.exporting.http_server import show_address
from verl_otel.health import profiles, rules_file
from verl_otel.health.profiles import Profile
from verl_otel.session.prometheus_job import make_pattern

MEMORY_MIB: Final = 1024
"""Memory limit of the Collector in MiB (`OTELCOL_MEMORY_MIB`); Go's own limit is four fifths of it."""
_HIDDEN: Final = ("OTEL_", "VERL_OTEL_")
"""Prefixes of variables for trainings, which components do not inherit: the stack does not trace itself."""
_BY_FILES: Final = 'file_sd_configs: [{files: ["targets/*.json"], refresh_interval: 15s}]'
"""How `prometheus.yml` finds what serves ``/metrics``."""
_NO_ALERTMANAGER: Final = "static_configs: [{targets: []}]"
"""How `prometheus.yml` says that alerts are sent to nothing."""
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
        alertmanagers: ``host:port`` of each Alertmanager that gets the alerts.
    """

    addresses: Mapping[str, str]
    data: Path
    targets: Path
    tempo: bool
    cluster: ClusterPlan | None = None
    profile: Profile = field(default_factory=profiles.load)
    alertmanagers: tuple[str, ...] = ()

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
        discovery = _BY_FILES.replace('"targets/*.json"', json.dumps(make_pattern(plan.targets)))
    else:
        url = json.dumps(f"{plan.url('discovery')}/")
        discovery = f"http_sd_configs: [{{url: {url}, refresh_interval: 15s}}]"
    changes = {
        "[rules/*.rules.yml]": json.dumps(
            [_escape(plan.thresholds if path.name == rules_file.FILE else path) for path in find_rules()]
        ),
        '"127.0.0.1:8889"': json.dumps(plan.addresses["metrics"]),
        '"127.0.0.1:8888"': json.dumps(plan.addresses["self"]),
        _BY_FILES: discovery,
        _NO_ALERTMANAGER: f"static_configs: [{{targets: {json.dumps(plan.alertmanagers)}}}]",
    }
    for old, new in changes.items():
        if text.count(old) != 1:
            raise VerlOtelError(f"prometheus.yml of this installation does not say {old} once")
        text = text.replace(old, new)
    return text + make_ray_job()


def _escape(path: Path) -> str:
    return make_pattern(path.parent, path.name)


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


def make_grafana(home: Path, plan: Plan) -> StackProcess:
    """Return Grafana, with the boards that come with verl-otel: for viewers, unless the environment has an administrator's password.

    Args:
        home: The folder of Grafana.
        plan: The shared configuration.

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
        "GF_PATHS_PROVISIONING": str(add_ray_boards(boards / "provisioning", folder)),
        "GF_SECURITY_ALLOW_EMBEDDING": "true",  # in Ray's dashboard
        "GF_SERVER_HTTP_ADDR": plan.host("grafana"),
        "GF_SERVER_HTTP_PORT": plan.port("grafana"),
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",  # a node without internet access would wait for them
        "PROMETHEUS_URL": plan.url("prometheus"),
        "TEMPO_URL": plan.url("tempo"),
        "VERL_OTEL_BOARDS": str(boards / "generated"),
    }
    words = [str(program), "server"] if program.name == "grafana" else [str(program)]
    command = [*words, "--homepath", str(home)]
    return StackProcess("Grafana", command, environ, f"{plan.url('grafana')}/api/health", plan.data / "grafana.log")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}


# -- Addresses: the loopback, with default ports, ports from the environment, or free ports --

HOST: Final = "127.0.0.1"


class Listener(NamedTuple):
    """A listener: its default port, and the variable that changes it."""

    port: int
    variable: str
    text: str
    outside: bool = False
    """Whether other nodes connect to it in a cluster."""


LISTENERS: Final = {
    "grpc": Listener(4317, "OTELCOL_GRPC", "OTLP/gRPC", outside=True),
    "http": Listener(4318, "OTELCOL_HTTP", "OTLP/HTTP", outside=True),
    "metrics": Listener(8889, "OTELCOL_METRICS", "what Prometheus scrapes"),
    "self": Listener(8888, "OTELCOL_SELF_PORT", "the Collector's own metrics"),
    "health": Listener(13133, "OTELCOL_HEALTH", "the Collector's health"),
    "store": Listener(14317, "OTELCOL_TRACE_STORE", "Tempo's OTLP"),
    "prometheus": Listener(9090, "STACK_PROMETHEUS", "Prometheus"),
    "discovery": Listener(9465, "STACK_DISCOVERY", "HTTP service discovery"),
    "tempo": Listener(3200, "STACK_TEMPO", "Tempo"),
    "tempo-grpc": Listener(9095, "STACK_TEMPO_GRPC", "Tempo, inside"),
    "grafana": Listener(3000, "STACK_GRAFANA", "Grafana"),
}
"""Every port of the stack. The Collector's variables are those of its configuration files."""


def choose_addresses(environ: Mapping[str, str], *, free: bool = False, outside: str = HOST) -> dict[str, str]:
    """Return ``host:port`` of every listener, by its name.

    Args:
        environ: The environment: variables contain ``port`` or ``host:port``.
        free: Let the operating system choose the ports, and ignore the variables.
        outside: Host of the listeners that other nodes connect to, unless their variable has one.

    Raises:
        VerlOtelError: A variable has no port in it.
    """
    if free:
        return _find_free(outside)
    addresses = {}
    for name, listener in LISTENERS.items():
        variables = (listener.variable, ALSO_PORT.get(name, ""))
        variable = next((each for each in variables if environ.get(each, "").strip()), listener.variable)
        text = environ.get(variable, "").strip() or str(listener.port)
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65536:  # noqa: PLR2004 - as ports are numbered
            raise VerlOtelError(f"{variable}={text!r}: give a port, or host:port")
        addresses[name] = show_address(host or (outside if listener.outside else HOST), int(port))
    return addresses


def _find_free(outside: str) -> dict[str, str]:
    """Return free ports. All are bound at once, so that none is returned twice.

    Raises:
        VerlOtelError: This machine does not have the address.
    """
    with contextlib.ExitStack() as held:
        addresses = {}
        for name, listener in LISTENERS.items():
            host = outside if listener.outside else HOST
            probe = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            try:
                probe.bind((host, 0))
            except OSError as error:
                raise VerlOtelError(f"{host} cannot be bound: {os.strerror(error.errno or 0)}") from None
            addresses[name] = show_address(host, probe.getsockname()[1])
    return addresses


def check_free(addresses: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Check that the ports of the stack are free.

    Raises:
        VerlOtelError: A port is in use; the message names it and the variable that changes it.
    """
    for name in names:
        host, _, port = addresses[name].rpartition(":")
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the programs do
            try:
                probe.bind((host.strip("[]"), int(port)))
            except OSError as error:
                listener = LISTENERS[name]
                raise VerlOtelError(
                    f"{addresses[name]} ({listener.text}) cannot be bound: {os.strerror(error.errno or 0)}; "
                    f"{listener.variable} moves it, --free-ports moves all"
                ) from None


def has_web_pages(prometheus: str) -> bool:
    """Return whether a Prometheus serves its web pages: `build.sh` compiles it without them.

    Args:
        prometheus: Its URL.
    """
    return _is_served(f"{prometheus}/query")


def _is_served(url: str) -> bool:
    """Return whether a URL of this machine answers 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004 - as HTTP numbers it
    except (OSError, HTTPException):
        return False


# -- Starts, monitors and stops the processes --

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0
"""Seconds for a process to flush its data before it is killed."""
POLL: Final = 0.1
TAIL: Final = 12
"""Lines of a log that are shown when its process has failed."""


class StackProcess:
    """One program of the stack.

    Args:
        title: Name shown to users.
        command: The program and its arguments.
        environ: Its environment.
        ready: URL that answers 200 once it works.
        log: File for its output.
    """

    def __init__(self, title: str, command: Sequence[str], environ: Mapping[str, str], ready: str, log: Path) -> None:
        self.title = title
        self.log = log
        self._command = command
        self._environ = environ
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process in its own session, so that Ctrl-C reaches only this process, which stops the others in order.

        Raises:
            VerlOtelError: It cannot be run.
        """
        try:
            with os.fdopen(safe_files.open_private(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - running the program is the purpose
                    self._command, env=self._environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            raise VerlOtelError(f"{self.title}: {self._command[0]}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        """The id of the process; 0 before it has been started."""
        return self._process.pid if self._process else 0

    @property
    def code(self) -> int | None:
        """The exit code of the process, or None while it runs."""
        return self._process.poll() if self._process else None

    def is_ready(self) -> bool:
        """Return whether it answers."""
        return _is_served(self._ready)

    def check(self) -> None:
        """Do nothing while it runs.

        Raises:
            VerlOtelError: It has ended; the end of its log is in the message.
        """
        if self.code is not None:
            raise VerlOtelError(f"{self.title} has ended with code {self.code}:\n{self.read_tail()}")

    def wait_ready(self, ended: threading.Event) -> None:
        """Wait until it answers, or until a signal to stop.

        Raises:
            VerlOtelError: It has ended, or does not answer in time; the end of its log is in the message.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not ended.is_set() and not self.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise VerlOtelError(f"{self.title} does not answer at {self._ready}:\n{self.read_tail()}")
            ended.wait(POLL)

    def read_tail(self) -> str:
        """Return the last lines of its log, and where the log is."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()[-TAIL:]
        except OSError:
            lines = []
        return "\n".join([*(f"  {line[:400]}" for line in lines), f"  (all of it: {self.log})"])

    def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL if it has not ended after a while."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


# -- Ray beside the stack: variables for ``ray start``, a job for Ray's own metrics, and Ray's boards in the stack's Grafana --

ALSO_PORT: Final = {"prometheus": "PROMETHEUS_PORT", "grafana": "GF_SERVER_HTTP_PORT"}
"""Variables of other guides and of Grafana with the port of a listener; those of the stack win."""
_TARGETS: Final = "prom_metrics_service_discovery.json"
_BOARDS: Final = "session_latest/metrics/grafana/dashboards"
_PROVIDER: Final = """apiVersion: 1
providers:
  - {{name: Ray, orgId: 1, folder: Ray, type: file, options: {{path: {path}}}}}
"""


def find_ray_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder in which Ray keeps the files of this machine, as Ray finds it."""
    return Path(environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp") / "ray"  # noqa: S108 - Ray's place


def make_ray_variables(prometheus: str, grafana: str = "") -> str:
    """Return the variables for ``ray start --head``, as a shell takes them.

    Args:
        prometheus: The URL of Prometheus.
        grafana: The URL of Grafana; empty without one.

    Example:
        "RAY_PROMETHEUS_HOST=http://127.0.0.1:9090 RAY_GRAFANA_HOST=... RAY_GRAFANA_IFRAME_HOST=..." (the last: as the browser reaches it)
    """
    words = [f"RAY_PROMETHEUS_HOST={prometheus}"]
    if grafana:
        words += [f"RAY_GRAFANA_HOST={grafana}", f"RAY_GRAFANA_IFRAME_HOST={grafana}"]
    return " ".join(words)


def find_ray_targets() -> Path:
    """Return the file in which Ray lists the targets of its own metrics."""
    return find_ray_folder(os.environ) / _TARGETS


def make_ray_job() -> str:
    """Return a scrape job for Ray's own metrics, to be appended to ``scrape_configs`` of `prometheus.yml`."""
    path = json.dumps(_escape(find_ray_targets()))
    return f"  # Ray's own metrics, for its dashboard.\n  - job_name: ray\n    file_sd_configs: [{{files: [{path}]}}]\n"


def add_ray_boards(provisioning: Path, folder: Path) -> Path:
    """Return a provisioning folder for Grafana that has Ray's boards, too; the given one if Ray has written none here.

    Args:
        provisioning: The folder that comes with verl-otel.
        folder: Grafana's folder in the data of the stack.

    Raises:
        OSError: It cannot be written.
    """
    boards = find_ray_folder(os.environ) / _BOARDS
    if not boards.is_dir():
        return provisioning
    made = folder / "provisioning"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(provisioning, made)
    safe_files.write_atomically(made / "dashboards" / "ray.yaml", _PROVIDER.format(path=json.dumps(str(boards))))
    return made
