# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Masks possible secrets in log lines and URLs: values whose names or shapes are those of secrets."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

MASK: Final = "***"
_SECRET_NAME: Final = re.compile(
    r"passw|passphrase|secret|credential|env_?vars|authorization|bearer|cookie|signature|header"
    r"|(?:keys?|token|auth|pwd|pass|sig|dsn|jwt|sas|netrc)$",
    re.IGNORECASE,
)
_SHAPES: Final = re.compile(
    r"\b(?:sk|pk|nvapi|glpat|xox[a-z])-[\w-]{6,}|\b(?:hf|sk|gh[pousr]|github_pat)_\w{6,}|\b(?:AKIA|ASIA|AIza)[\w-]{10,}|\beyJ[\w-]{6,}(?:\.[\w-]+)*"
    r"|-----BEGIN[ \w]+-----[^-]*(?:-----END[ \w]+-----)?"
    r"|(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{24,}(?![A-Za-z0-9])|(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}={1,2}(?![\w=])"
)
"""Tokens of the services that trainings use (OpenAI, Hugging Face, GitHub, AWS, Google), keys, and long mixtures of
letters and digits (W&B)."""
_LOGIN: Final = re.compile(r"(?<=://)[^\s/'\"]*@")
_SCHEME: Final = re.compile(r"(?i)\b(bearer|basic|digest|token)((?:\s|%20)+)[\w.~+/=%:-]{4,}")
_QUERY: Final = re.compile(r"(://[^\s?'\"]{0,500}\?)[^\s'\"#]+")
_NAMED: Final = re.compile(
    r"""(?<![\w.])(?<!\w-)(?P<name>[A-Za-z_][\w.-]*)["']?\s*[=:]\s*(?P<value>"[^"]*"|'[^']*'|[^\s,;&}\])"']+)"""
)
_OPTION_VALUE: Final = re.compile(r"(?<!\S)(?P<name>--?[A-Za-z][\w-]*)\s+(?P<value>[^\s-]\S*)")


def is_secret_name(name: str) -> bool:
    """Return whether a name may denote a secret: ``judge_key``, ``accessToken``, ``runtime_env.env_vars``. Numbers of tokens do not."""
    return any(map(_SECRET_NAME.search, re.split(r"[./@]", name)))


def mask_text(text: str) -> str:
    """Return text with the values masked whose names or shapes are those of secrets. For log lines and messages.

    Example:
        "api_key=*** sent to https://***@host/path?***"
    """
    masked = _LOGIN.sub(f"{MASK}@", text)
    masked = _QUERY.sub(rf"\1{MASK}", masked)
    masked = _SCHEME.sub(rf"\1\2{MASK}", masked)
    masked = _NAMED.sub(_mask_named, masked)
    masked = _OPTION_VALUE.sub(_mask_named, masked)
    return _SHAPES.sub(MASK, masked)


def _mask_named(match: re.Match[str]) -> str:
    """Return a name and its value, which is masked if the name denotes a secret."""
    if match["value"].startswith(MASK) or not is_secret_name(match["name"].lstrip("-")):
        return match[0]
    return f"{match[0].removesuffix(match['value'])}{MASK}"


def hide_url(url: str) -> str:
    """Return a URL without login, query and fragment, for messages; any other text as it is, without what would be these parts."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    host, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def mask_url(url: str) -> str:
    """Return a URL with login, query and fragment masked. A malformed URL is masked completely."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    login, separator, host = parts.netloc.rpartition("@")
    place = f"{MASK}@{host}" if separator and login else host
    return urlunsplit((parts.scheme, place, parts.path, MASK if parts.query else "", MASK if parts.fragment else ""))
