# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel check`` of the destinations of telemetry."""

import pytest

from verl_otel import config
from verl_otel.cli import check
from verl_otel.config import EXPORTERS


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_exporter_has_a_check(exporter, tmp_path, monkeypatch):
    """Whatever is configured is checked, and nothing raises."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    settings = config.load({}, exporters=exporter, run_dir=str(tmp_path))
    assert all(finding.state in ("ok", "note", "fail") for finding in check.check_exporters(settings))
