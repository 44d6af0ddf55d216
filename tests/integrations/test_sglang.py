# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""SGLang's spans are told their callers, and its metrics do not notice us.

The engine is a fake with the real signatures (`engines`); a contract test compares them with the released wheel.
"""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import verl_otel
from verl_otel.integrations import sglang as integration

FAKES = Path(__file__).resolve().parents[1] / "fakes" / "engines"
HEADERS = {"traceparent": "00-000000000000000000000000000000aa-00000000000000bb-01"}


@pytest.fixture
def sglang(monkeypatch):
    """The fake tokenizer manager's module, patched as it is imported."""
    monkeypatch.syspath_prepend(FAKES)
    integration.install()
    yield importlib.import_module("sglang.srt.managers.tokenizer_manager")
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


def make_request(**fields):
    return importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput(rid="r", **fields)


async def ask(manager, obj, request=None):
    """Ask as verl does: for the first and only output."""
    return await manager.generate_request(obj, request).__anext__()


async def test_a_request_says_whose_it_is(sglang, recorded):
    """The request object carries the current span."""
    manager, obj = sglang.make_manager(enable_trace=True), make_request()
    with verl_otel.trajectory("u", 0), verl_otel.llm("m"):
        assert (await ask(manager, obj))["output_ids"] == [1]
    span = recorded.span("chat m")
    (header,) = manager.found
    assert header["traceparent"] == f"00-{span.trace_id:032x}-{span.span_id:016x}-03"


@pytest.mark.parametrize(
    ("fields", "request_headers"),
    [({"external_trace_header": HEADERS}, None), ({}, HEADERS), ({"external_trace_header": HEADERS}, {})],
    ids=["by its field", "by HTTP", "both"],
)
async def test_what_the_caller_gave_stays(sglang, recorded, fields, request_headers):
    """Headers that a caller gives, in the object or over HTTP, win over the current span."""
    manager = sglang.make_manager(enable_trace=True)
    request = SimpleNamespace(headers=request_headers) if request_headers is not None else None
    with verl_otel.span("mine"):
        await ask(manager, make_request(**fields), request)
    assert manager.found == [HEADERS]


async def test_http_without_headers_takes_the_current_span(sglang, recorded):
    """An HTTP request that brings none is the current span's, if there is one."""
    manager = sglang.make_manager(enable_trace=True)
    with verl_otel.span("mine"):
        await ask(manager, make_request(), SimpleNamespace(headers={"content-type": "x"}))
    assert f"{recorded.span('mine').span_id:016x}" in manager.found[0]["traceparent"]


async def test_nothing_is_added_where_nobody_asked(sglang, recorded):
    """Without SGLang's tracing, or without a span, the request is as verl made it."""
    untraced, traced = (sglang.make_manager(enable_trace=on) for on in (False, True))
    objects = [make_request(), make_request()]
    with verl_otel.span("mine"):
        await ask(untraced, objects[0])
    await ask(traced, objects[1])
    assert [each.external_trace_header for each in objects] == [None, None]


async def test_off_means_off(sglang):
    """With telemetry off the request is as verl made it."""
    obj = make_request()
    await ask(sglang.make_manager(enable_trace=True), obj)
    assert obj.external_trace_header is None


@pytest.mark.parametrize("obj", [object(), None, SimpleNamespace()])
async def test_an_object_without_the_field(sglang, recorded, swallow, obj):
    """What has no such field, in another release, is passed on untouched."""
    manager = sglang.make_manager(enable_trace=False)
    manager.server_args = SimpleNamespace(enable_trace=True)
    with verl_otel.span("mine"), pytest.raises(AttributeError, match="external_trace_header"):
        await ask(manager, obj)  # the fake's own complaint, not ours


LAUNCH = """
import sys
import verl_otel.plugin
import verl_otel
{before}
from sglang.srt.utils import add_prometheus_middleware, set_prometheus_multiproc_dir
set_prometheus_multiproc_dir()
from verl_otel import session
with verl_otel.step(1):
    pass
session.flush(0.5)
import prometheus_client
prometheus_client.Counter("sglang:prompt_tokens", "SGLang's own").inc(7)
shown = []
add_prometheus_middleware(shown)
print(shown[0])
"""
RECORD = "with verl_otel.step(0): pass\nfrom verl_otel import session; session.flush(0.5)"


@pytest.fixture
def launch(clean_python, tmp_path):
    """Do what happens in an SGLang server, with or without a record of ours first; return what its ``/metrics`` shows."""

    def run(before, exporters, **variables):
        environ = {
            "PYTHONPATH": str(FAKES),
            "VERL_OTEL_ENABLED": "1",
            "VERL_OTEL_RUN_DIR": str(tmp_path),
            "VERL_OTEL_EXPORTERS": exporters,
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "VERL_OTEL_EXIT_TIMEOUT": "0.2",
            **variables,
        }
        return clean_python("-c", LAUNCH.format(before=before), without=("PROMETHEUS_",), **environ).stdout

    return run


@pytest.mark.full
@pytest.mark.parametrize("before", ["", RECORD], ids=["launch first", "record first"])
@pytest.mark.parametrize("exporters", ["file,otlp", "prometheus,file"])
def test_its_metrics_are_all_there(launch, before, exporters):
    """SGLang's own ``/metrics`` shows its metrics and none of ours, whatever we export and whoever comes first."""
    shown = launch(before, exporters)
    assert "sglang:prompt_tokens_total 7.0" in shown
    assert "verl_" not in shown


@pytest.mark.full
def test_what_was_decided_well_stays(launch, tmp_path):
    """Where the user has said himself where the files are, ``prometheus_client`` goes on with the files that it has."""
    kept = "from prometheus_client import values; kept = values.ValueClass; import atexit"
    check = "atexit.register(lambda: print('kept', values.ValueClass is kept))"
    shown = launch(f"{RECORD}\n{kept}\n{check}", "prometheus,file", PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    assert "kept True" in shown
    assert "sglang:prompt_tokens_total 7.0" in shown


@pytest.mark.full
def test_the_package_is_not_imported_for_files_and_otlp(launch):
    """Neither the plug-in, nor the hooks, nor recording and sending by files and OTLP import ``prometheus_client``."""
    assert_it = "assert 'prometheus_client' not in sys.modules, 'imported'"
    launch(f"{assert_it}\n{RECORD}\n{assert_it}", "file,otlp")
