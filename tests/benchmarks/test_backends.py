# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The backends do what they are measured for: what is called arrives, as often as it was called."""

import re

import pytest
from prometheus_client import generate_latest

from benchmarks import processes
from benchmarks.backends.opentelemetry_sdk import OpenTelemetry
from benchmarks.backends.ours import Ours
from benchmarks.backends.prometheus import Prometheus
from benchmarks.case import BASELINE, load_cases
from verl_otel import session

HOT = [case for case in load_cases().values() if case.suite == "hot"]


def registry_of(backend):
    if isinstance(backend, Ours):
        return session.current_session().outputs.exporters[0].registry
    return backend._registry


@pytest.fixture(params=["ours", "opentelemetry", "prometheus"])
def backend(request, monkeypatch, tmp_path):
    """Each of them, shown to Prometheus."""
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(tmp_path))
    made = {"ours": lambda: Ours("prometheus"), "opentelemetry": OpenTelemetry, "prometheus": Prometheus}[
        request.param
    ]()
    yield made
    made.close()


def counts(backend):
    """How many values each histogram has, and each counter's sum."""
    backend.deliver()
    text = generate_latest(registry_of(backend)).decode()
    found = re.findall(r"^(bench_\w+?)(?:_seconds)?(_count|_total)\S* (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, _, value in found}


@pytest.mark.full
def test_every_call_is_counted(backend):
    """Functions and blocks, 2,500 times each: more than a buffer of ours holds."""

    def work():
        return None

    function = backend.timed(work)
    for _ in range(2500):
        function()
    block = compile(backend.timed_block, "<block>", "exec")
    names = {"r": backend.timed_region()}
    for _ in range(2500):
        exec(block, names)
    found = counts(backend)
    assert found["bench_work"] + found.get("bench_block", 0) == 5000


def test_every_addition_is_counted(backend):
    """Five, as often as it was said."""
    statement = compile(backend.addition, "<addition>", "exec")
    names = {"c": backend.counter(), "a": {"model": "qwen"}}
    for _ in range(1500):
        exec(statement, names)
    assert counts(backend)["bench_things"] == 7500


@pytest.mark.full
@pytest.mark.sources
@pytest.mark.parametrize("case", HOT, ids=lambda case: case.name)
def test_each_case_can_be_measured(case):
    """One round of every case of a call, in a process of its own; none is missing where the tests' packages are."""
    found = processes.measure(case, rounds=1)
    assert not found.missing
    assert set(found.seconds) == {variant.name for variant in case.variants}
    assert all(value > 0 for name, values in found.seconds.items() if name != BASELINE for value in values)
