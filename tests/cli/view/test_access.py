# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The live page can be read by any client with the token, and without one only on request."""

import http.cookiejar
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from verl_otel.cli.view.access import Access, read_token
from verl_otel.errors import VerlOtelError
from verl_otel.exporting.http_server import Request

TOKEN = "0123456789abcdef"


def ask(access, path="/", query="", **headers):
    """The status of the refusal; None: answered."""
    reply = access.check(Request("GET", path, query, headers))
    return reply and reply.status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9466", None),
        ("localhost:9466", None),
        ("[::1]:9466", None),
        ("evil.example:9466", 403),
        ("", 403),
        ("10.0.0.1", 403),
    ],
)
def test_without_a_token_only_loopback_names_are_answered(host, status):
    """A page elsewhere whose name resolves to this machine is refused (DNS rebinding)."""
    assert ask(Access(), host=host) == status


def test_the_token_is_needed_everywhere():
    """As bearer token, or as the cookie of a visit with the token in the address; a wrong one is refused."""
    access = Access(TOKEN)
    assert ask(access, "/api/runs", host="127.0.0.1") == ask(access, "/api/runs", authorization="Bearer wrong") == 401
    assert ask(access, authorization="Bearer wrong") == 401
    assert ask(access, "/api/runs", authorization=f"Bearer {TOKEN}") is None
    assert ask(access, query="token=wrong") == 401
    reply = access.check(Request("GET", "/", f"token={TOKEN}", {}))
    headers = dict(reply.headers)
    assert (reply.status, headers["Location"]) == (303, "./")
    assert TOKEN not in headers["Set-Cookie"]
    assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    assert ask(access, query=f"token={TOKEN}x") == 401
    assert ask(access, "/api/runs", cookie=headers["Set-Cookie"].partition(";")[0]) is None


def test_the_address_without_the_token_asks_for_it():
    """As behind a proxy, whose link has none: a form below the path of the proxy, which leads to the page."""
    access = Access(TOKEN)
    for query, status in (("", 200), ("token=wrong", 401)):
        reply = access.check(Request("GET", "/", query, {"host": "127.0.0.1:9466"}))
        assert reply.status == status
        assert re.findall(rb'action="([^"]*)"|name="(token)"', reply.body) == [(b"./", b""), (b"", b"token")]
        assert "form-action 'self'" in dict(reply.headers)["Content-Security-Policy"]


def test_two_servers_of_a_host_do_not_replace_the_cookie_of_each_other():
    """Browsers send the cookies of a host to all its ports."""
    jar = ""
    for token, host in ((TOKEN, "127.0.0.1:9466"), (TOKEN[::-1], "127.0.0.1:9467")):
        reply = Access(token).check(Request("GET", "/", f"token={token}", {"host": host}))
        jar += dict(reply.headers)["Set-Cookie"].partition(";")[0] + "; "
    names = [part.partition("=")[0].strip() for part in jar.split(";")[:2]]
    assert len(set(names)) == 2
    assert ask(Access(TOKEN), "/api/runs", cookie=jar, host="127.0.0.1:9466") is None
    assert ask(Access(TOKEN[::-1]), "/api/runs", cookie=jar, host="127.0.0.1:9467") is None


@pytest.mark.full
def test_the_printed_address_is_needed_to_read_anything(tmp_path):
    """The command as it is, without options: another user of the machine reaches the port, and reads no page and no document."""
    program = Path(sys.executable).with_name("verl-otel")
    with subprocess.Popen(
        [program, "view", tmp_path, "--port", "0"], env=inherit("PYTEST"), stdout=subprocess.PIPE, text=True
    ) as view:
        try:
            link = view.stdout.readline().split()[0]
            assert b'name="token"' in urllib.request.urlopen(urllib.parse.urljoin(link, "/")).read()
            for path in (
                "/app/app.js",
                "/run/r1/report",
                "/api/runs",
                "/api/runs/r1/samples?step=1&group=a",
                "/?token=guess",
            ):
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    urllib.request.urlopen(urllib.parse.urljoin(link, path))
            viewer = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
            assert b"<html" in viewer.open(link).read()
            assert viewer.open(urllib.parse.urljoin(link, "/api/runs")).read() == b"[]"
        finally:
            view.terminate()


def test_a_token_that_others_can_read_is_refused(tmp_path):
    """So is one that is too short."""
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o644)
    with pytest.raises(VerlOtelError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    path.write_text("short")
    with pytest.raises(VerlOtelError, match="16 characters"):
        read_token(path)


def test_a_host_that_is_none_is_a_message(call, tmp_path):
    """No traceback."""
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    done = call("view", tmp_path, "--host", "a..b", "--token-file", path, "--port", "0")
    assert done.code == 2
    assert "cannot be bound" in done.err


def test_other_addresses_than_loopback_need_a_token(call, tmp_path):
    """The command does not start without one."""
    done = call("view", tmp_path, "--host", "0.0.0.0", "--port", "0", "--no-token")
    assert done.code == 2
    assert "--no-token" in done.err
