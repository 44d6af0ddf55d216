# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The OTLP endpoint of a Ray cluster: `verl-otel stack --cluster` puts it into Ray's store, and trainings use it.

A process takes the endpoint into its environment, where its children find it, too. The token and the certificate of the
authority are written to private files of this node. A process whose environment names a destination of its own takes
nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel._internal import error_boundary, process_state, safe_files
from verl_otel._internal.call_timeout import call_for
from verl_otel._internal.safe_files import parse_json
from verl_otel.config import load_config
from verl_otel.integrations import cluster_store
from verl_otel.model import SIGNALS

KEY: Final = b"stack/endpoint"
READ_TIMEOUT: Final = 2.0
"""Seconds that a process waits for the store, which may block for minutes."""
FOLDER: Final = ".stack"
"""Folder in the run directory for the token and the certificate."""
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
CERTIFICATE: Final = "OTEL_EXPORTER_OTLP_CERTIFICATE"
TOKEN_FILE: Final = "VERL_OTEL_TOKEN_FILE"  # noqa: S105 - the name of a variable
EXPORTERS: Final = "VERL_OTEL_EXPORTERS"
_OWN_DESTINATION: Final = re.compile(
    rf"OTEL_EXPORTER_OTLP_(?:(?:{'|'.join(SIGNALS).upper()})_)?(?:ENDPOINT|HEADERS|CERTIFICATE|CLIENT_CERTIFICATE|CLIENT_KEY)|VERL_OTEL_TOKEN_FILE"
)
"""Variables of a destination or of its credentials. The token of a cluster is never sent to another destination, nor
another token to the cluster."""
_URL: Final = re.compile(r"https?://(?:[\w.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}", re.ASCII)
_TOKEN: Final = re.compile(r"[\w.~+/=-]{16,512}", re.ASCII)
MAX_CERTIFICATE: Final = 1 << 18


class ClusterEndpoint(NamedTuple):
    """Where the processes of a cluster send OTLP."""

    http: str
    """URL for OTLP over HTTP."""
    grpc: str
    """URL for OTLP over gRPC."""
    token: str
    certificate: str = ""
    """Certificate of the authority that has signed that of the endpoint, in PEM; empty without TLS."""

    def encode(self) -> bytes:
        """Return the value in Ray's store."""
        return json.dumps(self._asdict(), sort_keys=True).encode()


def decode(value: bytes) -> ClusterEndpoint | None:
    """Return an endpoint from Ray's store; None if the value is not one."""
    try:
        document = parse_json(value)
        found = ClusterEndpoint(*(document.get(name, "") for name in ClusterEndpoint._fields))
        valid = bool(_URL.fullmatch(found.http) and _URL.fullmatch(found.grpc) and _TOKEN.fullmatch(found.token))
        valid = valid and isinstance(found.certificate, str) and len(found.certificate) <= MAX_CERTIFICATE
        return found if valid else None
    except (ValueError, TypeError, AttributeError):
        return None


class _Taken:
    """The variables that this process has taken from the store."""

    names: frozenset[str] = frozenset()


def taken() -> frozenset[str]:
    """Return the names of the variables that `take` has set. They are valid on this node only: other processes read the store."""
    return _Taken.names


@error_boundary.never_raises("cluster endpoint")
def take(settings: dict[str, str] | None = None) -> bool:
    """Take the endpoint of this cluster into the environment, unless there is a destination of one's own. Returns whether it was.

    Args:
        settings: Settings that were given in code, as environment variables.
    """
    if _Taken.names or not cluster_store.is_connected() or names_destination({**os.environ, **(settings or {})}):
        return False
    found = _read()
    if found is None:
        return False
    variables = _name_endpoints(found)
    given = (settings or {}).get("VERL_OTEL_RUN_DIR")
    own: dict[str, Any] = {"run_dir": given} if given else {}
    try:
        folder = load_config(**own).run_dir / FOLDER
        variables[TOKEN_FILE] = _write(folder, "token", found.token)
        if found.certificate:
            variables[CERTIFICATE] = _write(folder, "authority.pem", found.certificate)
    except OSError as error:
        error_boundary.warn_once(
            "cluster endpoint", "verl-otel: nothing is sent to %s: the token cannot be written: %s", found.http, error
        )
        return False
    os.environ.update(variables)
    _Taken.names = frozenset(variables)
    return True


def _name_endpoints(found: ClusterEndpoint) -> dict[str, str]:
    """Return the variables of the endpoint: that of all signals, and of each signal whose protocol differs from theirs."""
    general = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()
    variables = {ENDPOINT: found.grpc if general == "grpc" else found.http}
    for signal in SIGNALS:
        own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "").strip() or general
        if (own == "grpc") != (general == "grpc"):
            url = found.grpc if own == "grpc" else f"{found.http}/v1/{signal}"
            variables[f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"] = url
    return variables


def names_destination(environ: dict[str, str]) -> bool:
    """Return whether an environment has a destination of its own, or exporters without OTLP."""
    exporters = environ.get(EXPORTERS, "").strip()
    if exporters and "otlp" not in (name.strip() for name in exporters.split(",")):
        return True
    return any(value.strip() and _OWN_DESTINATION.fullmatch(name) for name, value in environ.items())


def _read() -> ClusterEndpoint | None:
    """Read the store, for at most `READ_TIMEOUT` seconds."""
    value = None
    with error_boundary.suppress_errors("cluster endpoint"), contextlib.suppress(TimeoutError):
        value = call_for(READ_TIMEOUT, "verl-otel-endpoint", lambda: cluster_store.read(KEY))
    return decode(value) if value else None


def _write(folder: Path, name: str, text: str) -> str:
    """Write a private file, named by its content so that two clusters do not share one; returns its path."""
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}-{name}"
    safe_files.make_folder(folder)
    safe_files.write_secret(path, text)
    return str(path)


def _reset() -> None:
    _Taken.names = frozenset()


process_state.register(reset=_reset)
