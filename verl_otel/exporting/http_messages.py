# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of the HTTP server: how they are read and written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

_TELLING: Final = ("accept", "accept-encoding", "authorization")
"""Headers on which an answer may depend."""


class Request(NamedTuple):
    """A request without its body."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """Names in lower case."""

    @property
    def key(self) -> Hashable:
        """What decides the answer."""
        return self.method, self.path, self.query, *map(self.headers.get, _TELLING)


class Reply(NamedTuple):
    """An answer. Length and connection headers are added when it is sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def encode_head(self) -> bytes:
        """Return the status line and all headers."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"Content-Length: {len(self.body)}", "Connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1", "replace")


class BadRequestError(Exception):
    """What was received is not an HTTP request."""


def parse_request(head: bytes) -> Request:
    """Return the request of a request line and headers.

    Raises:
        BadRequestError: They are malformed.
    """
    first, *lines = head.decode("latin-1").splitlines() or [""]
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, target, version
        raise BadRequestError(first[:80])
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequestError(line[:80])
        headers[name.strip().lower()] = value.strip()
    path, _, query = parts[1].partition("?")
    return Request(parts[0], path, query, headers)


def make_plain_reply(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """Return an answer of one line of text."""
    return Reply(status, (("Content-Type", "text/plain; charset=utf-8"), *headers), f"{text}\n".encode())
