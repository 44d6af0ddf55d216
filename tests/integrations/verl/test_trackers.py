# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How long each tracker takes in one ``Tracking.log``; the call itself works as before."""

import contextlib
import gc
import weakref

import pytest

from verl_otel import session
from verl_otel.integrations import patch
from verl_otel.integrations.verl import tracking

SOURCE = '''
class Tracker:
    def __init__(self, error=None):
        self.logged, self.error = [], error

    def log(self, data, step):
        self.logged.append((data, step))
        if self.error:
            raise self.error


class Tracking:
    """As verl 0.9.1."""

    def __init__(self, logger):
        self.logger = logger

    def log(self, data, step, backend=None):
        for default_backend, logger_instance in self.logger.items():
            if backend is None or default_backend in backend:
                logger_instance.log(data=data, step=step)

    def finish(self, exit_code=0):
        pass
'''


@pytest.fixture
def module(loaded):
    """A host whose hooks are installed."""
    module = loaded(SOURCE)
    patch.register([hook._replace(module=module.__name__) for hook in tracking.HOOKS])
    return module


def spans(recorded):
    """Tracker and error of each span of a tracker."""
    found = [span for span in recorded.spans if span.name == "verl.logging"]
    return [(span.attributes["verl.tracker"], span.attributes.get("error.type", "")) for span in found]


def test_each_tracker_has_a_span(recorded, module):
    """In the order of the calls, and nothing is left in verl's object."""
    trackers = {"console": module.Tracker(), "wandb": module.Tracker()}
    run = module.Tracking(trackers)
    run.log({"a": 1}, 3)
    assert spans(recorded) == [("console", ""), ("wandb", "")]
    assert run.logger is trackers
    assert trackers["wandb"].logged == [({"a": 1}, 3)]
    assert recorded.value("verl.logging.time", verl_tracker="wandb") > 0


def test_a_tracker_that_is_not_asked_for_has_none(recorded, module):
    """``backend`` selects trackers."""
    run = module.Tracking({"console": module.Tracker(), "file": module.Tracker()})
    run.log({}, 1, backend=["file"])
    assert spans(recorded) == [("file", "")]


def test_an_error_of_a_tracker_is_recorded_and_raised(recorded, module):
    """The exception is the tracker's own, and the next call works."""
    bad = module.Tracker(OSError("no route"))
    run = module.Tracking({"console": module.Tracker(), "wandb": bad})
    with pytest.raises(OSError, match="no route"):
        run.log({}, 1)
    assert type(run.logger) is dict
    bad.error = None
    run.log({}, 2)
    assert spans(recorded) == [("console", ""), ("wandb", "OSError"), ("console", ""), ("wandb", "")]


def test_trackers_of_an_unknown_form_are_left_alone(recorded, module):
    """A subclass of ``dict`` may do more than verl expects."""

    class Own(dict):
        pass

    run = module.Tracking(Own(console=module.Tracker()))
    run.log({}, 1)
    assert spans(recorded) == []
    assert len(run.logger["console"].logged) == 1


def test_the_trackers_of_real_verl(recorded, monkeypatch, tmp_path):
    """Verl's own class, console and file."""
    module = pytest.importorskip("verl.utils.tracking", reason="verl is not installed in this environment")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "scalars.jsonl"))
    patch.register(tracking.HOOKS)
    run = module.Tracking("bed", "exp", ["console", "file"], {})
    run.log({"critic/score/mean": 0.5}, 1)
    run.log({"critic/score/mean": 0.5}, 2, backend=["file"])
    run.finish()
    assert spans(recorded) == [("console", ""), ("file", ""), ("file", "")]
    assert len((tmp_path / "scalars.jsonl").read_text().splitlines()) == 2
    session.resource.clear()


def test_an_error_that_the_caller_catches_keeps_nothing(recorded, module):
    """No cycle through the frames of the callers keeps their batches until the garbage collector runs."""

    class Batch:
        """Stands for tensors."""

    def step():
        batch = Batch()
        reference = weakref.ref(batch)
        with contextlib.suppress(OSError):
            run.log({}, 1)
        return reference

    class Failing:
        """A tracker without a network."""

        def log(self, data, step):
            raise OSError("no route")

    run = module.Tracking({"wandb": Failing()})
    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()
