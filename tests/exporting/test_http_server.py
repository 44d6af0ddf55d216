# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: what it answers to requests of every form, how many it serves at once, and what it costs."""

import contextlib
import socket
import threading
import time

import pytest

from tests.builders.processes import listening_hosts
from verl_otel.exporting import http_server
from verl_otel.exporting.http_server import Reply, Server, make_plain_reply

GOOD = b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n"


@pytest.fixture
def serve():
    """Serve what a function answers; returns the server."""
    made = []

    def start(answer=lambda request: make_plain_reply(200, request.path), **keywords):
        made.append(Server(("127.0.0.1", 0), answer, **keywords))
        made[-1].start()
        return made[-1]

    yield start
    for server in made:
        server.close(10)
        assert not server._thread.is_alive()


def connect(server):
    return socket.create_connection((server.host, server.port), timeout=60)


def read_all(connection):
    """Return everything until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def exchange(server, request):
    """Send bytes and return the whole answer."""
    with connect(server) as connection:
        connection.sendall(request)
        return read_all(connection)


def test_a_request_is_understood(serve):
    """Method, path, query and headers arrive; the answer has its length and the connection ends."""
    seen = []

    def answer(request):
        seen.append(request)
        return Reply(200, (("Content-Type", "text/x"),), b"body")

    assert exchange(serve(answer), GOOD) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    )
    assert seen[0][:3] == ("GET", "/metrics", "a=b")
    assert seen[0].headers == {"host": "x", "accept": "text/plain"}


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 405),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (bytes(range(256)) + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 17_000, 431),
    ],
)
def test_a_bad_request_has_its_answer(serve, request_, status):
    """What is no GET request is answered with why, and the next client is served."""
    server = serve()
    assert exchange(server, request_).startswith(b"HTTP/1.1 %d " % status)
    assert b"/metrics" in exchange(server, GOOD)


@pytest.mark.parametrize("sent", [b"", b"GET", GOOD])
def test_a_client_that_leaves_costs_nothing(serve, sent):
    """A client that closes at any point leaves nothing behind."""
    server = serve()
    for _ in range(40):
        with connect(server) as connection:
            connection.sendall(sent)
    assert b"/metrics" in exchange(server, GOOD)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GOOD])
def test_a_client_that_does_not_go_on_is_dropped(serve, monkeypatch, wait_for, sent):
    """A client that sends no more of its request, or reads nothing of the response, holds its place for one time-out."""
    monkeypatch.setattr(http_server, "READ_SECONDS", 0.1)
    monkeypatch.setattr(http_server, "WRITE_SECONDS", 0.1)
    server = serve(lambda request: Reply(200, (), bytes(32 << 20)))
    with connect(server) as connection:
        connection.sendall(sent)
        wait_for(lambda: server._serving)
        wait_for(lambda: not server._serving)


@pytest.mark.parametrize("request_", [GOOD, b"POST / HTTP/1.1\r\n\r\n", b"noise\r\n\r\n"])
def test_there_is_a_pause_after_a_connection(serve, monkeypatch, wait_for, request_):
    """The next one is accepted after a multiple of the CPU time of the one before, whatever it asked for."""
    server, used = serve(), []
    monkeypatch.setattr(server, "_rest", used.append)
    exchange(server, request_)
    wait_for(lambda: not server._serving)
    assert max(used) > 0
    monkeypatch.undo()
    server._rests_until, begin = 0.0, time.monotonic()
    server._rest(0.25)
    assert begin <= server._rests_until - http_server.IDLE_SHARE * 0.25 <= time.monotonic()


def test_a_client_that_drips_is_dropped(serve, monkeypatch):
    """A request has a total time, whatever part of it arrives within."""
    monkeypatch.setattr(http_server, "READ_SECONDS", 0.3)
    with connect(serve()) as connection, contextlib.suppress(OSError):
        while True:  # ends when the server has closed the connection
            connection.sendall(b"x")
            time.sleep(0.02)


def test_a_large_answer_arrives_whole(serve):
    """An answer that no buffer holds arrives as it is."""
    body = bytes(range(256)) * (1 << 15)
    found = exchange(serve(lambda request: Reply(200, (), body)), GOOD)
    assert found.partition(b"\r\n\r\n")[2] == body


def test_a_failed_answer_is_an_error_of_the_server(serve, swallow):
    """An exception becomes code 500 and the server goes on."""

    def answer(request):
        if request.path == "/bad":
            raise RuntimeError("secret")
        return make_plain_reply(200, "fine")

    server = serve(answer)
    found = exchange(server, b"GET /bad HTTP/1.1\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in found
    assert b"fine" in exchange(server, GOOD)


def test_more_clients_than_slots_are_all_answered(serve):
    """Clients beyond the number of connections wait in the kernel's queue and are answered later."""
    server = serve()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(2 * http_server.MAX_CONNECTIONS)]
        for client in reversed(clients):
            client.sendall(GOOD)
        assert all(b"/metrics" in read_all(client) for client in clients)


@pytest.mark.full
def test_closing_frees_the_port_while_an_answer_is_made(serve):
    """Closing waits for an answer no longer than allowed, and nothing listens afterwards."""
    begun, may_end = threading.Event(), threading.Event()

    def answer(request):
        begun.set()
        may_end.wait(10)
        return make_plain_reply(200, "late")

    server = serve(answer)
    with connect(server) as connection:
        connection.sendall(GOOD)
        assert begun.wait(10)
        begin = time.monotonic()
        server.close(0.1)
        assert time.monotonic() - begin < 2
        assert not listening_hosts(server.port)
        may_end.set()


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch):
    """A resolver waits for a minute; an address asks no name server."""
    ended, real = threading.Event(), socket.getaddrinfo

    def find(host, *arguments, flags=0, **keywords):
        if host == "a.name" and not flags & socket.AI_NUMERICHOST:
            ended.wait(60)
        return real(host, *arguments, flags=flags, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(http_server, "RESOLVE_SECONDS", 0.2)
    with pytest.raises(OSError, match=r"the name a.name was not resolved within 0.2 s"):
        Server(("a.name", 0), make_plain_reply)
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "verl-otel-resolve":
            thread.join(60)
