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
  verl-otel stack --cluster
  verl-otel stack --cluster --host 10.0.0.1 --tls-cert stack.pem --tls-key stack.key --tls-ca authority.pem

Then, in the shell of the training:
  export VERL_OTEL_ENABLED=1 OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318
  export VERL_OTEL_ENABLED=1                                                      with --cluster
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

from verl_otel import config
from verl_otel._internal import safe_files
from verl_otel.cli import options
from verl_otel.cli.signals import catch_signals
from verl_otel.cli.stack import addresses as stack_addresses
from verl_otel.cli.stack import cluster, components, lock, ray_dashboard
from verl_otel.cli.stack.cluster import ClusterService
from verl_otel.cli.stack.components import Plan
from verl_otel.cli.stack.processes import StackProcess
from verl_otel.config import parse_path
from verl_otel.errors import VerlOtelError
from verl_otel.health.profiles import Profile
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
    "pip or uv), or otelcol-contrib 0.155 or newer from OpenTelemetry's releases",
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
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "verl-otel" / "bin"


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
        path = shutil.which(name) or shutil.which(name, path=str(cache_folder()))
        if path is not None:
            return Path(path).absolute()
    raise VerlOtelError(
        f"{program.title} is missing: no {' or '.join(program.names)} in the path or in {cache_folder()}.\n"
        f"  It is {program.ways}.\n  {program.option} PATH names one that is elsewhere."
    )


# -- Run a Collector and a Prometheus for the trainings of this machine, until stopped --

DATA: Final = "~/.local/state/verl-otel/stack"
LOOK_SECONDS: Final = 0.5
"""Interval in seconds for checking that every component is running."""
_TITLES: Final = {
    "cluster": "Ray cluster",
    "bound": "OTLP is bound to",
    "token_file": "Token",
    "discovery": "Service discovery",
    "otlp_http": "OTLP/HTTP",
    "otlp_grpc": "OTLP/gRPC",
    "collector_metrics": "Collector's page",
    "prometheus": "Prometheus",
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
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"folder for the data ({DATA})")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="folder that holds one folder per run")
    options.add_profile(parser, "that of VERL_OTEL_HEALTH_PROFILE")
    parser.add_argument("--free-ports", action="store_true", help="use free ports instead of the usual ones")
    group = parser.add_argument_group("Ray cluster")
    group.add_argument("--cluster", action="store_true", help="serve all nodes of the running Ray cluster")
    group.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="head of the Ray cluster (default: RAY_ADDRESS, or the one on this machine)",
    )
    group.add_argument("--host", help="address that OTLP is bound to (default: that of the route to the head)")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain for that address: OTLP by TLS")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of the certificate")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="certificate of its authority (--tls-cert)")
    parser.add_argument("--json", action="store_true", help="print the addresses as one line of JSON, for scripts")


def run(arguments: argparse.Namespace) -> int:
    """Start the components and wait. Returns 1 when one has failed."""
    service = cluster.prepare(arguments)
    plan = _make_plan(arguments, service)
    with lock.hold(plan.data), catch_signals() as ended, contextlib.ExitStack() as serving:
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
            _watch(children, ended)
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
    folder = config.read("run_dir", arguments.run_dir).absolute() / prometheus_targets.FOLDER
    for option, path in (
        ("--data", data),
        ("--run-dir", folder),
    ):  # Prometheus reports an error for a missing folder
        try:
            safe_files.make_folder(path)
        except OSError as error:
            raise VerlOtelError(f"{option} {path}: {error.strerror}") from None
    outside = service.host if service is not None else stack_addresses.HOST
    addresses = stack_addresses.choose(os.environ, free=arguments.free_ports, outside=outside)
    in_cluster = service.plan(data) if service is not None else None
    profile = arguments.profile or _load_profile()
    return Plan(addresses, data, folder, tempo=arguments.tempo is not None, cluster=in_cluster, profile=profile)


def _load_profile() -> Profile:
    try:
        return options.profile(config.read("health_profile"))
    except argparse.ArgumentTypeError as error:
        raise VerlOtelError(f"VERL_OTEL_HEALTH_PROFILE: {error}") from None


def _make_children(arguments: argparse.Namespace, plan: Plan) -> list[StackProcess]:
    """Return the components in the order in which they start and stop: senders before receivers.

    Raises:
        VerlOtelError: A program is missing, or a port is taken.
    """
    children = [
        components.make_collector(find_program(OTELCOL, arguments.otelcol), plan),
        components.make_prometheus(find_program(PROMETHEUS, arguments.prometheus), plan),
    ]
    names: tuple[str, ...] = ("grpc", "http", "metrics", "self", "health", "prometheus")
    if arguments.tempo is not None:
        children.append(components.make_tempo(find_program(TEMPO, arguments.tempo), plan))
        names = (*names, "store", "tempo", "tempo-grpc")
    if arguments.grafana_home is not None:
        children.append(components.make_grafana(arguments.grafana_home.absolute(), plan))
        names = (*names, "grafana")
    if plan.cluster is not None:
        names = (*names, "discovery")
    stack_addresses.check_free(plan.addresses, names)
    return children


def _watch(children: list[StackProcess], ended: threading.Event) -> None:
    while not ended.wait(LOOK_SECONDS):
        for child in children:
            child.check()


def _show(plan: Plan, children: list[StackProcess], service: ClusterService | None, *, as_json: bool) -> None:
    addresses = {
        **(service.describe() if service is not None else {}),
        "otlp_http": service.endpoint.http if service is not None else plan.url("http"),
        "otlp_grpc": service.endpoint.grpc if service is not None else plan.url("grpc"),
        "collector_metrics": f"{plan.url('metrics')}/metrics",
        "prometheus": plan.url("prometheus"),
        "traces": plan.url("tempo") if plan.tempo else str(plan.trace_file),
        **({"grafana": plan.url("grafana")} if any(child.title == "Grafana" for child in children) else {}),
        "targets": str(plan.targets),
        "data": str(plan.data),
    }
    addresses["ray"] = ray_dashboard.make_variables(addresses["prometheus"], addresses.get("grafana", ""))
    if as_json:
        print(json.dumps({**addresses, "pids": {child.title: child.pid for child in children}}), flush=True)
        return
    width = max(map(len, _TITLES.values()))
    for name, text in addresses.items():
        print(f"{_TITLES[name].ljust(width)}  {text}")
    print("\nIn the shell of the training:")
    if service is not None:
        print("  export VERL_OTEL_ENABLED=1        (no other variable, and none on other nodes)")
    else:
        print(f"  export VERL_OTEL_ENABLED=1 OTEL_EXPORTER_OTLP_ENDPOINT={plan.url('http')}")
    print("\nCtrl-C ends it.", flush=True)
