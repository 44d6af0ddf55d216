# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Traces of a Collector's file exporter and of Tempo give the same explanation as the files of the run itself."""

import base64
import json
import random

import pytest

from tests.builders import stories
from verl_otel.analysis import reader
from verl_otel.analysis.io import collector_files
from verl_otel.errors import VerlOtelError


def read_messages(folder):
    """All messages in the trace files of a run."""
    lines = [line for path in sorted(folder.glob("traces-*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def essence(folder):
    """The explanation of a run as far as its traces contain it, without what only its other files have."""
    run = reader.read([folder])[0]
    steps = [(step.number, step.seconds, step.verdicts, step.trajectories, step.path) for step in run.steps]
    slowest = [(item.label, item.parts) for item in run.slowest]
    return run.run_id, run.counts, steps, slowest, run.completeness.orphans


@pytest.fixture
def convert(tmp_path):
    """Convert messages, or the text of a file, and return the folder and the result."""
    folder = tmp_path / "converted"

    def run(content, wanted=""):
        folder.mkdir()
        path = tmp_path / "collector.jsonl"
        text = content if isinstance(content, str) else "".join(json.dumps(message) + "\n" for message in content)
        path.write_text(text, "utf-8")
        return folder, collector_files.convert([path], folder, wanted)

    return run


@pytest.fixture
def traces(tmp_path):
    """The folder of a run that has traces only, which is all that a Collector's file has."""
    folder = stories.training(tmp_path / "r1").write()
    for path in folder.iterdir():
        if not path.name.startswith("traces-"):
            path.unlink()
    return folder


def split_up(messages, seed=1):
    """Return one message per span, in any order, as tail sampling and retries leave them."""
    single = []
    for message in messages:
        for group in message["resourceSpans"]:
            for scope in group["scopeSpans"]:
                single += [
                    {"resourceSpans": [{**group, "scopeSpans": [{**scope, "spans": [span]}]}]}
                    for span in scope["spans"]
                ]
    random.Random(seed).shuffle(single)
    return single


def test_the_order_of_arrival_does_not_matter(convert, traces):
    """Every span in a message of its own, shuffled, gives the explanation of the files."""
    folder, imported = convert(split_up(read_messages(traces)))
    assert imported == ("r1", (), ())
    assert essence(folder) == essence(traces)
    assert sorted(path.name for path in folder.iterdir()) == ["run.json", "traces-otlp.jsonl"]


def to_tempo(message):
    """Return a message as Tempo returns it: ids in base64, names of enumerations."""
    text = json.dumps({"batches": message["resourceSpans"]})
    document = json.loads(text)
    for group in document["batches"]:
        for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
            for part in (span, *span.get("links", ())):
                for key in ("traceId", "spanId", "parentSpanId"):
                    if part.get(key):
                        part[key] = base64.b64encode(bytes.fromhex(part[key])).decode()
            span["kind"] = ["", "SPAN_KIND_INTERNAL", "SPAN_KIND_SERVER", "SPAN_KIND_CLIENT"][span["kind"]]
            if span.get("status", {}).get("code") == 2:
                span["status"]["code"] = "STATUS_CODE_ERROR"
    return document


def test_spans_without_trace_flags_were_sampled(convert, traces):
    """OTLP/protobuf has no sampled flag, only whether the parent is remote; the trajectories are whole as in the files."""
    messages = split_up(read_messages(traces))
    for message in messages:
        for span in message["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            span["flags"] = 0x100
    folder, _ = convert(messages)
    assert essence(folder) == essence(traces)


def test_a_document_of_tempo_is_read(convert, traces):
    """One document over many lines, with ids in base64."""
    groups = [group for message in read_messages(traces) for group in message["resourceSpans"]]
    folder, _ = convert(json.dumps(to_tempo({"resourceSpans": groups}), indent=1))
    assert essence(folder) == essence(traces)


def rename_run(messages, run_id, seconds):
    """Return a later run: other id, other traces, later times."""
    text = json.dumps(messages).replace('"r1"', json.dumps(run_id))
    changed = json.loads(text)
    for message in changed:
        for span in (s for g in message["resourceSpans"] for scope in g["scopeSpans"] for s in scope["spans"]):
            for part in (span, *span.get("links", ())):
                part["traceId"] = f"{int(part['traceId'], 16) + (1 << 100):032x}"
            for key in ("startTimeUnixNano", "endTimeUnixNano"):
                span[key] = str(int(span[key]) + seconds * 10**9)
    return changed


@pytest.mark.parametrize(("wanted", "found"), [("", "second"), ("r1", "r1"), ("sec", "second")])
def test_one_run_of_several_is_read(convert, traces, wanted, found):
    """The run that ended last, or the one that is named by the beginning of its id; the others are listed."""
    messages = read_messages(traces)
    folder, imported = convert([*rename_run(messages, "second", 3600), *messages], wanted)
    assert (imported.run_id, imported.others) == (found, tuple({"r1", "second"} - {found}))
    assert reader.read([folder])[0].counts == reader.read([traces])[0].counts


def test_spans_of_other_services_come_along_in_the_traces_of_the_run(convert, traces):
    """An engine's span in a trajectory is read; one in a trace of its own is not."""
    messages = read_messages(traces)
    span = next(s for m in messages for g in m["resourceSpans"] for scope in g["scopeSpans"] for s in scope["spans"])
    own = {**span, "spanId": "00000000000000aa", "parentSpanId": span["spanId"], "name": "llm_request"}
    other = {**own, "traceId": "ab" * 16}
    engine = {"attributes": [{"key": "service.name", "value": {"stringValue": "vllm"}}]}
    foreign = {"resourceSpans": [{"resource": engine, "scopeSpans": [{"spans": [own, other]}]}]}
    folder, _ = convert([*messages, foreign])
    text = (folder / "traces-otlp.jsonl").read_text()
    assert (text.count("llm_request"), text.count("ab" * 16)) == (1, 0)


@pytest.mark.parametrize(
    ("content", "wanted", "text"),
    [
        ("{}\n", "", "no spans"),
        ("[1, 2]", "", "no spans"),
        ("not JSON", "", "collector.jsonl is no OTLP/JSON: no JSON"),
        ("", "", "no spans"),
    ],
)
def test_what_is_no_trace_is_refused(convert, content, wanted, text):
    """The message names the expected formats."""
    with pytest.raises(VerlOtelError, match=text):
        convert(content, wanted)


def test_an_unknown_run_is_refused_with_the_runs(convert, traces):
    """The message lists the runs that are there."""
    with pytest.raises(VerlOtelError, match="xx is not in the files, which have the runs: r1"):
        convert(read_messages(traces), "xx")


def test_damaged_messages_are_passed_over(convert, traces):
    """Lines that are cut off, and messages of another form, are reported; the rest is read."""
    lines = [json.dumps(message) for message in read_messages(traces)]
    strange = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]})
    folder, imported = convert("\n".join([*lines, strange, lines[0][:50]]))
    assert len(imported.problems) == 2
    assert essence(folder) == essence(traces)
