# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The files of collector/deploy: documents that parse and name what is there, and what is generated, fresh."""

import shutil
import subprocess
import sys

import pytest

from tests.collector.tiers import COLLECTOR
from verl_otel.cli import discover

yaml = pytest.importorskip("yaml")

DEPLOY = COLLECTOR / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


def test_every_yaml_parses():
    """Each YAML document of collector/deploy is one mapping or one list, and has the two lines of the licence."""
    paths = [*DEPLOY.rglob("*.yaml")]
    assert len(paths) > 20
    for path in paths:
        text = path.read_text("utf-8")
        assert text.startswith("# SPDX-FileCopyrightText: The verl-otel authors\n"), path
        for document in yaml.safe_load_all(text):
            assert isinstance(document, dict | list), path


def test_every_file_of_a_kustomization_is_there():
    """Each resource, component, patch and file that a kustomization names exists below kubernetes/, where kustomize may read it."""
    for path in KUBERNETES.rglob("kustomization.yaml"):
        document = yaml.safe_load(path.read_text("utf-8"))
        named = [*document.get("resources", []), *document.get("components", [])]
        named += [each["path"] for each in document.get("patches", []) if "path" in each]
        named += [name for each in document.get("configMapGenerator", []) for name in each["files"]]
        assert named or document["kind"] == "Component"
        for name in named:
            assert (path.parent / name).exists(), (path, name)
            assert path.parent in (path.parent / name).resolve().parents, (path, name)


def read_documents(name):
    return list(yaml.safe_load_all((KUBERNETES / name).read_text("utf-8")))


def test_prometheus_finds_the_service_that_lists_the_engines():
    """The ScrapeConfig asks the Service verl-otel-discover; its Deployment has the head's image and reads the store of the RayCluster beside it."""
    (scrape,), (cluster,) = read_documents("monitoring/trainings.yaml"), read_documents("kuberay/raycluster.yaml")
    deployment, service = read_documents("kuberay/discover.yaml")
    (url,) = [each["url"] for each in scrape["spec"]["httpSDConfigs"]]
    meta, (port,) = service["metadata"], service["spec"]["ports"]
    assert url == f"http://{meta['name']}.{meta['namespace']}:{port['port']}/"
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= service["spec"]["selector"].items()
    (container,) = pod["spec"]["containers"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == {port["targetPort"]: discover.PORT}
    assert container["command"][:3] == ["verl-otel", "discover", "--serve"]
    name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
    assert container["command"][-1] == f"{name}-head-svc.{namespace}:6379"
    (head,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert container["image"] == head["image"]


def test_what_is_generated_is_fresh(tmp_path):
    """generate.py writes, byte for byte, what is committed, and nothing else is there that it should have written."""
    subprocess.run([sys.executable, DEPLOY / "generate.py", "--out", tmp_path], check=True, capture_output=True)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert made >= {path.relative_to(DEPLOY) for path in (KUBERNETES / "base" / "configuration").iterdir()}
    for name in made:
        assert (tmp_path / name).read_bytes() == (DEPLOY / name).read_bytes(), (
            f"{name}: run collector/deploy/generate.py"
        )


def test_it_is_generated_from_an_export_as_well(tmp_path):
    """Who has no checkout exports configurations and boards, and gets the same files; without boards the reason is said."""
    shutil.copytree(COLLECTOR, tmp_path / "otel", ignore=shutil.ignore_patterns("otelcol", "prometheus"))
    command = [sys.executable, tmp_path / "otel" / "deploy" / "generate.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "verl-otel boards export" in done.stderr
    for kind in ("rules", "generated"):
        shutil.copytree(COLLECTOR.parent / "dashboards" / kind, tmp_path / "otel" / "dashboards" / kind)
    rules = tmp_path / "otel" / "deploy" / "kubernetes" / "monitoring" / "rules.yaml"
    rules.unlink()
    subprocess.run(command, check=True, capture_output=True)
    assert rules.read_bytes() == (KUBERNETES / "monitoring" / "rules.yaml").read_bytes()
