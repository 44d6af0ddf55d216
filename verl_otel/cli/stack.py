# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run a Collector and a Prometheus for the trainings of this machine, until stopped.

The Collector receives OTLP. Prometheus scrapes it and every process of the trainings that serves /metrics, vLLM and SGLang included, with the rules of
verl-otel. With --tempo, traces are sent to a Tempo, otherwise selected ones are written to a file. With --grafana-home a Grafana has the boards.
Everything listens on the loopback interface, and ends with Ctrl-C, SIGTERM or the terminal (not under nohup). The data stays in the folder of --data, which
one stack at a time can use. Programs are searched for in PATH and where `make collector` installs them.

With --cluster it serves all nodes of the running Ray cluster. OTLP is bound to the address of this machine that the nodes reach, and asks for a token.
Address and token are written to Ray's key-value store. Trainings with VERL_OTEL_ENABLED=1 and no destination of their own read them there.
Engines are found by service discovery over HTTP. Everything else stays on the loopback. It keeps running when the cluster restarts.

Exit code: 0 ended by a signal, 1 a program has failed, 2 a program is missing, or a port or the folder is in use.

Examples:
  verl-otel stack
  verl-otel stack --free-ports --data ./stack
  verl-otel stack --tempo ~/bin/tempo --grafana-home ~/grafana-v12.1.0
  verl-otel stack --grafana-home ~/grafana-v12.1.0 --prometheus /opt/prometheus/prometheus
  verl-otel stack --alertmanager 127.0.0.1:9093
  verl-otel stack --cluster
  verl-otel stack --cluster --host 10.0.0.1 --tls-cert stack.pem --tls-key stack.key --tls-ca authority.pem

Then, in the shell of the training:
  export VERL_OTEL_ENABLED=1 OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318
  export VERL_OTEL_ENABLED=1                                                      with --cluster
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import os
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel import config
from verl_otel._internal import safe_files
from verl_otel.cli import discover, options, stack_components
from verl_otel.cli.discover import Server, TargetList, print_once
from verl_otel.cli.formatting import DOCUMENTS
from verl_otel.cli.serving import HttpAuth, catch_signals
from verl_otel.cli.stack_components import ClusterPlan, Plan, StackProcess
from verl_otel.config import parse_path
from verl_otel.errors import VerlOtelError
from verl_otel.exporting.http_server import show_address, strip_brackets
from verl_otel.integrations.cluster_store import NAMESPACE
from verl_otel.integrations.ray import cluster_endpoint, discovery
from verl_otel.integrations.ray.cluster_endpoint import MAX_CERTIFICATE, ClusterEndpoint
from verl_otel.session import prometheus_targets

# -- Finds the programs of the stack, and describes how to install missing ones --


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
    "pip or uv), or otelcol-contrib 0.155 or newer from OpenTelemetry's releases; addresses: "
    f"{DOCUMENTS}docs/how-to/cluster.md#programs-without-docker",
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
    return safe_files.find_cache() / "bin"


def find_programs(wanted: Iterable[tuple[Program, Path | None]]) -> list[Path]:
    """Return several programs, as `find_program` does.

    Raises:
        VerlOtelError: At least one was not found; the message describes how to install each of these.
    """
    found, missing = [], []
    for program, given in wanted:
        try:
            found.append(find_program(program, given))
        except VerlOtelError as error:
            missing.append(str(error))
    if missing:
        raise VerlOtelError("\n".join(missing))
    return found


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
        path = shutil.which(name) or _find_cached(name)
        if path is not None:
            return Path(path).absolute()
    raise VerlOtelError(
        f"{program.title} is missing: no {' or '.join(program.names)} in the path or in {cache_folder()}.\n"
        f"  It is {program.ways}.\n  {program.option} PATH names one that is elsewhere."
    )


def _find_cached(name: str) -> str | None:
    """Return a program of the cache, which is below ``/tmp`` for a user without a home folder: one that another user may have put there is not run."""
    try:
        safe_files.check_folder(cache_folder())
    except OSError:
        return None
    return shutil.which(name, path=str(cache_folder()))


# -- the command --

DATA: Final = "~/.local/state/verl-otel/stack"
LOOK_SECONDS: Final = 0.5
"""Interval in seconds for checking that every component is running."""
API_ONLY: Final = "  (API only: this build has no web pages; those of Prometheus' releases have)"
_TITLES: Final = {
    "cluster": "Ray cluster",
    "bound": "OTLP is bound to",
    "token_file": "Token",
    "discovery": "Service discovery",
    "otlp_http": "OTLP/HTTP",
    "otlp_grpc": "OTLP/gRPC",
    "collector_metrics": "Collector's page",
    "prometheus": "Prometheus",
    "alertmanager": "Alerts go to",
    "traces": "Traces",
    "grafana": "Grafana",
    "targets": "Targets of",
    "data": "Data and logs",
    "ray": "For ray start",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--otelcol", type=Path, metavar="PATH", help="the OpenTelemetry Collector")
    parser.add_argument("--prometheus", type=Path, metavar="PATH", help="Prometheus, 3.8 or newer")
    parser.add_argument("--tempo", type=Path, metavar="PATH", help="Tempo, for traces (default: a file)")
    parser.add_argument("--grafana-home", type=Path, metavar="DIR", help="unpacked Grafana, for boards (default: none)")
    parser.add_argument(
        "--alertmanager",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="a running Alertmanager, to which Prometheus sends the alerts; may be repeated (default: none)",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"folder for the data ({DATA})")
    options.add_run_dir(parser)
    options.add_profile(parser, "that of VERL_OTEL_HEALTH_PROFILE")
    parser.add_argument("--free-ports", action="store_true", help="use free ports instead of the usual ones")
    group = parser.add_argument_group("Ray cluster")
    group.add_argument("--cluster", action="store_true", help="serve all nodes of the running Ray cluster")
    options.add_address(group)
    group.add_argument("--host", help="address that OTLP is bound to (default: that of the route to the head)")
    options.add_tls(group, "certificate chain for that address: OTLP by TLS")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="certificate of its authority (--tls-cert)")
    parser.add_argument("--json", action="store_true", help="print the addresses as one line of JSON, for scripts")


def run(arguments: argparse.Namespace) -> int:
    """Start the components and wait. Returns 1 when one has failed."""
    service = prepare_cluster(arguments)
    plan = _make_plan(arguments, service)
    with hold_folder(plan.data), catch_signals() as ended, contextlib.ExitStack() as serving:
        children = _make_children(arguments, plan)
        started: list[StackProcess] = []
        try:
            if service is not None:
                serving.callback(service.stop)
                service.start_discovery(plan)
            for child in children:
                if ended.is_set():
                    break
                started.append(child)
                child.start()
                child.wait_ready(ended)
            if not ended.is_set():
                if service is not None:
                    service.publish(plan)
                _show(plan, children, service, as_json=arguments.json)
            while not ended.wait(LOOK_SECONDS):
                for child in children:
                    child.check()
            return 0
        except VerlOtelError as error:
            print(f"verl-otel: {error}", file=sys.stderr)
            return 1
        finally:
            serving.close()
            for child in started:
                child.stop()


def _make_plan(arguments: argparse.Namespace, service: ClusterService | None) -> Plan:
    safe_files.use_group(config.read("files_group"))
    try:
        data = parse_path(str(arguments.data or DATA))
    except ValueError as error:
        raise VerlOtelError(f"--data {arguments.data or DATA}: {error}") from None
    folder = config.read("run_dir", arguments.run_dir).absolute() / prometheus_targets.TARGETS_FOLDER
    # Prometheus reports an error for a missing folder.
    for option, path in (("--data", data), ("--run-dir", folder)):
        try:
            safe_files.make_folder(path)
        except OSError as error:
            raise VerlOtelError(f"{option} {path}: {error.strerror}") from None
    outside = service.host if service is not None else stack_components.HOST
    addresses = stack_components.choose_addresses(os.environ, free=arguments.free_ports, outside=outside)
    in_cluster = service.plan(data) if service is not None else None
    profile = arguments.profile or options.load_profile()
    return Plan(
        addresses,
        data,
        folder,
        tempo=arguments.tempo is not None,
        cluster=in_cluster,
        profile=profile,
        alertmanagers=tuple(map(_check_alertmanager, arguments.alertmanager)),
    )


def _check_alertmanager(address: str) -> str:
    """Return the address of an Alertmanager if it is one.

    Raises:
        VerlOtelError: It is a URL, or has no port: Prometheus would not start, or ask another port.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        raise VerlOtelError(f"--alertmanager {address}: give HOST:PORT, such as 127.0.0.1:9093")
    return address


def _make_children(arguments: argparse.Namespace, plan: Plan) -> list[StackProcess]:
    """Return the components in the order in which they start and stop: senders before receivers.

    Raises:
        VerlOtelError: A program is missing, or a port is taken.
    """
    wanted = [(OTELCOL, arguments.otelcol), (PROMETHEUS, arguments.prometheus)]
    if arguments.tempo is not None:
        wanted.append((TEMPO, arguments.tempo))
    collector, prometheus, *tempo = find_programs(wanted)
    children = [stack_components.make_collector(collector, plan), stack_components.make_prometheus(prometheus, plan)]
    names: tuple[str, ...] = ("grpc", "http", "metrics", "self", "health", "prometheus")
    if tempo:
        children.append(stack_components.make_tempo(tempo[0], plan))
        names = (*names, "store", "tempo", "tempo-grpc")
    if arguments.grafana_home is not None:
        children.append(stack_components.make_grafana(arguments.grafana_home.absolute(), plan))
        names = (*names, "grafana")
    if plan.cluster is not None:
        names = (*names, "discovery")
    stack_components.check_free(plan.addresses, names)
    return children


def _show(plan: Plan, children: list[StackProcess], service: ClusterService | None, *, as_json: bool) -> None:
    addresses = {
        **(service.describe() if service is not None else {}),
        "otlp_http": service.endpoint.http if service is not None else plan.url("http"),
        "otlp_grpc": service.endpoint.grpc if service is not None else plan.url("grpc"),
        "collector_metrics": f"{plan.url('metrics')}/metrics",
        "prometheus": plan.url("prometheus"),
        **({"alertmanager": ", ".join(plan.alertmanagers)} if plan.alertmanagers else {}),
        "traces": plan.url("tempo") if plan.tempo else str(plan.trace_file),
        **({"grafana": plan.url("grafana")} if any(child.title == "Grafana" for child in children) else {}),
        "targets": str(plan.targets),
        "data": str(plan.data),
    }
    addresses["ray"] = stack_components.make_ray_variables(addresses["prometheus"], addresses.get("grafana", ""))
    if as_json:
        print(json.dumps({**addresses, "pids": {child.title: child.pid for child in children}}), flush=True)
        return
    width = max(map(len, _TITLES.values()))
    notes = {} if stack_components.has_web_pages(addresses["prometheus"]) else {"prometheus": API_ONLY}
    for name, text in addresses.items():
        print(f"{_TITLES[name].ljust(width)}  {text}{notes.get(name, '')}")
    print("\nIn the shell of the training:")
    if service is not None:
        print("  export VERL_OTEL_ENABLED=1        (no other variable, and none on other nodes)")
    else:
        print(f"  export VERL_OTEL_ENABLED=1 OTEL_EXPORTER_OTLP_ENDPOINT={plan.url('http')}")
    print("\nCtrl-C ends it.", flush=True)


# -- A lock for one stack per folder: a second one would overwrite the settings of the running one, and send to its queue --

LOCK: Final = ".lock"


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Lock a folder until the end of the block or of this process.

    Args:
        folder: The folder of ``--data``; it exists.

    Raises:
        VerlOtelError: Another process holds it (the message names it), or it cannot be written.

    Example:
        with hold_folder(plan.data):
            ...
    """
    try:
        lock = safe_files.open_text(folder / LOCK, "r+", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise VerlOtelError(f"--data {folder}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read(200).strip() or "another process"
            raise VerlOtelError(
                f"--data {folder} is in use by {holder}: end that stack, or give this one a folder of its own"
            ) from None
        except OSError:  # some shared disks do not support locks: Prometheus still locks its own folder
            pass
        lock.seek(0)
        lock.truncate()
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield


# -- Publishes the OTLP endpoint of ``verl-otel stack --cluster`` in Ray's store, and again when the cluster has restarted --

PUBLISH_SECONDS: Final = 5.0
"""Interval in seconds in which the entry is looked for: a restarted cluster has an empty store."""


class Publication:
    """The entry of this stack in Ray's store, from which trainings take it.

    Args:
        address: ``--address``, or None; the cluster is looked for at every call, because it may restart elsewhere.
        endpoint: The address and token for trainings.
    """

    def __init__(self, address: str | None, endpoint: ClusterEndpoint) -> None:
        self._address = address
        self._endpoint = endpoint
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verl-otel-publication", daemon=True)

    def start(self) -> None:
        """Write the entry, and write it again when it is gone.

        Raises:
            VerlOtelError: Another stack serves this cluster, or its head does not respond.
        """
        with self._open() as client:
            found = self._read(client)
            if found not in (None, self._endpoint) and _is_answered(found):
                raise VerlOtelError(f"another stack serves this cluster at {found.http}: end it, or use it")
            self._write(client)
        self._thread.start()

    def refresh(self) -> None:
        """Write the entry if it is gone. An unreachable cluster is reported once, and looked for again."""
        try:
            with self._open() as client:
                found = self._read(client)
                if found is None:
                    self._write(client)
                    print_once("verl-otel: the cluster has restarted; its trainings send here again")
                elif found != self._endpoint:
                    print_once(f"verl-otel: another stack at {found.http} has taken over: new trainings send there")
        except VerlOtelError as error:
            print_once(f"verl-otel: {error}; trying again")

    def stop(self) -> None:
        """Delete the entry if it is that of this stack: trainings that start now do not send to it."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(discovery.TIMEOUT)  # it must not write the entry again
        with contextlib.suppress(VerlOtelError), self._open() as client:
            if self._read(client) == self._endpoint:
                client.internal_kv_del(cluster_endpoint.KEY, False, NAMESPACE, timeout=discovery.TIMEOUT)

    def _run(self) -> None:
        while not self._stopped.wait(PUBLISH_SECONDS):
            self.refresh()

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        with discovery.open_store(discovery.find_cluster(self._address)) as client:
            yield client

    def _read(self, client: Any) -> ClusterEndpoint | None:
        value = client.internal_kv_get(cluster_endpoint.KEY, NAMESPACE, timeout=discovery.TIMEOUT)
        return cluster_endpoint.decode(value) if value else None

    def _write(self, client: Any) -> None:
        client.internal_kv_put(
            cluster_endpoint.KEY, self._endpoint.encode(), True, NAMESPACE, timeout=discovery.TIMEOUT
        )


def _is_answered(endpoint: ClusterEndpoint) -> bool:
    """Return whether something listens at an endpoint."""
    host, _, port = endpoint.http.rpartition("//")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 2.0).close()
        return True
    except (OSError, ValueError):
        return False


# -- The part of ``verl-otel stack --cluster`` that concerns Ray: the address that nodes reach, the token, the list of engines --

TOKEN_NAME: Final = "token"  # noqa: S105 - the name of a file
MAX_TOKEN: Final = 1024
WITHOUT_RAY: Final = (
    "without Ray: `verl-otel stack` serves this machine; on other nodes set OTEL_EXPORTER_OTLP_ENDPOINT and VERL_OTEL_TOKEN_FILE, "
    "or use the Collector of `verl-otel collector export`"
)


EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared; bound only if a user says so


class ClusterService:
    """What serves a Ray cluster besides the programs of the stack.

    Args:
        address: ``--address``, or None.
        cluster: ``host:port`` of the head.
        host: Address that OTLP is bound to.
        derived: Whether it was derived from the route to the head.
        tls: Certificate chain, private key and certificate of the authority; None without TLS.
    """

    def __init__(
        self, address: str | None, cluster: str, host: str, tls: tuple[Path, Path, Path] | None, *, derived: bool
    ) -> None:
        self.host = host
        self.endpoint = ClusterEndpoint("", "", "")
        self._address, self._cluster, self._derived, self._tls = address, cluster, derived, tls
        self._token_file = Path()
        self._server: Server | None = None
        self._publication: Publication | None = None

    def plan(self, data: Path) -> ClusterPlan:
        """Return the part of the stack's plan, with the token made."""
        self._token_file = make_token(data)
        return ClusterPlan(self._token_file, *(self._tls[:2] if self._tls else ()))

    def start_discovery(self, plan: Plan) -> None:
        """Serve the targets of the cluster to Prometheus.

        Raises:
            VerlOtelError: The port is taken.
        """
        find_cluster = functools.partial(discover.find_entries, plan.targets, self._address, None, linger=True)
        try:
            self._server = Server(
                (plan.host("discovery"), int(plan.port("discovery"))), HttpAuth(), TargetList(find_cluster)
            )
        except OSError as error:
            raise VerlOtelError(f"{plan.addresses['discovery']} cannot be bound: {error.strerror}") from None
        self._server.start()

    def publish(self, plan: Plan) -> None:
        """Write address and token to Ray's store.

        Raises:
            VerlOtelError: Another stack serves this cluster, or the head does not respond.
        """
        scheme = "https" if self._tls else "http"
        urls = [
            f"{scheme}://{show_address(self._advertise(plan.host(name)), int(plan.port(name)))}"
            for name in ("http", "grpc")
        ]
        authority = self._tls[2].read_text("utf-8") if self._tls else ""
        token = self._token_file.read_text("utf-8").strip()
        self.endpoint = ClusterEndpoint(urls[0], urls[1], token, authority)
        publication = Publication(self._address, self.endpoint)
        publication.start()
        self._publication = publication

    def _advertise(self, host: str) -> str:
        return find_own_address(self._cluster) if strip_brackets(host) in EVERY_ADDRESS else host

    def describe(self) -> dict[str, str]:
        """Return what the command prints, by name."""
        reason = f"the route to the head {self._cluster}" if self._derived else "--host"
        return {
            "cluster": self._cluster,
            "bound": f"{self.host} ({reason}){'' if self._tls else ', without TLS'}",
            "token_file": str(self._token_file),
            "discovery": self._server.url if self._server is not None else "",
        }

    def stop(self) -> None:
        """Delete the entry in Ray's store, and stop serving."""
        if self._publication is not None:
            self._publication.stop()
        if self._server is not None:
            self._server.close()


def prepare_cluster(arguments: argparse.Namespace) -> ClusterService | None:
    """Return the service of ``--cluster``; None without that option.

    Raises:
        VerlOtelError: There is no cluster, an option lacks another one, or a file cannot be used.
    """
    given = [name for name in ("address", "host", "tls_cert", "tls_key", "tls_ca") if getattr(arguments, name)]
    if not arguments.cluster:
        if given:
            raise VerlOtelError(f"--{given[0].replace('_', '-')} goes with --cluster")
        return None
    tls = _check_tls(arguments)
    cluster = find_cluster(arguments.address)
    host = strip_brackets(arguments.host or find_own_address(cluster))
    return ClusterService(arguments.address, cluster, host, tls, derived=not arguments.host)


def _check_tls(arguments: argparse.Namespace) -> tuple[Path, Path, Path] | None:
    certificate, key = arguments.tls_cert, arguments.tls_key
    if HttpAuth(certificate, key).make_context() is None:
        return None
    authority = arguments.tls_ca or certificate
    if authority.stat().st_size > MAX_CERTIFICATE:
        raise VerlOtelError(f"--tls-ca {authority}: larger than {MAX_CERTIFICATE >> 10} KiB")
    return certificate.absolute(), key.absolute(), authority.absolute()


def find_cluster(address: str | None) -> str:
    """Return ``host:port`` of the cluster's head.

    Raises:
        VerlOtelError: There is no cluster, or it does not respond; the message says what works without one.
    """
    try:
        cluster = discovery.find_cluster(address)
        with discovery.open_store(cluster):
            return cluster
    except discovery.ClusterError as error:
        raise VerlOtelError(f"--cluster: {error}; `ray start --head` starts one.\n  {WITHOUT_RAY}") from None


def find_own_address(cluster: str) -> str:
    """Return the address of this machine in the network of the cluster: that of the route to its head. Nothing is sent.

    Raises:
        VerlOtelError: There is no route.
    """
    host, _, port = cluster.rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(strip_brackets(host), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise VerlOtelError(
            f"--cluster: no route to the head {cluster}: {error}; set the address with --host"
        ) from None


def make_token(folder: Path) -> Path:
    """Return the file with the token, which only its user can read. An existing token is kept: running trainings use it.

    Raises:
        VerlOtelError: The file cannot be read or written, or others can read it.
    """
    path = folder / TOKEN_NAME
    try:
        if path.exists():
            if path.stat().st_mode & 0o077:
                raise VerlOtelError(f"{path}: other users can read the token: delete it, and a new one is made")
            if path.stat().st_size <= MAX_TOKEN and path.read_text("utf-8").strip():
                return path
        safe_files.write_secret(path, secrets.token_urlsafe(32))
    except (OSError, UnicodeError) as error:
        raise VerlOtelError(f"{path}: {error}") from None
    return path
