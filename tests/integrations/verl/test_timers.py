# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's timers: the same numbers in ``timing_raw`` as without us, and a span for each."""

import contextlib
import types
import warnings
from collections import defaultdict

import pytest

from verl_otel.integrations.verl import timers
from verl_otel.integrations.verl.timers import MarkedTimer
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.recording.span import BareSpan


@pytest.fixture(scope="module")
def real():
    """Verl's own timer; importing it takes 10 seconds."""
    pytest.importorskip("verl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from verl.utils.profiler.performance import marked_timer
    return marked_timer


@pytest.fixture(autouse=True)
def no_trainer():
    """Begin and end without a trainer in this process."""
    yield
    Trainer.instance, Trainer.step, Trainer.algorithm = None, None, ""


class CustomError(Exception):
    """An exception that is neither ours nor verl's."""


def plain(timer, timing):
    with timer("gen", timing) as given:
        return given


def keywords(timer, timing):
    with timer(name="gen", timing_raw=timing, color="red", domain="d", category="c"):
        pass


def positions(timer, timing):
    with timer("gen", timing, "red", "d", "c"):
        pass


def again(timer, timing):
    for _ in range(3):
        with timer("gen", timing):
            pass


def nested(timer, timing):
    with timer("step", timing):
        with timer("gen", timing), timer("gen", timing):
            pass
        with timer("adv", timing):
            pass


def known(timer, timing):
    timing["gen"] = 100
    with timer("gen", timing):
        pass


def cleared(timer, timing):
    with timer("gen", timing):
        timing["gen"] = 50.0
        timing["other"] = 1.0


def raising(timer, timing):
    with timer("step", timing), contextlib.suppress(CustomError), timer("gen", timing):
        raise CustomError


def leaving(timer, timing):
    for _ in range(2):
        with timer("gen", timing):
            continue


def wrong_arguments(timer, timing):
    with timer("gen", timing, shape="round"):
        pass


def missing_arguments(timer, _timing):
    with timer("gen"):
        pass


def run(scenario, timer, timing):
    """What a scenario returns or raises, and the keys and magnitudes that it leaves."""
    try:
        result = scenario(timer, timing)
    except Exception as error:
        result = type(error)
    return result, {key: (type(value), round(value)) for key, value in timing.items()}


SCENARIOS = [
    plain,
    keywords,
    positions,
    again,
    nested,
    known,
    cleared,
    raising,
    leaving,
    wrong_arguments,
    missing_arguments,
]


@pytest.mark.full
@pytest.mark.parametrize("kind", [dict, lambda: defaultdict(float)], ids=["dict", "defaultdict"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_our_timer_does_what_verls_does(recorded, real, scenario, kind):
    """In every use the result, the exception and what stands in ``timing_raw`` are the same as with verl's own timer."""
    assert run(scenario, MarkedTimer, kind()) == run(scenario, real, kind())


@pytest.mark.parametrize("error", [CustomError(), KeyboardInterrupt(), StopIteration(), SystemExit(1), GeneratorExit()])
def test_exceptions_pass_as_with_verls(recorded, real, error):
    """The very same exception arrives, and nothing is added to ``timing_raw``."""
    for timer in (real, MarkedTimer):
        timing = {}
        with pytest.raises(type(error)) as caught, timer("gen", timing):
            raise error
        assert caught.value is error
        assert timing == {}


@pytest.mark.full
def test_both_measure_the_same(recorded, real):
    """Around the same work both timers measure the same time, and so does our span."""
    theirs, ours = {}, {}
    with real("step", theirs), MarkedTimer("step", ours):
        sum(range(200_000))
    span = recorded.span("verl.step")
    assert ours["step"] == pytest.approx(theirs["step"], rel=0.02, abs=0.002)
    assert (span.end_ns - span.start_ns) / 1e9 == pytest.approx(ours["step"], rel=0.02, abs=0.002)


def test_our_timer_can_decorate_as_verls_can(recorded, real):
    """A function that the user decorates with verl's timer is timed at every call."""
    for timer in (real, MarkedTimer):
        timing = {}
        work = timer("gen", timing)(lambda: 7)
        assert [work(), work()] == [7, 7]
        assert timing.keys() == {"gen"}


def test_a_timer_is_a_span_and_a_metric(recorded):
    """``step`` is the root of a trace, the other keys are phases below it; an exception marks both."""
    timing = {}
    with pytest.raises(CustomError), MarkedTimer("step", timing), MarkedTimer("gen", timing):
        raise CustomError
    step, phase = recorded.span("verl.step"), recorded.span("verl.phase.gen")
    assert (step.parent_id, phase.parent_id) == (0, step.span_id)
    assert step.attributes["error.type"].endswith("CustomError")
    assert recorded.value("verl.phase.duration", verl_phase="gen") == 1


def test_a_step_says_what_it_is(recorded):
    """A step has the number, the mode and the algorithm of the trainer that runs here."""
    Trainer.instance = types.SimpleNamespace(global_steps=7, trainer_mode="sync")
    Trainer.algorithm = "grpo"
    with MarkedTimer("step", {}):
        Trainer.instance.global_steps = 8
    assert recorded.span("verl.step").attributes == {
        "verl.step.number": 7,
        "verl.trainer.mode": "sync",
        "verl.algorithm": "grpo",
    }


def test_a_timer_outside_of_a_step_is_a_metric_and_no_span(recorded):
    """A timer where no step is open is measured only."""
    timing = {}
    with MarkedTimer("testing", timing):
        pass
    assert not recorded.spans
    assert recorded.value("verl.phase.duration", verl_phase="testing") == 1
    assert timing.keys() == {"testing"}


def test_a_timer_times_while_telemetry_is_off():
    """With recording off the timer is a timer."""
    timing = {}
    with MarkedTimer("step", timing):
        pass
    assert timing["step"] > 0


def test_our_failure_costs_the_span_only(recorded, swallow, monkeypatch):
    """When our own code fails the block is timed all the same."""

    def fail(self):
        raise RuntimeError("ours")

    monkeypatch.setattr(BareSpan, "__enter__", fail)
    timing = {}
    with MarkedTimer("step", timing):
        pass
    assert timing["step"] > 0
    assert not recorded.spans


def profiler(log):
    """A module with a timer of a profiler, which marks ranges."""

    @contextlib.contextmanager
    def marked_timer(name, timing_raw, color=None, domain=None, category=None):
        """The profiler's words."""
        log.append(("push", name, color))
        try:
            yield
            timing_raw[name] = timing_raw.get(name, 0) + 1.0
        finally:
            log.append(("pop", name))

    marked_timer.__module__ = "verl.utils.profiler.nvtx_profile"
    return types.SimpleNamespace(marked_timer=marked_timer)


def test_a_profilers_timer_keeps_its_ranges(recorded):
    """The timer of a profiler is wrapped: its ranges and its numbers stay, and there is a span for each."""
    log = []
    module = profiler(log)
    timers.HOOKS[0].install(module)
    timing = {}
    with module.marked_timer("step", timing), module.marked_timer("gen", timing, color="red"):
        pass
    assert log == [("push", "step", None), ("push", "gen", "red"), ("pop", "gen"), ("pop", "step")]
    assert timing == {"gen": 1.0, "step": 1.0}
    assert recorded.span("verl.phase.gen").parent_id == recorded.span("verl.step").span_id


@pytest.mark.parametrize("error", [CustomError(), KeyboardInterrupt(), StopIteration()])
def test_a_profilers_timer_lets_exceptions_pass(recorded, error):
    """An exception in the block reaches the profiler and the caller, and marks the span."""
    log = []
    module = profiler(log)
    timers.HOOKS[0].install(module)
    with pytest.raises(type(error)) as caught, module.marked_timer("step", {}):
        raise error
    assert caught.value is error
    assert log[-1] == ("pop", "step")
    assert "error.type" in recorded.span("verl.step").attributes


def test_the_plain_timer_is_replaced(real):
    """Where verl uses its plain timer ours takes its place, with the same parameters."""
    module = types.SimpleNamespace(marked_timer=real)
    timers.HOOKS[0].install(module)
    assert isinstance(module.marked_timer("gen", {}), MarkedTimer)
    assert isinstance(module.marked_timer(name="gen", timing_raw={}, color="red"), MarkedTimer)
