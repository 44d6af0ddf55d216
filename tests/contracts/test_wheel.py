# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel, as a user gets it: built, installed into an empty environment, run."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.builders.environments import inherit

pytestmark = [pytest.mark.sources, pytest.mark.smoke]

TOP = Path(__file__).resolve().parents[2]
SCRIPT = """
import verl_otel
verl_otel.init(exporters="file", run_dir="runs", run_id="r")
with verl_otel.step(1), verl_otel.phase("gen"):
    pass
"""
LOOK = """
import importlib.util
for name in ("verl_otel", "verl", "ray", "torch"):
    found = importlib.util.find_spec(name)
    print(found and found.origin)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the sources."""
    copy = tmp_path_factory.mktemp("sources") / "project"
    copy.mkdir()
    for name in ("verl_otel", "collector", "dashboards"):
        shutil.copytree(TOP / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", copy / "dist", copy]
    subprocess.run(command, check=True, capture_output=True)
    return next((copy / "dist").glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    """No test, no document and no cache is installed beside the package."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"verl_otel", wheel.name.split("-py3")[0] + ".dist-info"}
    assert "verl_otel/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]
    assert {"verl_otel/_data/collector/local.yaml", "verl_otel/_data/collector/otelcol/go.sum"} <= set(names)
    assert "verl_otel/_data/dashboards/generated/overview.json" in names
    recorded = TOP / "verl_otel" / "cli" / "demo"
    assert {f"verl_otel/cli/demo/{path.relative_to(recorded)}" for path in recorded.rglob("recorded/*/*.*")} <= set(
        names
    )
    assert not [name for name in names if name.startswith("verl_otel/_data/dashboards") and name.endswith(".py")]


def test_it_works_in_an_empty_environment(wheel, tmp_path):
    """Installed with its dependencies and nothing else it records, reports, checks and shows its demo; verl, Ray and torch are not needed."""
    uv = TOP / ".cache" / "uv" / "bin" / "uv"
    if not uv.exists():
        pytest.skip("uv is not here: run by make")
    environment = tmp_path / "empty"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    lock = TOP / "requirements" / "unit.txt"
    install = [uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python", "--constraint", lock, wheel]
    subprocess.run(install, check=True)
    environ = inherit("PYTHON", "VERL_", "PYTEST")

    def run(*command, code=0):
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    run(environment / "bin" / "python", "-W", "error", "-c", SCRIPT)
    assert "1 step," in run(environment / "bin" / "verl-otel", "report", "runs/r")
    assert "tool add" in run(environment / "bin" / "verl-otel", "demo")
    assert "note verl: not installed in this environment" in run(environment / "bin" / "verl-otel", "check")
    run(environment / "bin" / "verl-otel", "collector", "export", "otel")
    assert (tmp_path / "otel" / "local.yaml").read_text() == (TOP / "collector" / "local.yaml").read_text()
    run(environment / "bin" / "verl-otel", "boards", "export", "grafana")
    board = Path("generated") / "overview.json"
    assert (tmp_path / "grafana" / board).read_text() == (TOP / "dashboards" / board).read_text()
    where, *hosts = run(environment / "bin" / "python", "-c", LOOK).splitlines()
    assert Path(where).is_relative_to(environment), "not the wheel was tested"
    assert hosts == ["None"] * 3


BESIDE = (
    "opentelemetry-sdk",
    "opentelemetry-sdk==1.27.0",
    "opentelemetry-sdk==1.45.2",  # has no instrumentation of aiohttp
    "vllm",
    "sglang",
    "ray[default]",
    "verl",
    "wandb",
    "mlflow",
)


@pytest.mark.full
@pytest.mark.parametrize("other", BESIDE)
def test_it_resolves_beside(wheel, tmp_path, other):
    """The wheel fits the newest and the oldest OpenTelemetry, and the newest release of what it is used with: no other version is chosen for it."""
    uv = TOP / ".cache" / "uv" / "bin" / "uv"
    if not uv.exists():
        pytest.skip("uv is not here: run by make")

    def resolve(*wanted):
        requirements = tmp_path / "requirements.in"
        requirements.write_text("\n".join(map(str, wanted)))
        command = [
            uv,
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--python-version",
            "3.11",
            requirements,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return {name: version for name, _, version in (line.partition("==") for line in done.stdout.splitlines())}

    name = other.partition("[")[0].partition("=")[0]
    assert resolve(other, f"verl-otel @ {wheel.as_uri()}")[name] == resolve(other)[name]


OLDEST = "opentelemetry-sdk==1.27.0"
NEIGHBOURS = (
    "opentelemetry-sdk",
    OLDEST,
    "opentelemetry-exporter-otlp",
    "vllm",
    "sglang",
    "ray[default]",
    "wandb",
    "mlflow",
)
"""What is in one environment with verl-otel, newest versions but for one."""


def resolve(*requirements):
    """Return the versions that a new environment would get, by name; a text if there is none. Nothing is installed."""
    uv = TOP / ".cache" / "uv" / "bin" / "uv"
    if not uv.exists():
        pytest.skip("uv is not here: run by make")
    command = [uv, "pip", "compile", "--no-header", "--no-annotate", "--python-version", "3.12", "-"]
    done = subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr
    pinned = [line.partition("==") for line in done.stdout.splitlines()]
    return {name: version for name, equal, version in pinned if equal}


@pytest.mark.full
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_it_fits_beside_others(wheel, neighbour):
    """Resolved together, each package of the neighbour has the version that it has alone: verl-otel takes none of them back."""
    alone = resolve(neighbour)
    if isinstance(alone, str):
        pytest.skip(f"the package index does not serve {neighbour}: {alone[-300:]}")
    together = resolve(neighbour, f"verl-otel @ {wheel.as_uri()}")
    assert isinstance(together, dict), together
    if neighbour == OLDEST:  # its instrumentation packages have an upper bound of `wrapt`
        alone.pop("wrapt")
    assert {name: together.get(name) for name in alone} == alone
