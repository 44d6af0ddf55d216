# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""TLS and basic authentication of an HTTP server, both configured by files."""

from __future__ import annotations

import base64
import hmac
import ssl
from pathlib import Path
from typing import NamedTuple

from verl_otel.errors import VerlOtelError


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
        matches = [
            hmac.compare_digest(given, user) for user in users
        ]  # compares all users, so that timing reveals nothing
        return scheme.lower() == "basic" and any(matches)
