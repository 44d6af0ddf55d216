# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel discover --serve``: Prometheus's HTTP service discovery, with TLS and passwords from files."""

import base64
import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from verl_otel.cli import discover
from verl_otel.cli.http_auth import HttpAuth
from verl_otel.integrations.ray import discovery


@pytest.fixture
def served(runs):
    """Start ``verl-otel discover --serve`` as a process; returns its URL, the process, and what it said."""
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
def test_a_silent_client_keeps_nobody_waiting(served):
    """Clients that connect and say nothing do not keep Prometheus from its answer, under TLS neither."""
    url, _ = served()
    host, port = url.removeprefix("http://").strip("/").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert ask(url)[0] == 200


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
