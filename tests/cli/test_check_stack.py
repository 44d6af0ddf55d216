# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel check --stack`` and the findings on a node: stand-ins for Prometheus, an engine and Grafana, good and broken."""

import contextlib
import errno
import ssl
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fakes.http_server import HttpServer
from verl_otel import config
from verl_otel.cli import check_stack, stack_components
from verl_otel.integrations.ray.cluster_endpoint import ClusterEndpoint


@pytest.fixture
def serve():
    """Serve documents by their path: ``serve({"/path": document})``; returns ``host:port``. Text is served as it is."""
    with contextlib.ExitStack() as running:

        def start(documents):
            def answer(call):
                found = documents.get(call.path.partition("?")[0])
                found = found() if callable(found) else found
                return 404 if found is None else (200, found)

            return running.enter_context(HttpServer(answer)).address

        yield start


def group_names():
    return {name for path in stack_components.find_rules() for name in check_stack._read_groups(path.read_text())}


def prometheus(groups=None, targets=(), offset=0.0):
    """What a Prometheus answers."""
    groups = [{"name": name, "rules": []} for name in group_names()] if groups is None else groups
    return {
        "/api/v1/query": lambda: {"status": "success", "data": {"result": [0, str(time.time() + offset)]}},
        "/api/v1/rules": {"data": {"groups": groups}},
        "/api/v1/targets": {"data": {"activeTargets": list(targets)}},
    }


def target(address, health="up", error=""):
    return {
        "labels": {"instance": "r/llm_server-0"},
        "scrapeUrl": f"http://{address}/metrics",
        "discoveredLabels": {"__address__": address},
        "health": health,
        "lastError": error,
    }


def grafana(sources=("prometheus",), boards=None):
    uids = check_stack._read_uids() if boards is None else boards
    return {
        "/api/health": {},
        "/api/frontend/settings": {"datasources": {name: {"name": name, "type": name} for name in sources}},
        "/api/search": [{"uid": uid} for uid in uids],
    }


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Check a stack; ``entries``: what runs serve. Returns the findings by their subject; each failed one names what to do next."""

    def run(prometheus, grafana="127.0.0.1:9", entries=()):
        monkeypatch.setenv("STACK_PROMETHEUS", prometheus)
        monkeypatch.setenv("STACK_GRAFANA", grafana)
        monkeypatch.setattr(check_stack.discover, "find_entries", lambda *_: list(entries))
        findings = list(check_stack.check_stack(config.load_config({}, run_dir=tmp_path)))
        assert all(finding.advice for finding in findings if finding.state == "fail")
        return {finding.subject: finding for finding in findings}

    return run


def engine(address):
    labels = {"instance": "r/llm_server-0-vllm", "verl_engine": "vllm", "verl_role": "llm_server"}
    return {"targets": [address], "labels": labels}


def test_a_good_stack(check, serve):
    """Everything answers: each subject is ok."""
    page = serve({"/metrics": "vllm:num_requests_running 0\n"})
    found = check(serve(prometheus(targets=[target(page)])), serve(grafana()), [engine(page)])
    assert {subject: finding.state for subject, finding in found.items()} == dict.fromkeys(
        ("Prometheus server", "rules", "targets", "engines", "Grafana data source", "Grafana boards"), "ok"
    )


def test_a_prometheus_that_is_not_there(check, serve):
    """Nothing listens, or another program does: the command that starts one is named, and the variable with its address."""
    found = check("127.0.0.1:9")["Prometheus server"]
    assert "refuses connections" in found.text
    assert "`verl-otel stack`" in found.advice
    other = check(serve({"/": "hello"}))["Prometheus server"]
    assert other.state == "fail"
    assert "STACK_PROMETHEUS" in other.advice


@pytest.mark.parametrize("answer", ['{"status": "success"}', "[" * 100_000, '{"status": "success", "data": [1]}'])
def test_a_server_that_answers_something_else(check, serve, answer):
    """A finding, not a traceback; the other programs are checked all the same."""
    found = check(serve({"/api/v1/query": answer}), serve(grafana()))
    assert found["Prometheus server"].state == "fail"
    assert "is not" in found["Prometheus server"].text
    assert "STACK_PROMETHEUS" in found["Prometheus server"].advice
    assert found["Grafana boards"].state == "ok"


def test_a_store_without_rules(check, serve):
    """A store that answers queries only, as some that are compatible with Prometheus: a finding, not a traceback."""
    documents = prometheus()
    del documents["/api/v1/rules"]
    found = check(serve(documents))["Prometheus server"]
    assert (found.state, "answers 404" in found.text) == ("fail", True)


def test_rules_that_are_missing_or_fail(check, serve):
    """A group that is not loaded is named, and a rule with an error as well."""
    name, *others = sorted(group_names())
    found = check(serve(prometheus([{"name": each, "rules": []} for each in others])))["rules"]
    assert (found.state, name in found.text) == ("fail", True)
    assert "`verl-otel boards export DIR`" in found.advice
    broken = {"name": "x", "health": "err", "lastError": "many-to-many"}
    groups = [{"name": name, "rules": [broken]}, *({"name": each, "rules": []} for each in others)]
    assert "many-to-many" in check(serve(prometheus(groups)))["rules"].text


def test_targets_that_are_down_or_unknown(check, serve):
    """A target that is down is named with Prometheus's reason; a page that is not scraped with the way to discover it."""
    found = check(serve(prometheus(targets=[target("10.0.0.7:1", "down", "context deadline exceeded")])))
    assert "context deadline exceeded" in found["target"].text
    assert "curl http://10.0.0.7:1/metrics" in found["target"].advice
    page = serve({"/metrics": "vllm:x 1\n"})
    found = check(serve(prometheus()), entries=[engine(page)])["targets"]
    assert (found.state, page in found.text) == ("fail", True)
    assert "`verl-otel stack --cluster`" in found.advice


def test_a_target_of_an_ended_ray(check, serve):
    """Ray's own list outlives it: the file is named."""
    lost = target("10.0.0.7:1", "down", "connection refused")
    lost["labels"]["job"] = "ray"
    advice = check(serve(prometheus(targets=[lost])))["target"].advice
    assert advice.startswith("an ended Ray leaves its list of targets: if no such Ray runs, `rm ")
    assert advice.endswith("prom_metrics_service_discovery.json`")


def test_an_engine_without_statistics(check, serve):
    """An engine that answers without series of its own: the key of verl is named."""
    page = serve({"/metrics": "python_info 1\n"})
    found = check(serve(prometheus(targets=[target(page)])), entries=[engine(page)])["engine"]
    assert found.advice == "set actor_rollout_ref.rollout.disable_log_stats=False"


def test_a_clock_that_is_wrong(check, serve):
    """Prometheus refuses or misplaces what comes from another time."""
    found = check(serve(prometheus(offset=-90.0)))["clocks"]
    assert "-90" in found.text
    assert "timedatectl" in found.advice


def test_a_grafana_without_data_or_boards(check, serve):
    """A missing data source and missing boards are two findings; no Grafana at all is no failure."""
    found = check(serve(prometheus()), serve(grafana(sources=("loki",), boards=("x",))))
    assert found["Grafana data source"].state == found["Grafana boards"].state == "fail"
    assert check(serve(prometheus()))["Grafana"].state == "note"


@pytest.mark.parametrize(
    ("problem", "words", "advice"),
    [
        (errno.ECONNREFUSED, "only on another address", "ss -ltn"),
        ("timeout", "a firewall drops", "open TCP port 4318"),
        (errno.EHOSTUNREACH, "no route", "ip address"),
        ("Name or service not known", "Name or service not known", "curl -v"),
        ("HTTP 401", "the token in Ray's store is not that of the Collector", "`verl-otel stack --cluster`"),
        (
            "TLS: certificate has expired",
            "is not trusted: certificate has expired",
            "`openssl s_client -connect 10.0.0.1:4318`",
        ),
        ("HTTP 404", "HTTP 404", "curl -v"),
    ],
    ids=["bound elsewhere", "firewall", "network", "name", "token", "certificate", "another program"],
)
def test_each_reason_of_a_failed_connection_has_its_own_text(problem, words, advice):
    """Each has its own words and its own next command."""
    text, next_command = check_stack.explain("http://10.0.0.1:4318", problem)
    assert (words in text, advice in next_command) == (True, True), (text, next_command)


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({}, ""),
        ({"HTTP_PROXY": "http://p:1"}, "HTTP_PROXY"),
        ({"HTTPS_PROXY": "http://p:1"}, ""),
        ({"http_proxy": "http://p:1", "NO_PROXY": "localhost,10.0.0.1"}, ""),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, ""),
        ({"all_proxy": "socks5://p:1", "NO_PROXY": "10.0.1.0/24"}, "all_proxy"),
        ({"http_proxy": "http://p:1", "NO_PROXY": "*"}, ""),
    ],
    ids=str,
)
def test_a_proxy_in_between_is_named(environ, variable):
    """The variable that sends OTLP to a proxy, unless the host is exempt from it."""
    assert check_stack.find_proxy("http://10.0.0.1:4318", environ) == variable


def node(**changes):
    """What a node answers."""
    answer = {
        "verl_otel": check_stack.__version__,
        "versions": check_stack._read_versions(),
        "endpoint": "",
        "problem": None,
    }
    return {**answer, "proxies": {}, "time": time.time(), **changes}


def test_versions_and_resources_of_a_node():
    """Versions and resources are reported; those that differ from here are a note."""
    pytest.importorskip("ray", reason="ray is not installed in this environment")
    (found,) = check_stack._judge("node a", node(), {"CPU": 16.0, "GPU": 8.0, "memory": 1e12})
    assert found.state == "ok"
    assert f"ray {check_stack._read_versions()['ray']}" in found.text
    assert "16 CPU, 8 GPU" in found.text
    *_, other = check_stack._judge("node a", node(versions={**check_stack._read_versions(), "ray": "2.1.0"}), {})
    assert (other.state, "ray 2.1.0, here" in other.text) == ("note", True)


def test_a_node_that_does_not_reach_the_endpoint():
    """Refused and proxied are two findings of the node, each with what to do there."""
    url = "http://10.0.0.1:4318"
    refused = list(check_stack._judge("node a", node(endpoint=url, problem=errno.ECONNREFUSED), {}))[-1]
    proxied = list(check_stack._judge("node a", node(endpoint=url, proxies={"HTTP_PROXY": "http://p:1"}), {}))[-1]
    reached = list(check_stack._judge("node a", node(endpoint=url), {}))[-1]
    assert [each.state for each in (refused, proxied, reached)] == ["fail", "fail", "ok"]
    assert "ss -ltn" in refused.advice
    assert "add 10.0.0.1 to NO_PROXY" in proxied.advice


TOKEN = "t0ken-of-the-cluster"


def look(url, token=TOKEN, certificate=""):
    """What a node finds out about an endpoint."""
    return check_stack._make_look(ClusterEndpoint(url, url, token, certificate), ())()["problem"]


@pytest.mark.full
def test_a_node_without_verl_otel_can_load_what_is_sent_to_it(clean_python, tmp_path):
    """The function answers in a process that cannot import verl-otel."""
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="Ray is not installed in this environment")
    function = check_stack._make_look(ClusterEndpoint("http://127.0.0.1:9", "http://127.0.0.1:9", TOKEN), ())
    (tmp_path / "function").write_bytes(cloudpickle.dumps(function))
    code = (
        "import pickle, sys; sys.modules['verl_otel'] = None; print(pickle.load(open('function', 'rb'))()['verl_otel'])"
    )
    assert clean_python("-c", code, cwd=tmp_path).stdout.startswith("!ModuleNotFoundError")


def test_a_node_sends_the_token():
    """Its empty request is accepted with the token of the store, and refused with another one."""

    def answer(call):
        right = (call.method, call.path, call.body) == ("POST", "/v1/metrics", b"")
        return 404 if not right else 200 if call.headers.get("authorization") == f"Bearer {TOKEN}" else 401

    with HttpServer(answer) as server:
        assert look(f"http://{server.address}") is None
        assert look(f"http://{server.address}", "t0ken-of-another-one") == "HTTP 401"
    assert look(f"http://{server.address}") == errno.ECONNREFUSED


@pytest.mark.full
def test_a_node_trusts_the_authority_of_the_store_only(certificates):
    """By TLS its request is accepted with the certificate in the store, and another one is a finding."""
    certificate, key = certificates("server")
    other, _ = certificates("other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with HttpServer(lambda _: 200) as server:
        server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
        url = f"https://{server.address}"
        assert look(url, certificate=Path(certificate).read_text()) is None
        assert look(url, certificate=Path(other).read_text()).startswith("TLS: self")


@pytest.mark.full
@pytest.mark.parametrize(("offset", "found"), [(0.0, 0.0), (-100.0, -100.0), (100.0, 100.0)])
def test_the_clock_of_a_node(offset, found):
    """The start of a worker, which takes long, is no difference of clocks; a difference is one."""
    slow = iter([0.3, 0.0, 0.0])

    def remote():
        time.sleep(next(slow))
        return {"time": time.time() + offset}

    ray = SimpleNamespace(wait=lambda references, timeout: (references, []), get=lambda answer: answer)
    _, seconds = check_stack._ask_node(ray, SimpleNamespace(remote=remote))
    assert seconds == pytest.approx(found, abs=0.2)
