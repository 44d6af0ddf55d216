# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's timers and data loader: they work as without us, and there is a span for each use."""

import contextlib
import types

import pytest

from tests.builders.hooks import marked_timer, plain_timer
from verl_otel.integrations import patch
from verl_otel.integrations.verl import gpu_time, scalars, timers
from verl_otel.integrations.verl.trainer import Trainer

LOADER = '''
class _StatefulBaseDataLoaderIter:
    """As torchdata 0.11."""

    def __init__(self, items):
        self.items = list(items)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.items:
            raise StopIteration
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item


class StatefulDataLoader:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return _StatefulBaseDataLoaderIter(self.items)
'''


@pytest.fixture(autouse=True)
def no_trainer():
    """Begin and end without a trainer in this process, and without phases of a step that may be a round of one."""
    gpu_time.begin_run()
    yield
    gpu_time.begin_run()
    Trainer.instance, Trainer.step, Trainer.algorithm = None, None, ""


class CustomError(Exception):
    """An exception that is neither ours nor verl's."""


@pytest.mark.parametrize("error", [CustomError(), KeyboardInterrupt(), StopIteration(), SystemExit(1), GeneratorExit()])
def test_exceptions_pass_as_with_verls(recorded, error):
    """The very same exception arrives, nothing is added to ``timing_raw``, and the span says so."""
    for timer in (plain_timer, marked_timer):
        timing = {}
        with pytest.raises(type(error)) as caught, timer("step", timing):
            raise error
        assert caught.value is error
        assert timing == {}
    assert {"error.type", "verl.outcome"} & recorded.span("verl.step").attributes.keys()


def test_our_timer_can_decorate_as_verls_can(recorded):
    """A function that the user decorates with verl's timer is timed at every call."""
    timing = {}
    work = marked_timer("gen", timing)(lambda: 7)
    assert [work(), work()] == [7, 7]
    assert timing.keys() == {"gen"}


def test_a_step_says_what_it_is(recorded):
    """A step has the number, the mode and the algorithm of the trainer that runs here."""
    Trainer.instance = types.SimpleNamespace(global_steps=7, trainer_mode="sync")
    Trainer.algorithm = "grpo"
    with marked_timer("step", {}):
        Trainer.instance.global_steps = 8
    assert recorded.span("verl.step").attributes == {
        "verl.step.number": 7,
        "verl.trainer.mode": "sync",
        "verl.algorithm": "grpo",
    }


def test_a_timer_with_a_doubled_prefix_is_the_phase_that_it_means(recorded):
    """Verl 0.9 has a timer ``timing_s/param_sync``, which it logs as ``timing_s/timing_s/param_sync``."""
    with marked_timer("timing_s/param_sync", {}):
        pass
    assert recorded.value("verl.phase.duration", verl_phase="param_sync") == 1
    assert scalars.is_phase("timing_s/timing_s/param_sync")


def test_a_timer_outside_of_a_step_is_a_metric_and_no_span(recorded):
    """A timer where no step is open is measured only."""
    timing = {}
    with marked_timer("testing", timing):
        pass
    assert not recorded.spans
    assert recorded.value("verl.phase.duration", verl_phase="testing") == 1
    assert timing.keys() == {"testing"}


def test_a_timer_times_while_telemetry_is_off():
    """With recording off the timer is a timer."""
    timing = {}
    with marked_timer("step", timing):
        pass
    assert timing["step"] > 0


def test_our_failure_costs_the_span_only(recorded, swallow, monkeypatch):
    """When our own code fails the block is timed all the same."""

    def fail(*_, **__):
        raise RuntimeError("ours")

    monkeypatch.setattr(timers, "open_step", fail)
    timing = {}
    with marked_timer("step", timing):
        pass
    assert timing["step"] > 0
    assert not recorded.spans


def test_a_profilers_timer_keeps_its_ranges(recorded):
    """The timer of a profiler, as any other, is wrapped: its ranges and its numbers stay, and there is a span for each."""
    log = []

    @contextlib.contextmanager
    def ranges(name, timing_raw, color=None, domain=None, category=None):
        log.append(("push", name, color))
        try:
            yield
            timing_raw[name] = timing_raw.get(name, 0) + 1.0
        finally:
            log.append(("pop", name))

    module = types.SimpleNamespace(marked_timer=ranges)
    timers.HOOKS[0].install(module)
    timing = {}
    with module.marked_timer("step", timing), module.marked_timer("gen", timing, color="red"):
        pass
    assert log == [("push", "step", None), ("push", "gen", "red"), ("pop", "gen"), ("pop", "step")]
    assert timing == {"gen": 1.0, "step": 1.0}
    assert recorded.span("verl.phase.gen").parent_id == recorded.span("verl.step").span_id


@pytest.fixture
def loader(loaded):
    """The class of a host whose hooks are installed."""
    module = loaded(LOADER)
    found = [hook for hook in timers.HOOKS if "torchdata" in hook.module]
    patch.register([hook._replace(module=module.__name__) for hook in found])
    assert set(patch.status.values()) == {"installed"}
    return module.StatefulDataLoader


def test_each_batch_has_a_span(recorded, loader):
    """One for the iterator, one for each batch, none for the end of the data."""
    assert list(loader([1, 2])) == [1, 2]
    assert [span.name for span in recorded.spans] == ["verl.data_loading"] * 3


def test_an_error_of_a_dataset_is_recorded_and_raised(recorded, loader):
    """The exception is the dataset's own."""
    with pytest.raises(KeyError, match="prompt"):
        list(loader([KeyError("prompt")]))
    assert recorded.spans[-1].attributes["error.type"] == "KeyError"


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_the_loader_of_real_torchdata(recorded):
    """Torchdata's own class."""
    module = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed in this environment"
    )
    patch.register(hook for hook in timers.HOOKS if "torchdata" in hook.module)
    assert [int(batch) for batch in module.StatefulDataLoader([1, 2, 3], batch_size=1)] == [1, 2, 3]
    assert [span.name for span in recorded.spans] == ["verl.data_loading"] * 4
    assert recorded.value("verl.data_loading.time") > 0
