# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The part of ``verl-otel stack --cluster`` that concerns Ray: the address that nodes reach, the token, the list of engines."""

from __future__ import annotations

import argparse
import contextlib
import functools
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import safe_files
from verl_otel.cli.discover import command as discover
from verl_otel.cli.discover.http_auth import HttpAuth
from verl_otel.cli.discover.service_discovery import Server, TargetList, print_once
from verl_otel.cli.stack.components import ClusterPlan, Plan
from verl_otel.errors import VerlOtelError
from verl_otel.exporting.http_server import show_address, strip_brackets
from verl_otel.integrations.cluster_store import NAMESPACE
from verl_otel.integrations.ray import cluster_endpoint, discovery
from verl_otel.integrations.ray.cluster_endpoint import MAX_CERTIFICATE, ClusterEndpoint

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
        find = functools.partial(discover.find_entries, plan.targets, self._address, None, linger=True)
        try:
            self._server = Server((plan.host("discovery"), int(plan.port("discovery"))), HttpAuth(), TargetList(find))
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


def prepare(arguments: argparse.Namespace) -> ClusterService | None:
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
    cluster = find(arguments.address)
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


def find(address: str | None) -> str:
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
