# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The plug-in: nothing at all while the switch is off, hooks and a waiting session when it is on, never an exception."""

import importlib.metadata
import json
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.smoke

LOOK = """
import json, sys, threading
finders = list(sys.meta_path)
{before}
import verl_otel.plugin
{after}
new = [type(each) for each in sys.meta_path if each not in finders]
own = [each.__name__ for each in new if each.__module__.startswith("verl_otel")]
loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "requests", "prometheus_client", "msgspec"))
from verl_otel.recording.state import RECORDER
print(json.dumps({{"own": own, "loaded": loaded, "on": RECORDER.on, "threads": threading.active_count()}}))
"""


@pytest.fixture
def process(clean_python, tmp_path):
    """Run a script in a clean environment with these variables."""

    def run(code, **variables):
        done = clean_python("-c", code, cwd=tmp_path, **{"VERL_OTEL_RUN_DIR": str(tmp_path / "runs"), **variables})
        return SimpleNamespace(out=done.stdout, err=done.stderr, seen=json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.fixture
def look(process):
    """Import the plug-in in a process and see what changed there."""

    def run(before="", after="", **variables):
        return process(LOOK.format(before=before, after=after), **variables)

    return run


OFF = {"own": [], "loaded": [], "on": False, "threads": 1}
FINDERS = ["_Finder", "_ReplacementFinder"]
"""The import finders: that of hooks is the first one, that of ``rl_insight`` the last one."""


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"VERL_OTEL_ENABLED": "0"},
        {"VERL_OTEL_ENABLED": "perhaps"},
        {"VERL_OTEL_ENABLED": "1", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_off_changes_nothing(look, tmp_path, variables):
    """With the switch off no OpenTelemetry module is loaded, no finder is there, no thread runs, no line is said."""
    result = look(**variables)
    assert result.seen == OFF
    assert not result.err
    assert not (tmp_path / "runs").exists()


def test_importing_the_package_loads_no_opentelemetry(look):
    """``import verl_otel`` alone, and looking at its names, loads no OpenTelemetry module."""
    assert look(before="import verl_otel\ndir(verl_otel)\nverl_otel.ConfigError").seen == OFF


def test_a_driver_of_ray_is_hooked_before_its_first_verb(process):
    """Its first step may come after ``ray.init``: the workers would have neither the run nor the context of the first calls."""
    code = """
import json, sys, types
ray = sys.modules["ray"] = types.ModuleType("ray")
ray.init, ray.shutdown, ray.is_initialized = print, print, lambda: False
import verl_otel
from verl_otel.integrations import patch
print(json.dumps(patch.status))
"""
    assert process(code, VERL_OTEL_ENABLED="1").seen["ray:init"] == "installed"
    assert process(code).seen == {}


def test_on_registers_hooks_and_waits(look, tmp_path):
    """With the switch on one finder waits for imports and recording is on; nothing is written yet.

    What the threads need is loaded already, and what only other exporters need is not.
    """
    result = look(VERL_OTEL_ENABLED="1")
    assert (result.seen["own"], result.seen["on"], result.seen["threads"]) == (FINDERS, True, 2)
    assert "opentelemetry.sdk.trace" in result.seen["loaded"]
    assert not [name for name in result.seen["loaded"] if name.startswith(("requests", "prometheus", "msgspec"))]
    (line,) = result.err.splitlines()
    assert line.startswith("verl-otel: enabled, but this program recorded nothing: ")
    assert not (tmp_path / "runs").exists()


def test_a_worker_that_recorded_nothing_logs_nothing(look):
    """Only the program that was started is expected to record."""
    assert not look(VERL_OTEL_ENABLED="1", VERL_OTEL_RUN_ID="r").err


def test_a_program_that_recorded_logs_nothing(look):
    """One span is enough."""
    assert not look(after="import verl_otel\nwith verl_otel.span('work'): pass", VERL_OTEL_ENABLED="1").err


def test_loading_twice_is_loading_once(look):
    """A second load, and the load of a worker, do nothing."""
    after = "verl_otel.plugin.load()\nverl_otel.plugin.load()\nimport importlib\nimportlib.import_module('verl_otel.plugin')"
    seen = look(after=after, VERL_OTEL_ENABLED="1").seen
    assert (seen["own"], seen["threads"]) == (FINDERS, 2)


def test_a_worker_loads_without_importing_verl(look):
    """The setup hook of a worker registers the hooks before anything else runs there."""
    after = "import os\nos.environ['VERL_OTEL_ENABLED'] = '1'\nverl_otel.plugin.load()"
    assert look(after=after).seen["own"] == FINDERS


def test_a_wrong_setting_is_one_line_and_the_import_goes_on(look):
    """A setting that cannot be used turns us off with one warning that names it."""
    result = look(VERL_OTEL_ENABLED="1", VERL_OTEL_EXPORTERS="kafka")
    assert (result.seen["on"], result.seen["own"]) == (False, [])
    (line,) = result.err.splitlines()
    assert line.startswith("verl-otel is off: ConfigError: VERL_OTEL_EXPORTERS='kafka': use a comma-separated list of")


@pytest.mark.parametrize("part", ["verl_otel.integrations", "verl_otel.integrations.verl"])
def test_a_broken_installation_is_one_line_and_the_import_goes_on(look, part):
    """Where a part of ours cannot be imported one warning says so, nothing records, and the host's import goes on."""
    result = look(before=f"sys.modules[{part!r}] = None", VERL_OTEL_ENABLED="1")
    (line,) = result.err.splitlines()
    assert line.startswith("verl-otel is off: ModuleNotFoundError: ")
    assert (result.seen["on"], result.seen["own"]) == (False, [])


def test_verl_finds_the_plug_in():
    """The entry point that verl asks for, and the one of OpenTelemetry's instrumentors, lead to us."""
    points = {point.value for point in importlib.metadata.entry_points(group="verl.plugins")}
    assert "verl_otel.plugin" in points
    points = {point.value for point in importlib.metadata.entry_points(group="opentelemetry_instrumentor")}
    assert "verl_otel.instrumentor:VerlInstrumentor" in points


def test_a_host_that_is_imported_later_is_hooked(process, tmp_path):
    """Verl's classes are patched as they are imported, and what they record is written at the end."""
    package = tmp_path / "verl" / "utils"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package.parent / "__init__.py").write_text("import verl_otel.plugin  # as its entry point does\n")
    (package / "tracking.py").write_text(
        "class Tracking:\n"
        "    def __init__(self, project_name, experiment_name, default_backend='console', config=None): ...\n"
        "    def log(self, data, step, backend=None): print('logged', data, step)\n"
        "    def finish(self, exit_code=0): print('finished', exit_code)\n"
    )
    code = """
from verl.utils.tracking import Tracking
tracking = Tracking("p", "e")
tracking.log({"actor/loss": 0.5}, 1)
tracking.finish()
import json
from verl_otel.integrations import patch
print(json.dumps(patch.status))
"""
    variables = {"PYTHONPATH": str(tmp_path), "VERL_OTEL_ENABLED": "1", "VERL_OTEL_RUN_ID": "r1"}
    result = process(code, **variables)
    assert result.out.splitlines()[:2] == ["logged {'actor/loss': 0.5} 1", "finished 0"]
    hooked = {key: state for key, state in result.seen.items() if ":Tracking." in key}
    assert hooked == {f"verl.utils.tracking:Tracking.{name}": "installed" for name in ("log", "__init__", "finish")}
    (path,) = (tmp_path / "runs" / "r1").glob("metrics-*")
    assert '"verl.actor.loss"' in path.read_text()
    assert json.loads((tmp_path / "runs" / "r1" / "run.json").read_text())["verl.project"] == "p"


def test_a_training_does_not_load_what_reads_runs(clean_python):
    """Every process of a training would have its memory: 4 MB of msgspec, 3 MB of HTTP."""
    code = "import sys, verl_otel.session.live_verdicts; print({'msgspec', 'urllib.request', 'subprocess'} & set(sys.modules))"
    assert clean_python("-c", code).stdout == "set()\n"
