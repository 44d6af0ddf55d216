# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Telemetry changes nothing: on the deterministic bed every result is the same to the bit."""

import pytest

pytestmark = pytest.mark.verl

TIMED = ("timing_s/", "timing_per_token_ms/", "perf/")


def results(training):
    """Every scalar that is no time, as text, so that not even the last bit may differ."""
    return {
        (step, key): repr(value)
        for step, data in training.scalars().items()
        for key, value in data.items()
        if not key.startswith(TIMED) and "cpu_memory" not in key
    }


def test_a_run_with_telemetry_agrees(plain, full):
    """With files, OTLP and Prometheus on, every result is bit-identical to that of a run without telemetry."""
    assert plain.returncode == 0, plain.log[-3000:]
    assert len(results(plain)) > 200
    assert results(full) == results(plain)


def test_off_means_off(plain):
    """Without the switch nothing is written although verl-otel is installed and loaded by verl."""
    assert not (plain.out / "runs").exists()
