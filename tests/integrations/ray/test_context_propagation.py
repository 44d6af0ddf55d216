# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The receiving side of Ray's calls, with a helper of Ray's that is made up here."""

import contextlib
import sys
import types

import pytest

from verl_otel._internal import error_boundary
from verl_otel.integrations import spans
from verl_otel.integrations.ray import context_propagation


@contextlib.contextmanager
def no_entry():
    """A span that cannot be entered."""
    raise RuntimeError("no entry")
    yield


@pytest.mark.usefixtures("recorded")
def test_a_span_that_cannot_be_entered_does_not_reach_the_call(monkeypatch):
    """The method of the actor runs, without a span."""
    monkeypatch.delenv(error_boundary.RAISE_INTERNAL_ERRORS, raising=False)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(__file__="/site/ray/__init__.py"))
    monkeypatch.setitem(spans.OPENERS, "generate", lambda _: no_entry())
    helper = types.ModuleType("helper")
    helper._is_tracing_enabled = helper._get_opentelemetry = bool
    helper._opentelemetry = helper._global_is_tracing_enabled = None
    helper._actor_hydrate_span_args = helper._function_hydrate_span_args = None
    context_propagation.silence_ray(helper)
    tracer = helper._opentelemetry.trace.get_tracer("ray")
    with tracer.start_as_current_span("Server.generate ray.remote_worker"):
        answer = 42
    assert answer == 42
