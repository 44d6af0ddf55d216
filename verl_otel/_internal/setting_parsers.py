# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Parsers of settings. A `ValueError` says what is allowed; `verl_otel.config` adds the setting and the value."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from ipaddress import ip_address
from pathlib import Path
from typing import Final, TypeVar

EXPORTERS: Final = ("otlp", "prometheus", "file", "tensorboard", "console", "none")
MAX_NAME: Final = 128
DEFAULT_DIR: Final = "~/.local/state/verl-otel/runs"
TRUE: Final = ("1", "true", "yes", "on")
FALSE: Final = ("", "0", "false", "no", "off")
_Number = TypeVar("_Number", int, float)


def parse_flag(text: str) -> bool:
    """Return a Boolean setting."""
    word = text.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError("use 1 or 0")


def parse_exporters(text: str) -> tuple[str, ...]:
    """Return the exporters of a comma-separated list, without duplicates and ``none``."""
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    if not names or any(name not in EXPORTERS for name in names):
        raise ValueError(f"use a comma-separated list of {', '.join(EXPORTERS)}")
    return tuple(name for name in names if name != "none")


def make_number_parser(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of numbers in a range."""
    return functools.partial(_parse_between, float, low, high, f"use a number from {low:g} to {high:g}")


def make_integer_parser(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of integers in a range."""
    return functools.partial(_parse_between, int, low, high, f"use a whole number from {low} to {high}")


def _parse_between(convert: Callable[[str], _Number], low: _Number, high: _Number, problem: str, text: str) -> _Number:
    try:
        value = convert(text)
    except ValueError:
        raise ValueError(problem) from None
    if not low <= value <= high:
        raise ValueError(problem)
    return value


def make_choice_parser(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts one of several words."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"use {', '.join(words)}")
        return word

    return parse


def make_profile_parser(names: Collection[str]) -> Callable[[str], str]:
    """Return a parser that accepts one of several names, or a path, which it makes absolute. The file need not be there: it may be on another node."""

    def parse(text: str) -> str:
        word = text.strip()
        if word.lower() in names:
            return word.lower()
        if "/" not in word and "." not in word:
            raise ValueError(f"use {', '.join(names)}, or the path of a file")
        return str(parse_path(word))

    return parse


def parse_milliseconds(text: str) -> float:
    """Return milliseconds, at most an hour, as seconds."""
    return make_number_parser(1, 3_600_000)(text) / 1000.0


def parse_path(text: str) -> Path:
    """Return an absolute path, which stays valid after a change of the working directory and in another process."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError("use a path that does not begin with '~': that home folder is not known here") from None
    except OSError:
        raise ValueError("use an absolute path: the working directory is gone") from None


def parse_run_dir(text: str) -> Path:
    """Return the folder of all runs. Without a home folder, as for the user of a container, the default is a temporary folder."""
    try:
        return parse_path(text)
    except ValueError:
        if text != DEFAULT_DIR:
            raise
        return Path(os.environ.get("TMPDIR") or "/tmp", f"verl-otel-{os.getuid()}", "runs")  # noqa: S108 - the user's own


def parse_name(text: str) -> str:
    """Return a word that is valid as the name of a folder and as a label."""
    word = text.strip()
    if (
        not word
        or len(word) > MAX_NAME
        or any(not (char.isalnum() or char in "._-:") for char in word)
        or word.startswith(".")
    ):
        raise ValueError("use 1 to 128 letters, digits, '.', '_', '-' or ':', not beginning with '.'")
    return word


def parse_group(text: str) -> str:
    """Return the name or number of a group. Each process checks whether its machine has the group."""
    word = text.strip()
    if not word or len(word) > MAX_NAME or any(not (char.isalnum() or char in "._-$@\\") for char in word):
        raise ValueError("use the name or the number of a group")
    return word


def parse_host(text: str) -> str:
    """Return the name or address of a host, an IPv6 address without brackets."""
    word = text.strip().removeprefix("[").removesuffix("]")
    try:
        return str(ip_address(word))
    except ValueError:
        if not word or any(not (char.isalnum() or char in ".-_") for char in word):
            raise ValueError("use the name or the address of a host, without a port") from None
    return word


def parse_sampler(text: str) -> str:
    """Return the name of an OpenTelemetry sampler without ``parentbased_``, which always applies here."""
    samplers = ("always_on", "always_off", "traceidratio")
    word = text.strip().lower()
    if word.removeprefix("parentbased_") not in samplers:
        raise ValueError(f"use {', '.join(samplers)}, or one of them after parentbased_")
    return word.removeprefix("parentbased_")


def parse_semconv_opt_in(text: str) -> str:
    """Return ``gen_ai_latest_experimental`` if it is one of the comma-separated words, else nothing: others address other instrumentations."""
    word = "gen_ai_latest_experimental"
    return word if word in (given.strip() for given in text.split(",")) else ""
