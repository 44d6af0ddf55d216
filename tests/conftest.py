# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of every test, and the check that no test leaves something switched on."""

import gc
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

from tests.builders.environments import inherit
from verl_otel._internal import error_boundary, process_state
from verl_otel.analysis.io import run_files
from verl_otel.recording.state import RECORDER
from verl_otel.session.lifecycle import Current
from verl_otel.testing import capture
from verl_otel.watchdog import process_pauses

os.environ[error_boundary.RAISE_INTERNAL_ERRORS] = (
    "1"  # our own failures fail our own tests; processes that a test starts inherit it
)

# Collected tests are half a million objects. To look through them as often as Python does by itself takes a third of the time of a short test.
gc.set_threshold(50_000, 20, 100)

# The gate tries the same examples each time, so that a change fails for what it changes; `make test-full` searches for new ones.
settings.register_profile("gate", deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", deadline=None, print_blob=True)
settings.load_profile("gate")

TOP = Path(__file__).resolve().parents[1]
OLD_ASYNCIO = tuple(map(int, version("pytest-asyncio").split(".")[:2])) < (0, 26)
"""Old versions leave an event loop behind where a test calls `asyncio.run`, and whoever collects garbage is told so."""


def pytest_addoption(parser):
    parser.addoption("--matrix", action="store_true", help="train in every mode of verl, 25 minutes")
    parser.addoption("--pipeline", action="store_true", help="break and load the pipeline for minutes, 30 minutes")
    parser.addoption("--failures", metavar="FILE", help="append the id of each test that fails")


def pytest_collection_modifyitems(config, items):
    """Leave out what takes long and has a command of its own: ``make matrix``, ``make test-pipeline``, ``make test-pipeline LOAD=1``."""
    if OLD_ASYNCIO:
        for item in items:
            for warning in ("unclosed <socket", "unclosed event loop"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}:ResourceWarning"))
    unasked = [name for name in ("matrix", "pipeline") if not config.getoption(f"--{name}")]
    left_out = [item for item in items if any(map(item.get_closest_marker, unasked))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


FIRST = ("tests/ray/", *(f"tests/end_to_end/test_{name}" for name in ("planted", "stalls", "pipeline", "mixed")))
"""What the first of the workers that train does: all trainings in which it matters how long something takes, and half of the others."""
TRAININGS = (
    "tests/end_to_end/",
    "tests/recount/",
    "tests/ray/",
    "tests/examples/test_with_verl",
    "tests/examples/test_own_worker",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadgroup`` let two workers train and start Ray, one thing after the other, and a third do the rest meanwhile.

    A training of the test bed waits most of the time, so two of them share two cores. One worker has all those that say how long something
    took: no two of these disturb each other.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class SideBySide(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            if not nodeid.startswith(TRAININGS):
                return "services"
            return "first" if nodeid.startswith(FIRST) else "second"

    return SideBySide(config, log)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureReporter(config), "failures")


class FailureReporter:
    """Print each failure at once: a run of an hour may be cut off before its summary."""

    def __init__(self, config):
        self.config = config

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            terminal = self.config.pluginmanager.get_plugin("terminalreporter")
            if self.config.option.failures:
                with Path(self.config.option.failures).open("a", encoding="utf-8") as failures:
                    failures.write(f"{report.nodeid}\n")
            terminal.write_line("")
            terminal.write_line(
                f"FAILED {report.nodeid} ({report.when}): {getattr(crash, 'message', '')[:500]}", red=True
            )


STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
MAY_START = {
    *("smoke", "full", "quarantine", "alone", "verl", "ray", "collector", "browser"),
    *("pipeline", "matrix", "gpu", "vllm_real"),
}
STARTED = []
"""What the running test has started, in its own thread."""


def _note_start(event, _):
    if event in STARTS and threading.current_thread() is threading.main_thread():
        STARTED.append(event)


sys.addaudithook(_note_start)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a unit test that starts a process: such a test takes long, and depends on what else runs on the machine."""
    STARTED.clear()
    had_torch = "torch" in sys.modules
    result = yield
    was_torch = not had_torch and "torch" in sys.modules  # its first import starts a process
    if STARTED and not was_torch and not any(map(item.get_closest_marker, MAY_START)):
        pytest.fail(f"it starts a process ({STARTED[0]}): mark it `full`, or `smoke` if each change has to pass it")
    return result


@pytest.fixture(autouse=True)
def no_pauses(request, monkeypatch):
    """Record no pauses of this process, which a busy machine may have in any test. Those of pauses are the exception."""
    if request.path.name != "test_process_pauses.py":
        monkeypatch.setattr(process_pauses, "PAUSED_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def clean_state(monkeypatch):
    """Start without settings and end with recording off, no session and nothing open."""
    for name in list(os.environ):
        if (
            name.startswith(("VERL_OTEL_", "OTEL_", "VERL_USE_EXTERNAL_", "TORCHELASTIC_"))
            and name != error_boundary.RAISE_INTERNAL_ERRORS
        ):
            monkeypatch.delenv(name)
    process_state.reset_all()
    yield
    plugin = sys.modules.get("verl_otel.plugin")
    if plugin is not None and plugin._loaded:  # by `verl_otel.init` or the first use of a verb
        from verl_otel import integrations

        integrations.uninstall()
        plugin.unload()
    assert Current.session is None, "the test left a session: call verl_otel.shutdown()"
    assert not RECORDER.on, "the test left recording on"
    error_boundary.reset()


@pytest.fixture
def recorded():
    """Record into memory; what is still open at the end is a mistake of the test."""
    with capture() as captured:
        yield captured
        assert not RECORDER.opened, f"open spans: {[span.name for span in RECORDER.opened]}"


@pytest.fixture
def swallow(monkeypatch):
    """Let our own failures be swallowed as in a training; otherwise they fail the test."""
    monkeypatch.delenv(error_boundary.RAISE_INTERNAL_ERRORS, raising=False)


ROOM = 60.0
"""Seconds that a condition has at least. Time that is not needed costs nothing, and a busy machine is no failure."""
BUSY = 3
"""How many times as long as on a machine of its own something may take."""


@pytest.fixture(scope="session")
def wait_for():
    """Poll a condition until it holds; fail with its last value if it does not.

    ``seconds`` is what it may take on a machine of its own: it has ``BUSY`` times as long, and never less than ``ROOM``. Where the test
    asserts an upper bound, ``at_most`` is that bound, to the letter.
    """

    def wait(condition, seconds=0.0, interval=0.02, *, at_most=None):
        limit = max(ROOM, BUSY * seconds) if at_most is None else at_most
        deadline = time.monotonic() + limit
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                pytest.fail(f"not within {limit:g} s: {getattr(condition, '__name__', condition)} is {value!r}")
            time.sleep(interval)

    return wait


@pytest.fixture(scope="session")
def clean_python():
    """Run Python in a process of its own, in an environment without verl's, OpenTelemetry's, our and pytest's variables."""

    def run(*arguments, prefix=(), without=(), code=0, seconds=3 * ROOM, cwd=None, **variables):
        """Return the process that has ended, in time and with this code. ``without``: more beginnings of variables."""
        hidden = ("OTEL_", "VERL_", "PYTEST_", *without)
        inherited = inherit(*hidden)
        done = subprocess.run(
            [*prefix, sys.executable, *map(str, arguments)],
            env={**inherited, **variables},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done

    return run


@pytest.fixture
def public_path():
    """A folder that other users can read, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="verl-otel-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def read_run():
    """Read every span and every value that the files in a folder hold."""

    def read(folder):
        writers, problems = run_files.Writers(), []
        spans, scalars = (
            [
                each
                for path in run_files.find_files([folder], kind)
                for _, group in read_kind([run_files.Extent(path, 0, path.stat().st_size)], writers, problems)
                for each in group
            ]
            for kind, read_kind in (("traces", run_files.read_spans), ("metrics", run_files.read_points))
        )
        assert not problems
        return SimpleNamespace(spans=sorted(spans, key=lambda span: span.start_ns), scalars=scalars)

    return read


@pytest.fixture
def fast_switching():
    """Have threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def dead_pid():
    """The id of a process that has just ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Return a function from a name to the files (certificate, key) of a self-signed certificate for the loopback."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the test's certificates, is not installed")
    folder = tmp_path_factory.mktemp("certificates")

    def make(name):
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        if not certificate.exists():
            command = (
                f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}"
            )
            extra = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", certificate]
            subprocess.run([*command.split(), *extra], check=True, capture_output=True)
        return str(certificate), str(key)

    return make
