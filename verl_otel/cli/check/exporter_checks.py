# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The checks of ``verl-otel check`` for the destinations of telemetry: a folder, an OTLP endpoint, a port."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from verl_otel.cli.check.cluster import Finding
from verl_otel.config import Config
from verl_otel.errors import ConfigError
from verl_otel.exporting.http_server import show_address, strip_brackets
from verl_otel.model import SIGNALS

MIN_FREE_BYTES: Final = 1 << 30
_FREE_PORTS: Final = "leave VERL_OTEL_PROMETHEUS_PORT at 0 and let Prometheus read the targets files"
REINSTALL: Final = "reinstall verl-otel and its dependencies: pip install --force-reinstall verl-otel"


def check_exporters(settings: Config) -> Iterator[Finding]:
    """Check every configured exporter."""
    checks = {
        "file": ("files", "files", _check_files),
        "otlp": ("OTLP", "otlp", _check_otlp),
        "prometheus": ("Prometheus", "prometheus", _check_port),
        "console": ("console", "console", _check_nothing),
        "tensorboard": ("TensorBoard", "tensorboard", _check_nothing),
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
    problem, free = _examine(folder)
    if problem:
        yield Finding(
            "fail", "files", f"{folder} {problem}", "set VERL_OTEL_RUN_DIR to a folder of the training's user"
        )
    elif free < MIN_FREE_BYTES:
        yield Finding(
            "fail",
            "files",
            f"{folder}: only {free >> 20} MiB free",
            "make room, or set VERL_OTEL_RUN_DIR to another disk",
        )
    else:
        yield Finding("ok", "files", f"{folder} can be written, {free >> 30} GiB free")


def _examine(folder: Path) -> tuple[str, int]:
    """Return why a folder cannot be created or written (empty: it can), and the free bytes of its disk."""
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
        usage = shutil.disk_usage(existing)
    except OSError:  # a parent folder is not accessible, or the name is too long
        return "cannot be written", 0
    if writable and usage.total:
        return "", usage.free
    if existing == folder or not existing.is_dir():
        return "cannot be written", 0
    # A file system without a size, such as /proc, reports write access to root, and has no files of users.
    return f"does not exist and cannot be created: {existing} cannot be written", 0


def _check_otlp(settings: Config) -> Iterator[Finding]:
    from verl_otel.exporting.otlp.transport import sent_signals

    sent = sent_signals()
    for signal in SIGNALS:
        if signal not in sent:
            advice = "set OTEL_EXPORTER_OTLP_ENDPOINT to send all signals"
            yield Finding("note", f"OTLP {signal}", "not sent: only other signals have an endpoint", advice)
            continue
        finding = _ask_endpoint(signal, settings)
        if finding.state == "fail" and signal == "logs":  # spans and metrics do not depend on it
            finding = Finding("note", finding.subject, finding.text, "the run log is not sent there; its file holds it")
        yield finding


def _ask_endpoint(signal: str, settings: Config) -> Finding:
    """Send an empty request to the endpoint of a signal, and return what it answers."""
    from verl_otel.exporting.otlp.transport import connect, load_endpoint

    name = f"OTLP {signal}"
    try:
        endpoint = load_endpoint(signal, settings.token_file)
        transport = connect(endpoint)
    except (ConfigError, OSError) as error:
        return Finding("fail", name, str(error), "correct the OTEL_EXPORTER_OTLP_* variables")
    answer = transport.send(b"", 5.0)
    transport.close()
    if answer.ok:
        return Finding("ok", name, f"{endpoint.shown} takes requests")
    if answer.retry:
        return Finding("fail", name, answer.reason, "start the Collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT")
    return Finding("fail", name, answer.reason, "check path, token and protocol")


def _check_port(settings: Config) -> Iterator[Finding]:
    host, port = strip_brackets(settings.prometheus_host), settings.prometheus_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    shown = show_address(host, port)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except UnicodeError as error:  # no name of a host
        text = f"{shown} cannot be bound: {error}"
        yield Finding("fail", "Prometheus", text, "set VERL_OTEL_PROMETHEUS_HOST to an address of this machine")
        return
    except OSError as error:
        if port and error.errno == errno.EADDRINUSE:
            text = f"{shown} is in use: all processes of a run take free ports"
            yield Finding("note", "Prometheus", text, _FREE_PORTS)
            return
        text = f"{shown} cannot be bound: {error.strerror}"
        yield Finding("fail", "Prometheus", text, "set VERL_OTEL_PROMETHEUS_HOST to an address of this machine")
        return
    if port:
        text = f"{shown} is free: one process of a run takes it, all others take free ports"
        yield Finding("note", "Prometheus", text, _FREE_PORTS)
    else:
        yield Finding(
            "ok", "Prometheus", f"{host}, a free port for each process; targets in {settings.run_dir / 'targets'}"
        )
