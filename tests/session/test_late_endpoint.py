# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An OTLP endpoint that becomes known after the start: a driver learns that of its cluster when it has joined it."""

import pytest

import verl_otel
from tests.fakes.otlp_sink import Sink
from verl_otel import resource, session


def record(number):
    with verl_otel.step(number):
        pass


@pytest.mark.parametrize("opened", [False, True], ids=["before the first record", "after the first record"])
def test_it_is_used_from_then_on(start, monkeypatch, opened):
    """What is recorded afterwards is sent, metrics from the beginning; the files go on."""
    files = start(exporters=None, drain_interval=60)
    if opened:
        record(1)
        session.flush()
    with Sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        session.current_session().reload_settings()
        record(2)
        verl_otel.shutdown()
        assert len(sink.span_ids()) == 1
        steps = [value for (name, _, _), value in sink.numbers().items() if name == "verl.training.steps"]
        assert steps == [1 + opened]
    assert files.names().count("verl.step") == 1 + opened


def test_a_session_that_is_not_open_yet_opens_with_it(monkeypatch, tmp_path):
    """A driver that records nothing before it joins its cluster opens both exporters at the first record."""
    monkeypatch.setenv("VERL_OTEL_ENABLED", "1")
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(tmp_path / "runs"))
    session.start_lazily()
    try:
        with Sink() as sink:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
            session.current_session().reload_settings()
            assert not session.current_session().opened
            record(1)
            verl_otel.shutdown()
            assert len(sink.span_ids()) == 1
    finally:
        verl_otel.shutdown()
        resource.clear()


def test_settings_in_code_stay(start, monkeypatch):
    """Exporters that ``verl_otel.init`` was given are those that are used."""
    start(exporters="file")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    session.current_session().reload_settings()
    assert session.current_session().config.exporters == ("file",)
    verl_otel.shutdown()
