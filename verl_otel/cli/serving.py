# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What commands that serve until they are stopped have in common: the signals that end them, TLS and basic authentication by files."""

from __future__ import annotations

import _thread
import base64
import contextlib
import hmac
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from verl_otel.errors import VerlOtelError

if TYPE_CHECKING:
    import socket
    import ssl


LOOK_SECONDS: Final = 1.0
"""Seconds after which a signal that did not end a wait is seen."""


@contextlib.contextmanager
def catch_signals() -> Iterator[threading.Event]:
    """Have SIGINT, SIGTERM and SIGHUP set an event. Children do not inherit this: they start with the usual handlers.

    SIGHUP comes when the terminal is closed; under ``nohup`` it is ignored, and stays so.
    """
    ended = threading.Event()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    # On a thread: the handler may have interrupted `ended.wait` while it holds the lock that `ended.set` needs.
    before = {number: signal.signal(number, lambda *_: _thread.start_new_thread(ended.set, ())) for number in numbers}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for_end(ended: threading.Event) -> None:
    """Wait for the event of `catch_signals`. A signal that comes just before a wait without a time-out would not end it."""
    while not ended.wait(LOOK_SECONDS):
        pass


class HttpAuth(NamedTuple):
    """TLS and users of a server. Changed files are read again, so that certificates can be renewed."""

    certificate: Path | None = None
    key: Path | None = None
    users: Path | None = None

    def make_context(self) -> ssl.SSLContext | None:
        """Return the server's TLS context; None without a certificate.

        Raises:
            VerlOtelError: A file is missing or cannot be used.
        """
        if self.certificate is None and self.key is None:
            return None
        if self.certificate is None or self.key is None:
            raise VerlOtelError("--tls-cert and --tls-key go together")
        import ssl  # 4 MB, which plain HTTP saves

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.load_chain(context)
        return context

    def load_chain(self, context: ssl.SSLContext) -> None:
        """Load certificate and key, initially and after a renewal.

        Raises:
            VerlOtelError: A file is missing or cannot be used.
        """
        try:
            context.load_cert_chain(str(self.certificate), str(self.key))
        except (OSError, ValueError) as error:
            raise VerlOtelError(f"{self.certificate}, {self.key}: cannot be used for TLS: {error}") from None

    def read_users(self) -> list[bytes] | None:
        """Return the ``user:password`` lines; None without authentication.

        Raises:
            VerlOtelError: The file cannot be read, is readable by other users, or contains no user.
        """
        if self.users is None:
            return None
        try:
            mode, lines = self.users.stat().st_mode, self.users.read_bytes().splitlines()
        except OSError as error:
            raise VerlOtelError(f"{self.users}: {error.strerror}") from None
        if mode & 0o077:
            raise VerlOtelError(f"{self.users}: other users can read the passwords: chmod 600 {self.users}")
        users = [line.strip() for line in lines if b":" in line and not line.startswith(b"#")]
        if not users:
            raise VerlOtelError(f"{self.users}: holds no line user:password")
        return users

    def allows(self, header: str) -> bool:
        """Return whether an ``Authorization`` header has the credentials of a user."""
        users = self.read_users()
        if users is None:
            return True
        scheme, _, encoded = header.partition(" ")
        try:
            given = base64.b64decode(encoded.strip(), validate=True)
        except ValueError:
            return False
        # All users are compared, so that timing reveals nothing.
        matches = [hmac.compare_digest(given, user) for user in users]
        return scheme.lower() == "basic" and any(matches)


class Encryption:
    """TLS of the connections of a server, with the current certificate.

    Args:
        auth: Its files.

    Raises:
        VerlOtelError: A file is missing or cannot be used.
    """

    def __init__(self, auth: HttpAuth) -> None:
        self._auth, self._context = auth, auth.make_context()
        self._renewed = self._stamp()

    @property
    def scheme(self) -> str:
        """``https`` with a certificate, else ``http``."""
        return "http" if self._context is None else "https"

    def _stamp(self) -> float:
        try:
            return self._auth.certificate.stat().st_mtime if self._auth.certificate else 0.0
        except OSError:
            return self._renewed

    def wrap(self, connection: socket.socket) -> socket.socket:
        """Return a connection with TLS, if there is a certificate; the handshake follows later."""
        if self._context is None:
            return connection
        stamp = self._stamp()
        if stamp != self._renewed:
            self._renewed = stamp
            try:
                self._auth.load_chain(self._context)
            except VerlOtelError as error:
                print(f"verl-otel: {error}; the certificate of before is used", file=sys.stderr)
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
