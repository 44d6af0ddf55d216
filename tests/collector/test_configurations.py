# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The configurations as the real programs read them: valid in every combination, on the loopback, of the parts that are built."""

import itertools
import json
import os
import re
import subprocess

import pytest

from tests.collector.tiers import COLLECTOR, variables_of
from verl_otel.cli import discover

yaml = pytest.importorskip("yaml")

BASES = {"local.yaml": True, "gateway.yaml": True, "agent.yaml": False}
"""The configurations that stand alone, and whether the overlays below go on top of them."""
OVERLAYS = (
    "metrics-by-otlp.yaml",
    "metrics-by-remote-write.yaml",
    "traces-to-file.yaml",
    "span-metrics.yaml",
    "rl-names.yaml",
    "openinference.yaml",
)
COMBINATIONS = [
    *((base,) for base in BASES),
    *((base, each) for base, mixes in BASES.items() if mixes for each in OVERLAYS),
    *((base, *pair) for base, mixes in BASES.items() if mixes for pair in itertools.combinations(OVERLAYS[1:], 2)),
    ("gateway.yaml", "metrics-by-otlp.yaml", "traces-to-file.yaml", "span-metrics.yaml"),
    ("agent.yaml", "agent-engines.yaml"),
    ("local.yaml", "token.yaml"),
    ("local.yaml", "traces-to-file.yaml", "token.yaml", "tls.yaml"),
    ("local.yaml", "logs-by-otlp.yaml"),
    ("gateway.yaml", "logs-by-otlp.yaml"),
]


def read(name):
    return yaml.safe_load((COLLECTOR / name).read_text("utf-8"))


def find_texts(value):
    """Return every text in a document."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in find_texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in find_texts(each)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize(
    "files", COMBINATIONS, ids=lambda files: "+".join(each.removesuffix(".yaml") for each in files)
)
def test_the_collector_takes_it(programs, credentials, tmp_path, files):
    """``otelcol-verl validate`` accepts each configuration and each combination that the README names."""
    variables = {**variables_of(credentials(), "gateway"), "OTELCOL_STATE_DIR": tmp_path}
    done = subprocess.run(
        [programs.otelcol, "validate", *(f"--config={COLLECTOR / each}" for each in files)],
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_file_is_in_a_combination():
    """A new configuration is validated, too."""
    others = {"compose.yaml", "tempo.yaml", "otelcol-manifest.yaml"}
    assert {path.name for path in COLLECTOR.glob("*.yaml")} - others == set(itertools.chain(*COMBINATIONS))


def test_exactly_what_is_used_is_built_in():
    """The manifest names each part that a configuration uses, and no other."""
    types = {
        "healthcheck": "health_check", "filestorage": "file_storage", "otlphttp": "otlp_http", "memorylimiter": "memory_limiter",
        "tailsampling": "tail_sampling", "spanmetrics": "span_metrics",
    }  # fmt: skip
    built = set()
    for kind, parts in read("otelcol-manifest.yaml").items():
        for part in parts if kind not in ("dist", "providers") else []:
            name = re.fullmatch(r".*/(\w+?)(?:extension|receiver|processor|exporter|connector)? v\S+", part["gomod"])[1]
            name = "otlp_grpc" if (kind, name) == ("exporters", "otlp") else types.get(name, name)
            built.add((kind, name))
    used = {
        (kind, name.partition("/")[0])
        for file in set(itertools.chain(*COMBINATIONS))
        for kind, parts in read(file).items()
        if kind != "service"
        for name in parts
    }
    assert used == built


def test_nothing_listens_outside_unless_told():
    """Every address in every configuration is the loopback by default."""
    for name in set(itertools.chain(*COMBINATIONS)) | {"prometheus.yml", "tempo.yaml"}:
        text = (COLLECTOR / name).read_text("utf-8")
        found = re.findall(r"(?<![\w.])((?:\d{1,3}\.){3}\d{1,3})", text)
        assert set(found) <= {"127.0.0.1"}, name
        assert not re.findall(r"endpoint: *[\"']?(?:\$\{env:\w+:-)?:\d", text), name


def test_every_port_is_a_variable():
    """Two of anything can run on one machine: no port is written but as the default of a variable."""
    for name in set(itertools.chain(*COMBINATIONS)):
        for text in find_texts(read(name)):
            rest = re.sub(r"\$\{env:\w+:-[^}]*\}", "", text)
            assert not re.search(r"(?:127\.0\.0\.1|localhost):\d+", rest), (name, text)


def test_prometheus_takes_its_settings(programs, tmp_path):
    """``promtool check config`` accepts prometheus.yml."""
    (tmp_path / "rules").mkdir()
    settings = tmp_path / "prometheus.yml"
    settings.write_bytes((COLLECTOR / "prometheus.yml").read_bytes())
    done = subprocess.run([programs.promtool, "check", "config", settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def test_compose_publishes_on_the_loopback_only():
    """What compose.yaml opens is reachable from this machine only: by its ports, or by its address on the network of the host."""
    services = read("compose.yaml")["services"]
    on_the_host = {name for name, service in services.items() if service.get("network_mode") == "host"}
    assert on_the_host == {"prometheus", "grafana"}
    assert "--web.listen-address=127.0.0.1:${PROMETHEUS_PORT:-9090}" in services["prometheus"]["command"]
    grafana = services["grafana"]["environment"]
    assert grafana["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert grafana["GF_SERVER_HTTP_PORT"] == "${GF_SERVER_HTTP_PORT:-3000}"
    assert grafana["PROMETHEUS_URL"] == "http://127.0.0.1:${PROMETHEUS_PORT:-9090}"
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert name not in on_the_host or "ports" not in service


def interpolate(text, **variables):
    """Return the content of a file as Docker Compose writes it: with the values of variables, or their defaults."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: variables.get(match[1], match[2]), text)


@pytest.mark.parametrize("variables", [{}, {"ALERTMANAGER": "127.0.0.1:9093"}])
def test_compose_sends_alerts_to_the_alertmanager_of_its_variable(variables):
    content = read("compose.yaml")["configs"]["prometheus"]["content"]
    alerting = yaml.safe_load(interpolate(content, **variables))["alerting"]
    assert alerting == {"alertmanagers": [{"static_configs": [{"targets": [*variables.values()]}]}]}


def test_compose_scrapes_collector_engines_and_processes(programs, tmp_path):
    """Its Prometheus takes its settings; the Collector's pages are published where it scrapes, engines and processes come from ``discover --serve``."""
    document = read("compose.yaml")
    for config in document["configs"].values():
        assert isinstance(yaml.safe_load(interpolate(config["content"])), dict)
    text = interpolate(document["configs"]["prometheus"]["content"])
    (tmp_path / "rules").mkdir()
    (tmp_path / "prometheus.yml").write_text(text)
    command = [programs.promtool, "check", "config", tmp_path / "prometheus.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    jobs = {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}
    published = {port.rpartition(":")[0] for port in document["services"]["otelcol"]["ports"]}
    for name in ("verl-by-otlp", "otelcol"):
        assert set(jobs[name]["static_configs"][0]["targets"]) <= published
    assert jobs["verl"]["http_sd_configs"][0]["url"] == f"http://127.0.0.1:{discover.PORT}/"
    guide = (
        (COLLECTOR.parent / "docs" / "how-to" / "bring-up.md")
        .read_text("utf-8")
        .partition("## One machine: Docker Compose")[2]
    )
    assert "verl-otel discover --serve" in guide.partition("\n## ")[0]


def test_the_readme_has_every_variable_and_file():
    """Each variable of a configuration is in the README's table with its default, and none that is not there."""
    text = (COLLECTOR / "README.md").read_text("utf-8")
    rows = [line for line in text.partition("## Variables")[2].splitlines() if line.startswith("| `OTELCOL_")]
    documented = {name: row for row in rows for name in re.findall(r"`(OTELCOL_\w+)`", row.split("|")[1])}
    used = {}
    for name in set(itertools.chain(*COMBINATIONS)):
        for variable, default in re.findall(r"\$\{env:(OTELCOL_\w+):-([^}]*)\}", (COLLECTOR / name).read_text("utf-8")):
            used.setdefault(variable, set()).add(default)
    assert documented.keys() == used.keys()
    for variable, defaults in used.items():
        for default in defaults:
            assert default.removeprefix("/etc/otelcol/") in documented[variable], (variable, default)
    for path in {*COLLECTOR.glob("*.yaml"), *COLLECTOR.glob("*.sh")} - {COLLECTOR / "tempo.yaml"}:
        assert f"{path.name}" in text, path.name


def test_what_is_written_twice_is_the_same():
    """The files stand alone, so each is whole; what local.yaml shares with gateway.yaml and agent.yaml does not drift apart."""
    local, gateway, agent = read("local.yaml"), read("gateway.yaml"), read("agent.yaml")
    for name in ("transform/labels", "filter/at_once", "filter/trajectories", "filter/not_yet_sent"):
        assert local["processors"][name] == gateway["processors"][name]
    assert local["processors"]["transform/guard"] == agent["processors"]["transform/guard"]
    policies = [json.dumps(each["processors"]["tail_sampling"]["policies"]) for each in (local, gateway)]
    assert re.sub(r":-\d+\}", "", policies[0]) == re.sub(r":-\d+\}", "", policies[1])
    assert local["exporters"]["prometheus/metrics"] == gateway["exporters"]["prometheus/metrics"]
    composed = yaml.safe_load(interpolate(read("compose.yaml")["configs"]["prometheus"]["content"]))["scrape_configs"]
    alone = {each["job_name"]: each for each in read("prometheus.yml")["scrape_configs"]}
    for job in composed:
        assert strip(job) == strip(alone[job["job_name"]])


def strip(job):
    """Return a job without where its targets come from."""
    return {key: value for key, value in job.items() if not key.endswith("_configs")}


def test_no_scraped_page_is_unlimited():
    """Every scrape of what trainings serve is bounded in samples, labels and bytes: a page without an end takes no memory without end."""
    engines = read("agent-engines.yaml")["receivers"]["prometheus/engines"]["config"]["scrape_configs"]
    for job in [*engines, *read("prometheus.yml")["scrape_configs"]]:
        if job["job_name"] != "otelcol":
            assert {"sample_limit", "body_size_limit", "label_limit", "label_value_length_limit"} <= job.keys()
    for name in ("trainings", "collectors"):
        path = COLLECTOR / "deploy" / "kubernetes" / "monitoring" / f"{name}.yaml"
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            if "sampleLimit" in document["spec"] or name == "trainings":
                assert {"bodySizeLimit", "labelLimit", "labelValueLengthLimit"} <= document["spec"].keys()


def test_memory_is_limited_first_and_queues_are_on_the_disk():
    """Whatever comes from a receiver meets the memory limiter first; what leaves over the network waits in a queue on the disk, batched there."""
    for name in BASES:
        document = read(name)
        for pipeline in document["service"]["pipelines"].values():
            if pipeline["receivers"] == ["otlp"]:
                assert pipeline["processors"][0] == "memory_limiter"
            assert not [each for each in pipeline["processors"] if each.startswith("batch")]
        for exporter, settings in document["exporters"].items():
            if not exporter.startswith(("prometheus/", "file/")):
                assert settings["sending_queue"]["storage"] == "file_storage/queue", (name, exporter)
                assert settings["sending_queue"]["batch"]
                assert settings["retry_on_failure"]["max_elapsed_time"] == "0s"
