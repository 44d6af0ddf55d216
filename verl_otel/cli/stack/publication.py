# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Publishes the OTLP endpoint of ``verl-otel stack --cluster`` in Ray's store, and again when the cluster has restarted."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, Final

from verl_otel.cli.discover.service_discovery import print_once
from verl_otel.errors import VerlOtelError
from verl_otel.integrations.cluster_store import NAMESPACE
from verl_otel.integrations.ray import cluster_endpoint, discovery
from verl_otel.integrations.ray.cluster_endpoint import ClusterEndpoint

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
