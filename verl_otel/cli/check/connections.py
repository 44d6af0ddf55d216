# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of the checks, and why one fails: nothing listens, it is bound to another address, a firewall, or a proxy in between."""

from __future__ import annotations

import errno
import ipaddress
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from verl_otel._internal import safe_files

TIMEOUT: Final = 5.0
"""Timeout of one request in seconds."""
MAX_BYTES: Final = 32 << 20
_UNREACHABLE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH)


class NoAnswerError(Exception):
    """A request has no usable response; the message is the reason, ``advice`` what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.advice = advice


def ask(url: str) -> Any:
    """Return the JSON document at a URL, without a proxy; None for another response.

    Raises:
        NoAnswerError: There is no response.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT) as answer:
            return safe_files.parse_json(answer.read(MAX_BYTES))
    except urllib.error.HTTPError as error:
        raise NoAnswerError(f"{url} answers {error.code} {error.reason}", "") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        number = reason.errno if isinstance(reason, OSError) else None
        raise NoAnswerError(
            *explain(url, "timeout" if isinstance(reason, TimeoutError) else number or str(reason))
        ) from None
    except ValueError:
        return None


def explain(url: str, problem: int | str) -> tuple[str, str]:
    """Return why a connection failed, and what to do.

    Args:
        url: What was connected to.
        problem: The number of the error of the operating system, ``timeout``, or a text.

    Example:
        explain("http://10.0.0.1:4318", errno.ECONNREFUSED)
    """
    address = urlsplit(url).netloc.rpartition("@")[2]
    port = address.rpartition(":")[2]
    if problem == errno.ECONNREFUSED:
        reason = f"{address} refuses connections: nothing listens there, or only on another address of that machine"
        return reason, f"run `ss -ltn 'sport = :{port}'` there: no line: start it; 127.0.0.1: bind it to {address}"
    if problem == "timeout":
        reason = f"{address} does not answer within {TIMEOUT:g} s: a firewall drops the packets, or the machine is gone"
        return reason, f"open TCP port {port} of that machine for this network, then check again"
    if problem in _UNREACHABLE:
        return (
            f"{address}: there is no route to it",
            "use an address in a network that both machines are part of (`ip address`)",
        )
    text = problem if isinstance(problem, str) else errno.errorcode.get(problem, str(problem))
    return f"{address}: {text}", f"run `curl -v {url}` here"


def find_proxy(url: str, environ: Mapping[str, str]) -> str:
    """Return the variable that would send requests for a URL to a proxy; empty if none does. OTLP over HTTP heeds them.

    Example:
        find_proxy("http://10.0.0.1:4318", {"HTTP_PROXY": "http://proxy:3128"}) == "HTTP_PROXY"
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    exempt = [word.strip() for word in (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")]
    if any(word == "*" or (word and (host == word or host.endswith(f".{word.lstrip('.')}"))) for word in exempt):
        return ""
    if any(_is_in_network(host, word) for word in exempt):
        return ""
    names = (f"{parts.scheme}_proxy", f"{parts.scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    return next((name for name in names if environ.get(name)), "")


def _is_in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
