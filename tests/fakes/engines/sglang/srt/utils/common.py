# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of the part of SGLang's utilities that tells its processes where their metrics are."""

import os
import tempfile

prometheus_multiproc_dir: tempfile.TemporaryDirectory


def set_prometheus_multiproc_dir():
    global prometheus_multiproc_dir
    prometheus_multiproc_dir = tempfile.TemporaryDirectory(dir=os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
    os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", prometheus_multiproc_dir.name)


def add_prometheus_middleware(app):
    """Give what SGLang's ``/metrics`` shows."""
    from prometheus_client import CollectorRegistry, generate_latest, multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    app.append(generate_latest(registry).decode())
