# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whole processes with telemetry."""

from tests.builders.processes import environ, files, run, spawn, start

__all__ = ["environ", "files", "run", "spawn", "start"]
