# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel discover``: the list, the check of each target, and Prometheus's HTTP service discovery."""

import base64
import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from tests.fakes.hostile_endpoints import Endpoint, redirect, slow_body
from tests.fakes.http_server import HttpServer
from verl_otel.cli import check_stack, discover
from verl_otel.cli.serving import HttpAuth
from verl_otel.integrations.ray import discovery
from verl_otel.session import prometheus_file

PAGE = b'# HELP up x\n# TYPE up gauge\nup 1\nverl_step{a="b c"} 2 \n'


@pytest.fixture
def page():
    """Serve one answer under every path; returns ``host:port``. The default is a page of two samples."""
    with contextlib.ExitStack() as running:

        def serve(body=PAGE, code=200, wait=None):
            def answer(_):
                if wait is not None:
                    wait.wait(60)
                return code, body

            server = running.enter_context(HttpServer(answer))
            if wait is not None:
                running.callback(wait.set)
            return server.address

        yield serve


@pytest.mark.full
def test_targets_that_answer_are_listed_and_the_code_is_0(call, listed, page):
    """Each target has a line with its state, address and instance; all of them answer."""
    addresses = [page(), page()]
    listed("r1", *addresses)
    done = call("discover", "--local")
    assert done.code == 0, done.out
    lines = done.out.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [
        ["ok", addresses[0], "r1/trainer-0"],
        ["ok", addresses[1], "r1/trainer-1"],
    ]
    assert lines[0].endswith("2 samples")
    assert lines[-1] == "All 2 targets answer."


@pytest.mark.full
def test_each_way_not_to_answer_is_named_and_the_code_is_1(call, listed, page):
    """Refused, silent, an error page, no metrics and an empty page are told apart, and one of them makes the code 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: it refuses
        refused = f"127.0.0.1:{taken.getsockname()[1]}"
        pages = [page(), page(code=404), page(b'[{"iter": 1}]'), page(b""), page(wait=threading.Event())]
        listed("r1", *pages, refused, "no-such-host.invalid:1")
        done = call("discover", "--local", "--json", "--timeout", "0.5")
    assert done.code == 1
    found = {entry["targets"][0]: (entry["state"], entry["detail"]) for entry in json.loads(done.out)["targets"]}
    assert [found[each][0] for each in pages] == ["ok", "no metrics", "no metrics", "no metrics", "silent"]
    assert "404" in found[pages[1]][1]
    assert "within 0.5 s" in found[pages[4]][1]
    assert found[refused][0] == "refused"
    assert found["no-such-host.invalid:1"][0] == "silent"


@pytest.mark.full
def test_an_engine_that_has_done_nothing_yet_answers(call, listed, page):
    """A page of metrics without a sample is one: an engine counts tokens from its first request on."""
    listed("r1", page(b"# HELP vllm:tokens x\n# TYPE vllm:tokens counter\n"), page(b"# EOF\n"))
    done = call("discover", "--local")
    assert (done.code, done.out.count("0 samples")) == (0, 2)


OFF = b"# TYPE python_info gauge\npython_info 1\n# TYPE http_requests_total counter\nhttp_requests_total 3\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("engine", "role", "key"),
    [
        ("vllm", "llm_server", "actor_rollout_ref.rollout.disable_log_stats=False"),
        ("vllm", "reward", "reward.reward_model.rollout.disable_log_stats=False"),
        ("vllm", "teacher", "inference.disable_log_stats=False"),
        ("sglang", "llm_server", "actor_rollout_ref.rollout.prometheus.enable=True"),
    ],
)
def test_an_engine_whose_statistics_are_off_is_no_ok(call, listed, page, engine, role, key):
    """It answers with series of Python and HTTP and none of its own: the state says so, and the text has verl's setting."""
    listed("r1", page(OFF), verl_engine=engine, verl_role=role)
    done = call("discover", "--local")
    assert done.code == 0  # it answers, and off is verl's default
    first, _, last = done.out.splitlines()
    assert first.startswith("statistics off  ")
    assert key in first
    assert last == "All 1 targets answer; of 1 engine the statistics are off."
    document = json.loads(call("discover", "--local", "--json").out)
    (entry,) = document["targets"]
    assert document["next"] == ["verl-otel stack"]  # it answers
    assert entry["state"] == "statistics off"


@pytest.mark.full
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_with_statistics_is_ok(call, listed, page, engine):
    """A series of its own, or the declaration of one before the first request, says that they are on."""
    declared = f"# HELP {engine}:tokens x\n# TYPE {engine}:tokens counter\n".encode()
    sampled = OFF + f'{engine}:num_running{{model="x"}} 1\n'.encode()
    listed("r1", page(declared), page(sampled), verl_engine=engine)
    assert call("discover", "--local").out.splitlines()[-1] == "All 2 targets answer."


@pytest.mark.full
def test_sglang_without_a_page_of_metrics_says_what_switches_it_on(call, listed, page):
    """It serves no /metrics at all while its metrics are off."""
    listed("r1", page(code=404), verl_engine="sglang", verl_role="llm_server")
    done = call("discover", "--local")
    assert done.code == 1
    assert "404" in done.out
    assert "actor_rollout_ref.rollout.prometheus.enable=True" in done.out


@pytest.mark.full
def test_one_run_is_listed_when_asked_for(call, listed, page):
    """--run leaves the others out; a run without targets is a finding that says what makes them; one that does not exist is named."""
    folder = listed("r1", page())
    listed("r2", page())
    assert "r2" not in call("discover", "--local", "--run", "r1").out
    (folder.parent / "r3").mkdir()
    done = call("discover", "--local", "--run", "r3")
    assert (done.code, done.out.partition(" in ")[0]) == (1, "no targets of run r3")
    assert "whose VERL_OTEL_EXPORTERS has prometheus" in done.out
    done = call("discover", "--local", "--run", "r4")
    assert (done.code, done.out.partition(" in ")[0]) == (1, "no run 'r4'")


@pytest.mark.full
def test_processes_of_another_container_are_listed(call, listed, page, dead_pid):
    """A container that shares name and folder with this machine has process ids of its own: they say nothing here."""
    folder = listed("r1", page(), pid=dead_pid)
    entries = json.loads((folder / "r1.json").read_text())
    entries[0]["labels"]["__meta_verl_otel_machine"] = "another"
    (folder / "r1.json").write_text(json.dumps(entries))
    assert call("discover", "--local").code == 0


@pytest.mark.full
def test_labels_of_others_cannot_forge_lines(call, listed, page):
    """An instance with line breaks and escape sequences stands in one line of the table, and configures no scrape."""
    folder = listed("r1", page())
    entries = json.loads((folder / "r1.json").read_text())
    entries[0]["labels"] |= {"instance": "x\nok  10.0.0.1:1  y\x1b[2J", "__metrics_path__": "/admin"}
    (folder / "r1.json").write_text(json.dumps(entries))
    done = call("discover", "--local")
    assert len(done.out.splitlines()) == 3
    assert "\x1b" not in done.out
    assert r"x\u000aok" in done.out
    assert "__metrics_path__" not in call("discover", "--local", "--json").out


@pytest.mark.full
def test_proxies_are_not_asked(call, listed, page, monkeypatch):
    """A proxy of the shell would be asked for addresses inside of the cluster; it is not."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    listed("r1", page())
    assert call("discover", "--local").code == 0


@pytest.mark.full
def test_cluster_and_file_are_one_list(call, listed, page, monkeypatch):
    """What both the cluster and this machine's file know is listed once; what only one knows is listed, too."""
    both, here, there = page(), page(), page()
    folder = listed("r1", both, here)
    entries = json.loads((folder / "r1.json").read_text())
    far = {"targets": [there], "labels": {**entries[0]["labels"], "instance": "r1/agent_loop-0"}}
    note = discovery.Note(b"k", "r1", [entries[0], far], "/f", "n", "j", "w", driver=False)
    monkeypatch.setattr(discovery, "find_cluster", lambda address: "head:1")
    monkeypatch.setattr(discovery, "read_notes", lambda cluster: [note])
    found = [entry["targets"][0] for entry in json.loads(call("discover", "--json").out)["targets"]]
    assert found == [there, both, here]


@pytest.mark.full
def test_without_a_cluster_this_machine_is_listed_and_it_is_said(call, listed, page, monkeypatch):
    """No Ray here: the list of this machine, and a line that says that it is all."""

    def find(address):
        raise discovery.NoClusterError("no running Ray cluster here")

    monkeypatch.setattr(discovery, "find_cluster", find)
    monkeypatch.setattr(discover, "_printed", set())
    listed("r1", page())
    done = call("discover")
    assert (done.code, done.err) == (
        0,
        "verl-otel: no running Ray cluster here; only the targets of this machine are listed\n",
    )
    assert call("discover", "--address", "head:1").code == 2


def test_a_cluster_that_does_not_answer_is_an_error(call, runs):
    """A head that nobody listens at is said within seconds and ends with code 2."""
    pytest.importorskip("ray", reason="Ray is not installed in this environment")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = call("discover", "--address", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.code == 2
    assert "no Ray cluster at" in done.err
    done = call("discover", "--address", "ray://127.0.0.1:1")
    assert done.code == 2
    assert "use HOST:PORT" in done.err
    assert call("discover", "--address", "a:1", "--local").code == 2


SECONDS = 0.5
ROOM = 4.0
"""Seconds that a busy machine may add."""


def probe(address):
    """Return the answer of a target, and assert that its time was kept."""
    begin = time.monotonic()
    answer = discover.probe({"targets": [address], "labels": {}}, SECONDS)
    assert time.monotonic() - begin < SECONDS + ROOM
    return answer


def endless_metrics(connection, stopped):
    """A page of metrics without an end, as fast as it is taken."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not stopped.is_set():
        connection.sendall(b"up 1\n" * 10_000)


def test_of_a_page_without_an_end_the_beginning_is_read(monkeypatch):
    """Not more than the first bytes count."""
    monkeypatch.setattr(discover, "MAX_BYTES", 40_000)
    with Endpoint(endless_metrics) as endpoint:
        answer = discover.probe({"targets": [endpoint.url.removeprefix("http://")], "labels": {}}, 30)
    assert answer.state == "ok"
    assert 0 < int(answer.text.split()[0]) <= discover.MAX_BYTES // len(b"up 1\n") + 1


def test_an_answer_that_drips_ends_at_its_time_out(monkeypatch):
    """That of a target, of a Prometheus that is checked, and of a service discovery that the trainer asks."""
    for module in (check_stack, prometheus_file):
        monkeypatch.setattr(module, "TIMEOUT", 0.3)
    with Endpoint(slow_body) as endpoint:
        assert discover.probe({"targets": [endpoint.url.removeprefix("http://")], "labels": {}}, 0.3).state == "silent"
        with pytest.raises(check_stack.NoAnswerError):
            check_stack.ask_url(endpoint.url)
        assert prometheus_file.lists_run(endpoint.url, "r1") is None


def test_a_redirect_is_followed_within_the_same_limits():
    """VLLM sends from /metrics to /metrics/; a target that sends round in circles is named."""

    def page(connection, stopped):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nup 1\n")

    with Endpoint(page) as there, Endpoint(redirect(f"{there.url}/metrics/")) as endpoint:
        assert probe(endpoint.url.removeprefix("http://")).text == "1 samples"
    with Endpoint(redirect("/metrics")) as endpoint:
        assert probe(endpoint.url.removeprefix("http://")).state in ("silent", "no metrics")
    with Endpoint(redirect("file:///etc/passwd")) as endpoint:
        assert probe(endpoint.url.removeprefix("http://")).state in ("silent", "no metrics")


@pytest.fixture
def served(runs):
    """Start ``verl-otel discover --serve`` as a process; returns its URL, the process, and its output."""
    started = []

    def start(*arguments, local=True):
        inherited = inherit("PYTEST")
        process = subprocess.Popen(
            [Path(sys.executable).with_name("verl-otel"), "discover", "--serve", "--port", "0", *map(str, arguments)]
            + ["--local"] * local,
            env=inherited,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("serving the targets at http"), line + process.stderr.read()
        return line.split()[4], process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ask(url, user=None, context=None):
    """Ask for the targets; returns the code and the answer."""
    request = urllib.request.Request(url)
    if user is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    handlers = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


@pytest.mark.full
def test_prometheus_gets_the_targets_of_this_moment(served, listed, wait_for):
    """The answer is the JSON list that Prometheus asks for; a run that began later is in the next one."""
    url, _ = served()
    assert url.startswith("http://127.0.0.1:")
    assert ask(url) == (200, "application/json", b"[]")
    listed("r1", "127.0.0.1:1", "127.0.0.1:2")
    listed("r2", "127.0.0.1:3")

    def targets():
        code, kind, body = ask(url)
        assert (code, kind) == (200, "application/json")
        found = json.loads(body)
        return found if len(found) >= 3 else None

    found = wait_for(targets, interval=0.05)
    assert [entry["targets"] for entry in found] == [["127.0.0.1:1"], ["127.0.0.1:2"], ["127.0.0.1:3"]]
    assert {"job", "instance", "verl_role", "verl_run_id"} <= found[0]["labels"].keys()
    assert [entry["targets"] for entry in json.loads(ask(f"{url}?run=r2")[2])] == [["127.0.0.1:3"]]
    assert ask(f"{url}-/healthy")[0] == 200
    assert ask(f"{url}metrics")[0] == 404


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(served, number):
    """SIGTERM and Ctrl-C end the server with code 0 and without a traceback, also while a client holds a connection."""
    url, process = served()
    host, port = url.removeprefix("http://").strip("/").split(":")
    with socket.create_connection((host, int(port))):
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    with pytest.raises(OSError):
        ask(url)


@pytest.mark.full
def test_only_users_of_the_file_may_ask(served, tmp_path):
    """With --basic-auth-file the right password is asked for; the file may change while the server runs."""
    users = tmp_path / "users.txt"
    users.write_text("# who\nprometheus:s3cret:with:colons\nother:x\n")
    users.chmod(0o600)
    url, _ = served("--basic-auth-file", users)
    assert ask(url)[0] == 401
    assert ask(url, "prometheus:wrong")[0] == 401
    assert ask(url, "prometheus")[0] == 401
    assert ask(url, "prometheus:s3cret:with:colons")[0] == 200
    assert ask(url, "other:x")[0] == 200
    assert ask(f"{url}-/healthy")[0] == 200
    users.write_text("other:y\n")
    assert ask(url, "other:x")[0] == 401
    assert ask(url, "other:y")[0] == 200


@pytest.mark.full
def test_tls_from_files(served, certificates, listed):
    """With --tls-cert and --tls-key a client that trusts the certificate gets the list; plain HTTP and silence get nothing."""
    listed("r1", "127.0.0.1:1")
    certificate, key = certificates("server")
    url, _ = served("--tls-cert", certificate, "--tls-key", key)
    assert url.startswith("https://")
    context = ssl.create_default_context(cafile=certificate)
    host, port = url.removeprefix("https://").strip("/").split(":")
    with socket.create_connection((host, int(port))):
        code, _, body = ask(url, context=context)
    assert (code, len(json.loads(body))) == (200, 1)
    with pytest.raises(OSError):
        ask(url.replace("https", "http"))
    assert ask(url, context=context)[0] == 200


@pytest.mark.full
def test_what_cannot_be_served_is_said(shell, tmp_path, certificates):
    """A port that is taken, half of a TLS pair, a missing or open password file: code 2 and what is wrong."""
    certificate, _ = certificates("server")
    users = tmp_path / "users.txt"
    users.write_text("a:b")
    users.chmod(0o644)
    empty = tmp_path / "empty.txt"
    empty.touch(0o600)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases = {
            ("--port", taken.getsockname()[1]): "cannot be bound",
            ("--port", 0, "--tls-cert", certificate): "go together",
            ("--port", 0, "--tls-cert", certificate, "--tls-key", users): "cannot be used for TLS",
            ("--port", 0, "--basic-auth-file", tmp_path / "none"): "No such file",
            ("--port", 0, "--basic-auth-file", users): "chmod 600",
            ("--port", 0, "--basic-auth-file", empty): "user:password",
        }
        for arguments, text in cases.items():
            done = shell("discover", "--serve", "--local", *arguments)
            assert done.code == 2, done
            assert text in done.err
            assert "Traceback" not in done.err


@pytest.mark.full
def test_targets_that_cannot_be_read_leave_prometheus_what_it_has(monkeypatch):
    """While the cluster does not answer the server says 503, on which Prometheus keeps its list; then it goes on."""
    state = {"fails": True}

    def find():
        if state["fails"]:
            raise discovery.ClusterError("the Ray cluster at head:1 does not answer")
        return []

    monkeypatch.setattr(discover, "_printed", set())
    monkeypatch.setattr(discover, "FRESH_SECONDS", 0.0)
    server = discover.Server(("127.0.0.1", 0), HttpAuth(), discover.TargetList(find))
    server.start()
    try:
        code, _, body = ask(server.url)
        assert (code, body) == (503, b"the Ray cluster at head:1 does not answer\n")
        state["fails"] = False
        assert ask(server.url)[0] == 200
    finally:
        server.close()


def test_a_cluster_that_is_away_is_asked_once_for_many_requests():
    """A failure answers for some seconds, too: each question to a cluster that is away costs seconds."""
    asked = []

    def find():
        asked.append(1)
        raise discovery.ClusterError("the Ray cluster at head:1 does not answer")

    targets = discover.TargetList(find)
    for _ in range(5):
        with pytest.raises(discovery.ClusterError, match="does not answer"):
            targets.read()
    assert len(asked) == 1


@pytest.mark.full
def test_it_serves_ipv6(served):
    """An IPv6 address in brackets is bound, and stands in brackets in the URL."""
    url, _ = served("--host", "[::1]")
    assert url.startswith("http://[::1]:")
    assert ask(url)[0] == 200


@pytest.mark.full
def test_an_open_port_without_a_password_is_pointed_out(served):
    """Bound to every address, the server says who can read it."""
    _, process = served("--host", "0.0.0.0")
    process.terminate()
    assert "--basic-auth-file" in process.communicate(timeout=60)[1]


@pytest.mark.full
def test_the_warnings_of_ray_about_its_own_token_are_not_shown(shell, tmp_path):
    """Ray warns that it has found a token, which says nothing to who asked for targets."""
    pytest.importorskip("ray", minversion="2.52")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("ab" * 32)
    done = shell("discover", HOME=tmp_path, RAY_ADDRESS="", RAY_TMPDIR=tmp_path)
    assert done.code == 1
    assert "WARNING" not in done.err
