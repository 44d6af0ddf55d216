# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Decorated functions travel to other processes, as Ray sends them: by value from ``__main__``, by name from a module."""

import json
import pickle

import pytest

import verl_otel
from verl_otel.recording import series
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span

SENDER = """
    import sys
    import cloudpickle
    import verl_otel
    from verl_otel.recording import context
    from verl_otel.recording.state import RECORDER

    LIMIT = 3
    DONE = verl_otel.counter("done")
    SIZE = verl_otel.histogram("size", bounds=(1, 2))

    def read(arguments, result):
        return {"seen": f"{arguments['code']} -> {result}"}

    @verl_otel.tool("python", extract=read)
    def tool(code, *, limit=LIMIT):
        DONE.add(1, kind="tool")
        SIZE.record(1.5)
        return code * limit

    @verl_otel.llm("qwen")
    async def ask(prompt):
        return prompt.upper()

    @verl_otel.span("produce")
    def produce(number):
        for item in range(number):
            yield item

    @verl_otel.timed("timed.by.value")
    def timed():
        return 7

    class Worker:
        def __init__(self):
            self.calls = 0

        @verl_otel.update("actor")
        def update_actor(self, batch):
            self.calls += 1
            return {"loss": 0.5}

    if sys.argv[2] == "on":
        context.context_access()
        RECORDER.on = True
    with open(sys.argv[1], "wb") as file:
        cloudpickle.dump([tool, ask, produce, timed, Worker, DONE], file)
"""
RECEIVER = """
    import asyncio, inspect, json, pickle, sys
    import verl_otel
    from verl_otel.recording import collection
    from verl_otel.recording.state import RECORDER
    from verl_otel.testing import capture

    def use():
        assert tool("ab") == "ababab"
        assert asyncio.run(ask("hi")) == "HI"
        assert list(produce(2)) == [0, 1]
        assert timed() == 7
        assert Worker().update_actor([1, 2]) == {"loss": 0.5}

    with open(sys.argv[1], "rb") as file:
        tool, ask, produce, timed, Worker, done = pickle.load(file)
    assert str(inspect.signature(tool)) == "(code, *, limit=3)"
    use()
    with capture() as captured:
        use()
        done.add(2, kind="tool")
        print(json.dumps({
            "names": sorted(span.name for span in captured.spans),
            "tool": dict(captured.span("execute_tool python").attributes),
            "done": captured.value("done"),
            "size": captured.value("size"),
            "timed": captured.value("timed.by.value"),
            "calls": captured.value("verl.worker.calls"),
        }))
    use()
"""
EXPECTED_NAMES = ["chat qwen", "execute_tool python", "produce", "verl.worker Worker.update_actor"]


@pytest.mark.full
@pytest.mark.parametrize("switch", ["on", "off"])
def test_functions_by_value_record_where_they_arrive(run_python, tmp_path, switch):
    """Functions of ``__main__`` that were pickled by value record in the process where they arrive, off and on again."""
    file = tmp_path / "functions.pickle"
    run_python(SENDER, file, switch)
    found = json.loads(run_python(RECEIVER, file))
    assert found["names"] == EXPECTED_NAMES
    assert found["tool"]["seen"] == "ab -> ababab"
    assert (found["done"], found["size"], found["timed"], found["calls"]) == (3, 1, 1, 1)


@pytest.mark.full
def test_functions_by_value_are_off_where_recording_is_off(run_python, tmp_path):
    """A function pickled by value adds nothing in a process where recording is off: its extractor is not called."""
    file = tmp_path / "function.pickle"
    run_python(
        """
        import sys
        import cloudpickle
        import verl_otel
        from verl_otel.testing import capture

        @verl_otel.tool("python", extract=lambda *_: print("extractor was called"))
        def tool():
            return 1

        with capture(), open(sys.argv[1], "wb") as file:
            cloudpickle.dump(tool, file)
        """,
        file,
    )
    said = run_python(
        """
        import pickle, sys
        with open(sys.argv[1], "rb") as file:
            assert pickle.load(file)() == 1
        """,
        file,
    )
    assert said == ""


@pytest.mark.full
def test_functions_by_name_record_where_they_arrive(run_python, tmp_path):
    """Functions of a module are pickled by name: the other process decorates them for itself."""
    (tmp_path / "their_tools.py").write_text(
        "import verl_otel\n\n@verl_otel.tool('python')\ndef tool(code):\n    return code\n"
    )
    said = run_python(
        """
        import pickle, sys
        sys.path.insert(0, sys.argv[1])
        import their_tools
        from verl_otel.testing import capture

        sent = pickle.dumps(their_tools.tool)
        assert len(sent) < 100
        with capture() as captured:
            assert pickle.loads(sent)("x") == "x"
            print(len(captured.spans))
        """,
        tmp_path,
    )
    assert said.strip() == "1"


def parts(site):
    return {name: getattr(site, name) for name in CallSite.__slots__}


@pytest.mark.parametrize("hook", [False, True])
def test_a_site_arrives_as_it_was(hook):
    """A pickled site is the same in everything, and so is a copy with more attributes."""
    sent = CallSite(
        "tool",
        "execute_tool x",
        attributes={"key": "value"},
        extract=json.loads,
        hook=hook,
        merges_with_parent=not hook,
        series=series.histogram("verl.step.duration"),
        defaults=frozenset({"key"}),
    )
    assert parts(pickle.loads(pickle.dumps(sent))) == parts(sent)
    more = sent.with_attributes({"more": 1})
    assert parts(more) == {**parts(sent), "attributes": {"key": "value", "more": 1}}


def test_the_users_word_wins_over_what_nobody_said_in_another_process(recorded):
    """A decorated LLM call that was sent as a pickled span leaves the hook's provider, as it does where it was made."""
    sent = pickle.loads(pickle.dumps(verl_otel.llm("qwen")))
    with Span(CallSite("llm", hook=True, attributes={"gen_ai.provider.name": "vllm"})), sent:
        pass
    assert recorded.spans[0].attributes["gen_ai.provider.name"] == "vllm"


def test_an_instrument_asks_for_its_name_where_it_arrives(recorded, monkeypatch):
    """An instrument that has recorded here records nothing where its name belongs to another kind."""
    done = verl_otel.counter("sent.done", unit="x", description="what")
    done.add(1)
    sent = pickle.dumps(done)
    monkeypatch.setattr(series._Registry, "kinds", {"sent.done": series.Histogram})
    monkeypatch.setattr(series._Registry, "series", {})
    arrived = pickle.loads(sent)
    assert arrived._instrument == done._instrument
    arrived.add(1)
    assert not series._Registry.series


def test_a_site_that_was_taken_over_arrives_so(recorded):
    """The hook's site of a function that a user has decorated stays silent in other processes, too."""
    sent = CallSite("worker", "verl.worker x", hook=True)
    sent.superseded = True
    assert pickle.loads(pickle.dumps(sent)).superseded


def test_a_timer_and_an_unentered_span_can_be_pickled(recorded):
    """What a verb returned can be pickled before it is used, and records where it arrives."""
    for made in (verl_otel.timed("sent.timer"), verl_otel.tool("sent")):
        with pickle.loads(pickle.dumps(made)):
            pass
    assert recorded.value("sent.timer") == 1
    assert recorded.span("execute_tool sent").parent_id == 0
