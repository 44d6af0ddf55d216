# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run summary of W&B, the tags of MLflow and texts of TensorBoard: written only if asked for, never in the way of the training."""

import sys
import threading
import types

import pytest

from verl_otel import session
from verl_otel.integrations import patch
from verl_otel.integrations.verl import gpu_time, run_summary, tracking

SOURCE = '''
class Tracking:
    """As verl 0.9.1."""

    def __init__(self, logger):
        self.logger, self._finished = logger, False

    def log(self, data, step, backend=None):
        pass

    def finish(self, exit_code=0):
        self._finished = True
'''
REAL = """
import sys
import time
from verl.utils.tracking import Tracking
from verl_otel.integrations.verl import gpu_time
made = Tracking("p", "e", ["console", sys.argv[1]], {"trainer": {}})
for number in (1, 2):
    start = time.monotonic()
    gpu_time.end_step(start, start + 1.0, number, None, "sync")
    made.log({"actor/pg_loss": 0.5}, number)
made.finish(0)
"""


@pytest.fixture
def tracking_class(loaded, recorded, monkeypatch):
    """The class of a host whose hooks are installed, in a session with the setting on."""
    config = types.SimpleNamespace(tracker_summary=True, run_id="r", run_path="/runs/r", exporters=("file",))
    monkeypatch.setattr(run_summary, "current_session", lambda: types.SimpleNamespace(config=config))
    monkeypatch.setattr(run_summary, "INTERVAL", 0.0)
    monkeypatch.setattr(run_summary, "END_SECONDS", 60.0)
    gpu_time.begin_run()
    module = loaded(SOURCE)
    patch.register([hook._replace(module=module.__name__) for hook in tracking.HOOKS])
    yield module.Tracking, config
    run_summary._Summary.writers = ()
    session.resource.clear()


def make_wandb(update):
    """Return a module as W&B's, with one run."""
    summary = types.SimpleNamespace(update=update)
    return types.SimpleNamespace(run=types.SimpleNamespace(summary=summary))


def end_step(number):
    """End a step of a second."""
    gpu_time._account.live_verdicts.end_step(number, 0.0, 1.0 + number, 2.0 + number, [])


def test_identity_and_verdict_are_written(tracking_class):
    """The identity when the tracker is opened, the verdict with the end, before the tracker is closed."""
    made, _ = tracking_class
    held = {}
    run = made({"wandb": make_wandb(held.update)})
    run_summary._Summary.worker.join(60)
    assert held == {"verl_otel/run_id": "r", "verl_otel/run_folder": "/runs/r"}
    end_step(1)
    run.finish()
    assert held["verl_otel/verdict"] == "too few steps to say what is usual: 0 of 1 can be compared, 4 are needed"
    assert set(held) == {f"verl_otel/{key}" for key in ("run_id", "run_folder", "goodput", "held_seconds", "verdict")}


def test_mlflow_has_tags_of_the_active_run(tracking_class, monkeypatch):
    """By a client and the id of the run: on another thread `mlflow.set_tag` would begin a new run."""
    made, _ = tracking_class
    tags = []
    client = types.SimpleNamespace(set_tag=lambda *words: tags.append(words))
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="m1"))
    module = types.SimpleNamespace(active_run=lambda: run, MlflowClient=lambda: client)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    made({"mlflow": object()}).finish()
    assert ("m1", "verl_otel/run_id", "r") in tags


@pytest.mark.parametrize(
    "trackers",
    [{}, {"console": object()}, {"wandb": object()}, {"mlflow": object()}, {"tensorboard": object()}, None, 3],
)
def test_other_trackers_are_left_alone(tracking_class, monkeypatch, trackers):
    """Without an open run of W&B, MLflow or TensorBoard nothing is written, and nothing is imported."""
    made, _ = tracking_class
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    run = made(trackers)
    assert run_summary._Summary.writers == ()
    run.finish()
    assert "mlflow" not in sys.modules


@pytest.mark.parametrize(
    ("setting", "value", "written"),
    [("tracker_summary", False, {}), ("exporters", ("otlp",), {"verl_otel/run_id": "r"})],
    ids=["off", "without files there is no folder"],
)
def test_what_is_not_asked_for_is_not_written(tracking_class, setting, value, written):
    """By default the summary is not touched; a folder that holds nothing to report is not named."""
    made, config = tracking_class
    setattr(config, setting, value)
    held = {}
    run = made({"wandb": make_wandb(held.update)})
    if not written:
        end_step(1)
    run.finish()
    assert held == written


def test_a_tracker_that_hangs_holds_nothing(tracking_class, monkeypatch):
    """Logging starts no second thread while one waits; the end waits for a bounded time."""
    made, _ = tracking_class
    monkeypatch.setattr(run_summary, "END_SECONDS", 0.05)
    released, calls = threading.Event(), []
    run = made({"wandb": make_wandb(lambda values: (calls.append(values), released.wait(60)))})
    monkeypatch.setattr(tracking.guards, "observe", lambda *_: None)
    for number in (1, 2, 3):
        end_step(number)
        run.log({}, number)
    run.finish()
    assert run._finished
    assert len(calls) <= 1
    released.set()
    run_summary._Summary.worker.join(60)


def test_a_tracker_that_raises_changes_nothing(tracking_class, swallow):
    """Its error is counted, not raised."""
    made, _ = tracking_class

    def fail(values):
        raise OSError("no network")

    run = made({"wandb": make_wandb(fail)})
    run.finish()
    assert run._finished


@pytest.mark.full
@pytest.mark.parametrize("switch", ["0", "1"])
def test_the_real_wandb_has_it(clean_python, tmp_path, switch):
    """The ``Tracking`` of verl with the real W&B, offline: the file of the run has the values beside the scalars, or none of them."""
    pytest.importorskip("wandb")
    clean_python(
        "-c", REAL, "wandb", cwd=tmp_path, without=("WANDB_",), WANDB_MODE="offline", WANDB_SILENT="true",
        VERL_OTEL_ENABLED="1", VERL_OTEL_RUN_ID="r", VERL_OTEL_RUN_DIR=str(tmp_path / "runs"), VERL_OTEL_TRACKER_SUMMARY=switch,
    )  # fmt: skip
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    written = path.read_bytes()
    assert b"actor/pg_loss" in written
    found = {
        key
        for key in ("run_id", "run_folder", "goodput", "held_seconds", "verdict")
        if f"verl_otel/{key}".encode() in written
    }
    assert len(found) == (5 if switch == "1" else 0)
    assert (b'"too few steps to say what is usual: 1 of 2 can be compared, 4 are needed"' in written) == (switch == "1")
    assert (str(tmp_path / "runs" / "r").encode() in written) == (switch == "1")


@pytest.mark.full
@pytest.mark.parametrize("switch", ["0", "1"])
def test_the_real_tensorboard_has_it(clean_python, tmp_path, switch):
    """As texts, read by TensorBoard's own reader, beside verl's scalars."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    clean_python(
        "-c", REAL, "tensorboard", cwd=tmp_path, TENSORBOARD_DIR=str(tmp_path / "tb"), VERL_OTEL_ENABLED="1", VERL_OTEL_RUN_ID="r",
        VERL_OTEL_RUN_DIR=str(tmp_path / "runs"), VERL_OTEL_TRACKER_SUMMARY=switch,
    )  # fmt: skip
    events = accumulator.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert "actor/pg_loss" in events.Tags()["scalars"]
    texts = {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    found = {tag.removesuffix("/text_summary"): text for tag, text in texts.items()}
    assert set(found) == {
        f"verl_otel/{key}" for key in ("run_id", "run_folder", "goodput", "held_seconds", "verdict") if switch == "1"
    }
    assert (
        found.get("verl_otel/verdict", "too few steps to say what is usual: 1 of 2 can be compared, 4 are needed")
        == "too few steps to say what is usual: 1 of 2 can be compared, 4 are needed"
    )
