# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The bounded HTTP server: what it answers to requests of every form, and how many it makes at once."""

import contextlib
import socket
import threading
import time

import pytest

from tests.builders.processes import listening_hosts
from verl_otel.exporting import http_server
from verl_otel.exporting.http_messages import Reply, make_plain_reply
from verl_otel.exporting.http_server import Server

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
        (b"GET /\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (bytes(range(256)) + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000, 431),
    ],
)
def test_a_bad_request_has_its_answer(serve, request_, status):
    """What is no GET request is answered with why, and the next client is served."""
    server = serve()
    assert exchange(server, request_).startswith(b"HTTP/1.1 %d " % status)
    assert b"/metrics" in exchange(server, GOOD)


@pytest.mark.full
def test_a_request_in_pieces_is_understood(serve):
    """A request that arrives in pieces is answered."""
    with connect(serve()) as connection:
        for piece in (GOOD[:3], GOOD[3:20], GOOD[20:]):
            connection.sendall(piece)
            time.sleep(0.01)
        assert b"/metrics" in read_all(connection)


@pytest.mark.parametrize("sent", [b"", b"GET", GOOD])
def test_a_client_that_leaves_costs_nothing(serve, sent):
    """A client that closes at any point leaves nothing behind."""
    server = serve()
    for _ in range(40):
        with connect(server) as connection:
            connection.sendall(sent)
    assert b"/metrics" in exchange(server, GOOD)


@pytest.mark.full
@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
def test_a_late_request_is_dropped(serve, monkeypatch, sent):
    """A request has to be complete in a total time, whatever part of it has arrived."""
    monkeypatch.setattr(http_server, "READ_SECONDS", 0.2)
    begin = time.monotonic()
    assert exchange(serve(), sent) == b""
    assert time.monotonic() - begin < 5


def test_an_answer_that_is_not_read_is_dropped(serve, monkeypatch, wait_for):
    """A client that does not read is dropped after a total time."""
    monkeypatch.setattr(http_server, "WRITE_SECONDS", 0.2)
    server = serve(lambda request: Reply(200, (), bytes(32 << 20)))
    with connect(server) as connection:
        connection.sendall(GOOD)
        wait_for(lambda: server._connections)
        wait_for(lambda: not server._connections)


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


@pytest.mark.full
def test_equal_requests_that_wait_share_an_answer(serve):
    """Requests that wait while an answer is made are answered together, and the answer is younger than each of them."""
    begun, may_end, made = threading.Event(), threading.Event(), []

    def answer(request):
        made.append(request.path)
        begun.set()
        may_end.wait(10)
        return make_plain_reply(200, str(len(made)))

    server = serve(answer)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(server))
        first.sendall(GOOD)
        assert begun.wait(10)
        others = [stack.enter_context(connect(server)) for _ in range(6)]
        for other in others:
            other.sendall(GOOD)
        may_end.set()
        assert read_all(first).endswith(b"\r\n\r\n1\n")
        answers = {read_all(other)[-2:] for other in others}
    assert len(made) <= 1 + -(-len(others) // http_server.ACCEPT_AT_ONCE)
    assert b"1\n" not in answers


@pytest.mark.full
def test_answers_take_a_share_of_the_time(serve):
    """Clients that ask without a pause have a fifth of a core at most for the making of answers."""
    spent = []

    def answer(request):
        begin = time.thread_time()
        while time.thread_time() - begin < 0.02:
            pass
        spent.append(time.thread_time() - begin)
        return make_plain_reply(200, "fine")

    server = serve(answer)
    begin = time.monotonic()
    while time.monotonic() - begin < 1.5:
        assert b"fine" in exchange(server, GOOD)
    assert sum(spent) / (time.monotonic() - begin) < 0.25


def test_more_clients_than_slots_are_all_answered(serve):
    """Requests beyond the number of connections wait in the kernel's queue and are answered later."""
    server = serve()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(4 * http_server.MAX_CONNECTIONS)]
        for client in reversed(clients):
            with contextlib.suppress(OSError):  # dropped before it had sent anything
                client.sendall(GOOD)
        answers = [read_all(client) for client in clients]
        assert sum(b"/metrics" in answer for answer in answers) >= http_server.MAX_CONNECTIONS
        assert b"/metrics" in exchange(server, GOOD)


@pytest.mark.full
def test_a_connection_is_not_replaced_in_its_first_moments(serve, monkeypatch):
    """A client that has just connected and has not sent its request yet keeps its place; later it is replaced."""
    monkeypatch.setattr(http_server, "GRACE_SECONDS", 1.0)
    server = serve()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(server))
        for _ in range(2 * http_server.MAX_CONNECTIONS):
            stack.enter_context(connect(server))
        first.sendall(GOOD)
        assert b"/metrics" in read_all(first)
        begin = time.monotonic()
        assert b"/metrics" in exchange(server, GOOD)  # before the others are dropped as late
        assert time.monotonic() - begin < http_server.READ_SECONDS - 0.5


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


def test_a_server_that_never_began_is_closed():
    """A server that was made and not started frees its port."""
    server = Server(("127.0.0.1", 0), lambda request: make_plain_reply(200, ""))
    server.close()
    assert not listening_hosts(server.port)


@pytest.mark.parametrize(
    ("host", "numeric"),
    [("127.0.0.1", True), ("[::1]", True), ("::", True), ("", True), ("localhost", False), ("a..b", False)],
)
def test_addresses_are_told_from_names(host, numeric):
    """Only a name needs a name server."""
    assert http_server.is_address(host) is numeric
