# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A hook of ours and a decorator of the user around the same piece of work are one span."""

import asyncio
import contextlib
import threading

import pytest

import verl_otel
from verl_otel.recording import callsite
from verl_otel.recording.callsite import MAX_PHASES, CallSite, is_used_phase, phase_site
from verl_otel.recording.span import Span
from verl_otel.semconv.spans import STATUS_ERROR, STATUS_UNSET

HOOKS = {
    "trajectory": lambda: CallSite(
        "trajectory", hook=True, attributes={"verl.agent": "hook", "from": "hook", "both": 1}
    ),
    "llm": lambda: CallSite("llm", "chat hook", hook=True, attributes={"from": "hook", "both": 1}),
    "tool": lambda: CallSite("tool", "execute_tool hook", hook=True, attributes={"from": "hook", "both": 1}),
    "reward": lambda: CallSite("reward", hook=True, attributes={"from": "hook", "both": 1}),
}
USERS = {
    "trajectory": lambda: verl_otel.trajectory("uid", agent="mine"),
    "llm": lambda: verl_otel.llm("mine"),
    "tool": lambda: verl_otel.tool("mine"),
    "reward": lambda: verl_otel.reward("mine"),
}
NAMES = {"trajectory": "verl.trajectory", "llm": "chat mine", "tool": "execute_tool mine", "reward": "verl.reward"}
METRICS = {
    "trajectory": "verl.rollout.trajectory.duration",
    "llm": "gen_ai.client.inference.duration",
    "tool": "verl.tool.call.duration",
    "reward": "verl.reward.duration",
}


def both(verb, order):
    """Return the hook's span and the user's, the outer one first. They differ in the attribute ``both``."""
    user = USERS[verb]()
    user.set_attribute("both", 2)
    pair = [Span(HOOKS[verb]()), user]
    return pair if order == "hook outside" else pair[::-1]


ORDERS = pytest.mark.parametrize("order", ["hook outside", "hook inside"])
EVERY_VERB = pytest.mark.parametrize("verb", HOOKS)


@ORDERS
@EVERY_VERB
def test_hook_and_decorator_are_one_span(recorded, is_outside, verb, order):
    """Hook and user's verb, whichever is outside, make one span and one measurement; the user's name and words win."""
    outer, inner = both(verb, order)
    with outer as opened:
        with inner as same:
            assert same is opened
            same.set_attribute("set", "inside")
        opened.set_attribute("set later", True)
    assert is_outside()
    (span,) = recorded.spans
    assert span.name == NAMES[verb]
    assert (span.attributes["from"], span.attributes["both"]) == ("hook", 2)
    assert "mine" in span.attributes.values()
    assert (span.attributes["set"], span.attributes["set later"]) == ("inside", True)
    assert recorded.value(METRICS[verb]) == 1
    assert "mine" in str([point.labels for point in recorded.points if point.instrument.name == METRICS[verb]])


@ORDERS
def test_a_decorated_function_in_a_hook_is_one_span(recorded, order):
    """The same holds for decorated functions: what is extracted lands on the one span."""

    @verl_otel.reward("mine")
    def compute_score(data_source):
        if order == "hook inside":
            with Span(HOOKS["reward"]()):
                return 0.5
        return 0.5

    if order == "hook outside":
        with Span(HOOKS["reward"]()):
            compute_score("x")
    else:
        compute_score("x")
    (span,) = recorded.spans
    assert span.attributes["verl.reward.score"] == 0.5
    assert recorded.value("verl.reward.samples", verl_data_source="mine") == 1


APART = {
    "two verbs of the user": lambda: (verl_otel.tool("outer"), verl_otel.tool("inner"), verl_otel.llm("qwen")),
    "two hooks": lambda: (Span(HOOKS["tool"]()), Span(HOOKS["tool"]())),
    "a span between": lambda: (Span(HOOKS["tool"]()), verl_otel.span("between"), verl_otel.tool("mine")),
    "phases": lambda: (Span(phase_site("gen", hook=True)), verl_otel.phase("adv")),
    "turns": lambda: (Span(CallSite("turn", hook=True)), verl_otel.turn(1)),
}


@pytest.mark.parametrize("what", APART)
def test_other_spans_never_become_one(recorded, what):
    """What is not a hook and a verb of the user for the same work, one directly inside of the other, is a span each, in a chain."""
    blocks = APART[what]()
    with verl_otel.step(1), contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
    *inner, step = recorded.spans
    assert len(inner) == len(blocks)
    assert [span.parent_id for span in inner] == [*(span.span_id for span in inner[1:]), step.span_id]


def test_only_the_first_decorated_function_in_a_hook_is_the_hooks(recorded):
    """A hook becomes one with the first function of the user inside it; a second one is a child."""
    with Span(HOOKS["reward"]()):
        with verl_otel.reward("first"):
            pass
        with verl_otel.reward("second"):
            pass
    assert len(recorded.spans) == 2
    inner, outer = recorded.spans
    assert inner.parent_id == outer.span_id
    assert (outer.attributes["verl.data.source"], inner.attributes["verl.data.source"]) == ("first", "second")


async def test_the_task_of_a_hook_that_has_ended_is_not_joined(recorded):
    """A tool that runs in a task which outlives the hook's span is a span of its own."""

    async def late():
        await ended.wait()
        with verl_otel.tool("mine"):
            pass

    ended = asyncio.Event()
    with Span(HOOKS["tool"]()):
        task = asyncio.create_task(late())
    ended.set()
    await task
    hook, mine = recorded.span("execute_tool hook"), recorded.span("execute_tool mine")
    assert mine.parent_id == hook.span_id


def fails():
    raise ValueError


def test_an_error_that_the_hooks_code_swallows_is_on_the_span(recorded):
    """An exception of the user's function that the hooked code around it catches is told by the span and its metric."""
    with Span(HOOKS["tool"]()), pytest.raises(ValueError):
        verl_otel.tool("mine")(fails)()
    assert recorded.spans[0].status == STATUS_ERROR
    assert recorded.value("verl.tool.call.duration", error_type="ValueError") == 1


@ORDERS
def test_an_exception_is_written_down_once(recorded, order):
    """An exception that leaves hook and decorator is one event of their one span."""
    outer, inner = both("tool", order)
    with pytest.raises(ValueError), outer, inner:
        fails()
    (span,) = recorded.spans
    assert span.status == STATUS_ERROR
    assert len(span.events) == 1


def test_an_error_that_the_users_function_handles_is_no_error(recorded):
    """An exception of hooked code that the user's decorated function handles is no failure of that function."""

    @verl_otel.llm("mine")
    def ask():
        try:
            with Span(HOOKS["llm"]()):
                fails()
        except ValueError:
            return "fallback"

    assert ask() == "fallback"
    assert recorded.spans[0].status == STATUS_UNSET


def test_the_extractor_of_a_hook_adds_and_does_not_replace(recorded):
    """What a hook extracts is added where the user has said nothing."""
    hook = CallSite("tool", "execute_tool hook", hook=True, extract=lambda *_: {"both": "hook", "new": "hook"})
    with verl_otel.tool("mine") as span:
        span.set_attribute("both", "user")
        inner = Span(hook)
        with inner:
            hook.read(inner, {}, None)
    assert recorded.spans[0].attributes["both"] == "user"
    assert recorded.spans[0].attributes["new"] == "hook"


@pytest.fixture(autouse=True)
def no_phases(monkeypatch):
    """Start as a process that has opened no phase yet."""
    monkeypatch.setattr(callsite, "_sites", {})


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("gen", "gen"),
        ("update_actor", "update_actor"),
        ("timing_s/gen", "timing_s/gen"),
        ("Update Actor", "update_actor"),
        ("a-b", "a_b"),
        ("é", "_"),
        ("x" * 100, "x" * 64),
        ("", "other"),
    ],
)
def test_a_key_is_cleaned(key, name):
    """Capitals are lowered, other characters become an underscore, and 64 of them are enough."""
    assert phase_site(key).name == f"verl.phase.{name}"
    assert phase_site(key).attributes == {"verl.phase": name}


@pytest.mark.full
def test_the_65th_key_is_other(no_series, recorded):
    """64 distinct keys are kept, what comes later is `other`, and the first 64 still have their names."""
    with verl_otel.step(1):
        for number in [*range(MAX_PHASES + 6), 0, 1]:
            with verl_otel.phase(f"p{number}"):
                pass
    names = [span.name for span in recorded.spans]
    assert names[:64] == [f"verl.phase.p{number}" for number in range(64)]
    assert names[64:70] == ["verl.phase.other"] * 6
    assert names[70:] == ["verl.phase.p0", "verl.phase.p1", "verl.step"]
    assert recorded.value("verl.phase.duration", verl_phase="other") == 6
    assert len(callsite._sites) <= MAX_PHASES


@pytest.mark.full
def test_a_key_of_hook_and_user_counts_once(no_series, recorded):
    """64 keys are kept also where the trainer's hooks and the user open phases of the same keys."""
    with verl_otel.step(1):
        for number in range(MAX_PHASES):
            for hook in (True, False):
                with Span(phase_site(f"p{number}", hook=hook)):
                    pass
    assert "verl.phase.other" not in {span.name for span in recorded.spans}


@pytest.mark.full
def test_a_phase_that_was_opened_is_known(no_series, recorded):
    """One can tell whether a phase of some key was opened in this process."""
    assert not is_used_phase("gen")
    with verl_otel.phase("gen"):
        pass
    assert is_used_phase("gen")


def test_threads_may_open_new_phases_at_once(fast_switching):
    """Nobody gets an error because another thread opens a phase that was not known."""
    failures = []

    def work(first):
        try:
            for _ in range(300):
                callsite._sites.clear()
                for number in range(first, first + 20):
                    phase_site(f"p{number}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(20 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
