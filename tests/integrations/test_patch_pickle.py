# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Patched classes travel to other processes as Ray sends them: by reference and by value."""

import pytest

pytest.importorskip("cloudpickle")

pytestmark = pytest.mark.full

SEND = """
import asyncio, sys
import cloudpickle
import verl_otel
from verl_otel.integrations import patch
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span

SITE = CallSite("span", "hooked")

{definition}

def begin(self, args, kwargs):
    return Span(SITE, {{"arguments": len(args)}})

def finish(span, args, kwargs, result):
    span.set_attribute("result", result)

owner = {owner}
patch.replace(owner, "method", patch.in_span(begin, finish))
patch.replace(owner, "later", patch.in_span(begin))
patch.replace(owner, "static", lambda original: lambda a: original(a) + 1)
made = owner(10)
cloudpickle.dump((owner, made, made.method), open("sent", "wb"))
"""
CLASS = """
class Worker:
    def __init__(self, base):
        self.base = base

    def method(self, a):
        return self.base + a

    async def later(self, a):
        return self.base - a

    @staticmethod
    def static(a):
        return a

    def again(self):
        return super().__repr__() and self.method(5)
"""
RECEIVE = """
import asyncio, pickle
import verl_otel
verl_otel.init(exporters="none")
from verl_otel.recording import collection
owner, made, bound = pickle.load(open("sent", "rb"))
results = [owner(1).method(2), made.method(3), bound(4), made.again(), asyncio.run(made.later(1)), owner.static(7)]
spans = [dict(span.attributes) for span in collection.collect().spans]
print(results, len(spans), [span["result"] for span in spans if "result" in span])
"""


@pytest.fixture
def processes(clean_python, tmp_path):
    """Run scripts one after the other in the same folder; returns what the last one printed."""

    def run(*scripts):
        environ = {"PYTHONPATH": str(tmp_path), "VERL_OTEL_DRAIN_INTERVAL": "60"}
        return [clean_python("-c", script, cwd=tmp_path, **environ).stdout.strip() for script in scripts][-1]

    return run


def test_by_value(processes):
    """A class of the user's script keeps its hooks in the process that it is sent to, for old and new objects."""
    sent = SEND.format(definition=CLASS, owner="Worker")
    assert processes(sent, RECEIVE) == "[3, 13, 14, 15, 9, 8] 5 [3, 13, 14, 15]"


def test_by_reference(processes, tmp_path):
    """A class of an importable module arrives as that process has it: without hooks where none are installed."""
    (tmp_path / "their_host.py").write_text(CLASS)
    sent = SEND.format(definition="import their_host", owner="their_host.Worker")
    assert processes(sent, RECEIVE) == "[3, 13, 14, 15, 9, 7] 0 []"
