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


def test_two_runs_without_telemetry_agree(plain_pair):
    """The bed itself is deterministic; without this the next test would prove nothing."""
    first, second = plain_pair
    assert first.returncode == second.returncode == 0, first.log[-3000:] + second.log[-3000:]
    assert len(results(first)) > 200
    assert results(first) == results(second)


def test_a_run_with_telemetry_agrees(plain_pair, full):
    """With files, OTLP and Prometheus on, every result is bit-identical."""
    assert results(full) == results(plain_pair[0])


def test_off_means_off(plain_pair):
    """Without the switch nothing is written although verl-otel is installed and loaded by verl."""
    assert not (plain_pair[0].out / "runs").exists()
