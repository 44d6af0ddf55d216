# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ray beside ``verl-otel stack``: variables for ``ray start``, its metrics, its boards, and ports named as in other guides."""

import pytest
import yaml

from verl_otel.cli import stack_components
from verl_otel.cli.package_data import find_folder
from verl_otel.cli.stack_components import Plan

BOARDS = "ray/session_latest/metrics/grafana/dashboards"


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A plan on a machine whose Ray keeps its files below the test's folder."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "data").mkdir()
    return Plan(stack_components.choose_addresses({}), tmp_path / "data", tmp_path / "targets", tempo=False)


def test_the_variables_of_ray_start():
    """Both hosts of Grafana only where there is one; a shell takes the line as it is."""
    assert stack_components.make_ray_variables("http://127.0.0.1:9090") == "RAY_PROMETHEUS_HOST=http://127.0.0.1:9090"
    assert stack_components.make_ray_variables("http://127.0.0.1:9090", "http://127.0.0.1:3000").split() == [
        "RAY_PROMETHEUS_HOST=http://127.0.0.1:9090",
        "RAY_GRAFANA_HOST=http://127.0.0.1:3000",
        "RAY_GRAFANA_IFRAME_HOST=http://127.0.0.1:3000",
    ]


def test_ray_reads_these_variables():
    """Ray's own names, and the file and the folder that it writes."""
    module = pytest.importorskip("ray.dashboard.modules.metrics.metrics_head", reason="Ray is not installed")
    constants = pytest.importorskip("ray._private.ray_constants")
    names = {module.PROMETHEUS_HOST_ENV_VAR, module.GRAFANA_HOST_ENV_VAR, module.GRAFANA_IFRAME_HOST_ENV_VAR}
    assert {word.partition("=")[0] for word in stack_components.make_ray_variables("a", "b").split()} == names
    assert constants.PROMETHEUS_SERVICE_DISCOVERY_FILE in stack_components.make_ray_job()


def test_prometheus_scrapes_ray(plan, tmp_path):
    """The stack's Prometheus has one more job, which reads Ray's own file of targets."""
    jobs = yaml.safe_load(stack_components.write_settings(plan))["scrape_configs"]
    found = {each["job_name"]: each for each in jobs}
    assert set(found) == {"verl-by-otlp", "otelcol", "verl", "ray"}
    assert found["ray"]["file_sd_configs"] == [{"files": [f"{tmp_path}/ray/prom_metrics_service_discovery.json"]}]


def test_grafana_has_rays_boards(plan, tmp_path):
    """Where Ray has written its boards, Grafana loads them beside ours; a second start finds the same."""
    shipped = find_folder("dashboards") / "provisioning"
    folder = plan.make_folder("grafana")
    assert stack_components.add_ray_boards(shipped, folder) == shipped
    (tmp_path / BOARDS).mkdir(parents=True)
    for _ in range(2):
        made = stack_components.add_ray_boards(shipped, folder)
        assert (made / "datasources" / "verl.yaml").read_bytes() == (shipped / "datasources" / "verl.yaml").read_bytes()
        assert (made / "dashboards" / "verl.yaml").exists()
        (provider,) = yaml.safe_load((made / "dashboards" / "ray.yaml").read_text())["providers"]
        assert provider["options"] == {"path": str(tmp_path / BOARDS)}


@pytest.mark.parametrize(
    ("variables", "prometheus", "grafana"),
    [
        ({}, "127.0.0.1:9090", "127.0.0.1:3000"),
        ({"PROMETHEUS_PORT": "9191", "GF_SERVER_HTTP_PORT": "3333"}, "127.0.0.1:9191", "127.0.0.1:3333"),
        ({"PROMETHEUS_PORT": "9191", "STACK_PROMETHEUS": "10.0.0.1:9292"}, "10.0.0.1:9292", "127.0.0.1:3000"),
        ({"GF_SERVER_HTTP_PORT": " "}, "127.0.0.1:9090", "127.0.0.1:3000"),
    ],
)
def test_ports_of_other_guides_are_honoured(variables, prometheus, grafana):
    """PROMETHEUS_PORT and Grafana's own variable move them; the stack's variables win."""
    chosen = stack_components.choose_addresses(variables)
    assert (chosen["prometheus"], chosen["grafana"]) == (prometheus, grafana)
