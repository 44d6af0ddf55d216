# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks requests: any client with the token may read the page, and with ``--no-token`` every client on this machine.

The loopback is no boundary: every user of the machine reaches it, and the page shows what only the user of the training
may read. So every request needs the token, as a bearer token or as a cookie that a visit of ``/?token=...`` sets; ``/``
asks for it, because the link of a proxy has none. With ``--no-token`` only requests to a loopback name are answered: a
page of another site whose name resolves to this machine sends its own name as ``Host`` (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from verl_otel.errors import VerlOtelError
from verl_otel.exporting.http_server import Reply, Request, make_plain_reply, strip_brackets

COOKIE: Final = "verl_otel_view"
"""Beginning of the cookie's name. The port follows: browsers send a host's cookies to all servers on it."""
MIN_LENGTH: Final = 16
"""Shortest token, in characters."""
_FORM: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>verl-otel view</title>
<form action="./"><p>{text} <label>Token of the address that verl-otel view prints, or of its --token-file:
<input name="token" type="password" required autofocus></label> <button>Open</button></p></form></html>
"""


class Access:
    """Checks requests.

    Args:
        token: The token; empty: none.
        secure: Whether the server speaks TLS; the cookie is then sent over TLS only.
    """

    def __init__(self, token: str = "", *, secure: bool = False) -> None:
        self._token = token.encode()
        self._mark = hmac.new(self._token, b"verl-otel view", hashlib.sha256).hexdigest()
        self._secure = secure

    def check(self, request: Request) -> Reply | None:
        """Return the refusal of a request, or the reply that sets the cookie; None if the request is allowed."""
        if not self._token:
            if is_loopback(_host_of(request)):
                return None
            return make_plain_reply(403, "without a token this page is shown to the machine itself only, as 127.0.0.1")
        given = parse_qs(request.query).get("token", [""])[0]
        cookie = f"{COOKIE}_{_port_of(request)}"
        if request.path == "/" and given:
            return self._log_in(given, cookie)
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        cookies = dict(part.strip().partition("=")[::2] for part in request.headers.get("cookie", "").split(";"))
        is_bearer = scheme.lower() == "bearer" and hmac.compare_digest(value.strip().encode(), self._token)
        if is_bearer or hmac.compare_digest(cookies.get(cookie, "").encode(), self._mark.encode()):
            return None
        return _refuse(is_visit=request.path == "/" and not scheme)

    def _log_in(self, given: str, name: str) -> Reply:
        if not hmac.compare_digest(given.encode(), self._token):
            return _ask(401, "Wrong token.")
        cookie = f"{name}={self._mark}; HttpOnly; SameSite=Strict; Path=/{'; Secure' if self._secure else ''}"
        return Reply(303, (("Location", "./"), ("Set-Cookie", cookie), ("Referrer-Policy", "no-referrer")), b"")


def _refuse(*, is_visit: bool) -> Reply:
    """Return the answer to a request without the token: where the page is opened, the question for it."""
    if is_visit:
        return _ask(200, "This page needs a token.")
    text = "open the address that verl-otel view prints, /?token=TOKEN, or send the token as bearer token"
    return make_plain_reply(401, text, ("WWW-Authenticate", "Bearer"))


def _ask(status: int, text: str) -> Reply:
    """Return the page that asks for the token. It has nothing of a run; its form is relative to the path of a proxy."""
    policy = "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    headers = ("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", policy)
    return Reply(status, (*headers, ("Cache-Control", "no-store")), _FORM.format(text=text).encode())


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        VerlOtelError: It cannot be read, is readable by other users, or is too short.
    """
    try:
        mode, token = path.stat().st_mode, path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise VerlOtelError(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    if mode & 0o077:
        raise VerlOtelError(f"{path}: other users can read the token: chmod 600 {path}")
    if len(token) < MIN_LENGTH or not token.isprintable() or " " in token:
        raise VerlOtelError(f"{path}: a token has at least {MIN_LENGTH} characters and no spaces")
    return token


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(strip_brackets(host)).is_loopback
    except ValueError:
        return False


def _host_of(request: Request) -> str:
    host = request.headers.get("host", "")
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


def _port_of(request: Request) -> str:
    port = request.headers.get("host", "").rpartition(":")[2]
    return port if port.isdecimal() and port.isascii() else ""
