# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which variables of the driver are forwarded to the workers: settings, and no secrets.

A runtime environment is visible on Ray's dashboard and in its logs. Variables that hold a secret are therefore not forwarded; the path of a
file with a secret is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

FORWARDED: Final = ("VERL_OTEL_", "OTEL_", "VERL_USE_EXTERNAL_")
OF_THE_NODE: Final = ("VERL_OTEL_PROMETHEUS_ADVERTISE",)
"""Variables that are valid on one node only."""
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_ATTRIBUTES_OF_THE_NODE: Final = (
    *("host.", "os.", "container.", "process.", "service.instance."),
    *("k8s.node.", "k8s.pod.", "k8s.container."),
)
"""Resource attributes of one node, pod or process begin with these. An operator sets them in the driver's pod."""
_SECRET_NAME: Final = re.compile(
    r"HEADERS?$|PASSW|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTHORI[SZ]ATION|BEARER|BASIC_AUTH"
)
_PATH_NAME: Final = re.compile(r"_(?:FILE|PATH|DIR)$")
"""Suffixes of names whose value is the path of a secret. ``OTEL_EXPORTER_OTLP_CLIENT_KEY`` is a path, too."""
_SECRET_VALUE: Final = re.compile(
    r"""
    [^\s/@:,=]*:[^\s/@,]*@[\w.\[-]     # user and password of a URL, with or without its scheme
    | ://[^\s/@]+@                      # a token in place of the user
    | ://[^\s?]*\?[^\s]*=               # a query: keys and signatures
    | \b(?:bearer|basic)(?:\s|%20)+\S   # a header
    """,
    re.VERBOSE | re.IGNORECASE,
)


class Choice(NamedTuple):
    """The variables to forward, and the names of those that are withheld because they hold a secret."""

    forwarded: dict[str, str]
    withheld: list[str]


def choose(environ: Mapping[str, str]) -> Choice:
    """Return which of these variables every process of the run gets."""
    candidates = {
        name: value for name, value in environ.items() if name.startswith(FORWARDED) and name not in OF_THE_NODE
    }
    if _RESOURCE in candidates:
        pairs = candidates.pop(_RESOURCE).split(",")
        kept = ",".join(pair for pair in pairs if not pair.strip().startswith(_ATTRIBUTES_OF_THE_NODE))
        candidates |= {_RESOURCE: kept} if kept else {}
    withheld = sorted(name for name, value in candidates.items() if holds_secret(name, value))
    return Choice({name: value for name, value in candidates.items() if name not in withheld}, withheld)


def holds_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a secret, by its name or its value.

    Example:
        holds_secret("OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:password@host:4318")
    """
    named = bool(_SECRET_NAME.search(name.upper())) and not _PATH_NAME.search(name.upper())
    return bool(value) and (named or bool(_SECRET_VALUE.search(value)))
