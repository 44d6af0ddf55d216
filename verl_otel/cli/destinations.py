# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The part of ``verl-otel check`` that looks at where telemetry goes: a folder, an OTLP endpoint, a port."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from verl_otel.cli.cluster import Finding
from verl_otel.config import Config
from verl_otel.errors import ConfigError

MIN_FREE_BYTES: Final = 1 << 30
REINSTALL: Final = "reinstall verl-otel and its dependencies: pip install --force-reinstall verl-otel"


def check_exporters(settings: Config) -> Iterator[Finding]:
    """Whether each exporter can do its work."""
    checks = {
        "file": ("files", "files", _check_files),
        "otlp": ("OTLP", "otlp", _check_otlp),
        "prometheus": ("Prometheus", "prometheus", _check_port),
        "console": ("console", "console", _check_nothing),
    }
    for subject, module, check in (checks[name] for name in settings.exporters):
        try:
            import_module(f"verl_otel.exporting.{module}")
            yield from check(settings)
        except ImportError as error:
            yield Finding("fail", subject, f"cannot be loaded: {error}", REINSTALL)
    if not settings.exporters:
        yield Finding("note", "exporters", "none: nothing is written or sent")


def _check_nothing(_: Config) -> Iterator[Finding]:
    return iter(())


def _check_files(settings: Config) -> Iterator[Finding]:
    folder = settings.run_dir
    try:
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
        free = shutil.disk_usage(existing).free
    except OSError:  # a folder above it may not be looked into, or its name is too long
        writable, free = False, 0
    if not writable:
        yield Finding(
            "fail", "files", f"{folder} cannot be written", "set VERL_OTEL_RUN_DIR to a folder of the training's user"
        )
        return
    if free < MIN_FREE_BYTES:
        yield Finding(
            "fail",
            "files",
            f"{folder}: only {free >> 20} MiB free",
            "make room, or set VERL_OTEL_RUN_DIR to another disk",
        )
    else:
        yield Finding("ok", "files", f"{folder} can be written, {free >> 30} GiB free")


def _check_otlp(settings: Config) -> Iterator[Finding]:
    from verl_otel.exporting.endpoint import SIGNALS, load_endpoint
    from verl_otel.exporting.transport import connect

    for signal in SIGNALS:
        try:
            endpoint = load_endpoint(signal, settings.token_file)
            transport = connect(endpoint)
        except (ConfigError, OSError) as error:
            yield Finding("fail", f"OTLP {signal}", str(error), "correct the OTEL_EXPORTER_OTLP_* variables")
            continue
        answer = transport.send(b"", 5.0)
        transport.close()
        if answer.ok:
            yield Finding("ok", f"OTLP {signal}", f"{endpoint.url} takes requests")
        else:
            advice = (
                "start the Collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT"
                if answer.retry
                else "check path, token and protocol"
            )
            yield Finding("fail", f"OTLP {signal}", answer.reason, advice)


def _check_port(settings: Config) -> Iterator[Finding]:
    host, port = settings.prometheus_host, settings.prometheus_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        yield Finding(
            "fail",
            "Prometheus",
            f"{host}:{port} cannot be bound: {error.strerror}",
            "set VERL_OTEL_PROMETHEUS_PORT=0 for a free port",
        )
        return
    if port:
        text = f"{host}:{port} is free, but a run has several processes on a machine"
        yield Finding(
            "note", "Prometheus", text, "leave VERL_OTEL_PROMETHEUS_PORT at 0 and let Prometheus read the targets file"
        )
    else:
        yield Finding(
            "ok", "Prometheus", f"{host}, a free port for each process; targets in {settings.run_dir / 'targets'}"
        )
