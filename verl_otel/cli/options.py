# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Types of options that commands share: numbers, ports, durations and sizes.

Each one raises `argparse.ArgumentTypeError` for text that it does not accept; the message says what to give.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from verl_otel import config
from verl_otel.errors import VerlOtelError
from verl_otel.health import profiles
from verl_otel.health.profiles import Profile

MAX_PORT: Final = 65535
MAX_COUNT: Final = (1 << 63) - 1
MAX_TIMEOUT: Final = 86400.0
"""Longest time-out in seconds: a day."""
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES: Final = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_AMOUNT: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]{0,3})")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Declare the runs that are read: the positional arguments ``folders``, and ``--run-dir``."""
    text = "folder or id of the run; several for several nodes"
    parser.add_argument("folders", nargs="*", type=Path, metavar="RUN", help=text)
    add_run_dir(parser)


def add_json(parser: Any) -> None:
    """Declare ``--json``, of a parser or of one of its groups, as all functions here."""
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def add_run_dir(parser: Any) -> None:
    """Declare ``--run-dir``. It takes the place of ``VERL_OTEL_RUN_DIR`` while the command runs."""
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="folder that holds one folder per run")


def add_address(parser: Any) -> None:
    """Declare ``--address``."""
    text = "head of the Ray cluster (default: RAY_ADDRESS, or the one on this machine)"
    parser.add_argument("--address", metavar="HOST:PORT", help=text)


def add_tls(parser: Any, certificate: str = "certificate chain: serve HTTPS") -> None:
    """Declare ``--tls-cert``, with its help, and ``--tls-key``."""
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help=certificate)
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of the certificate")


def add_otlp(parser: argparse.ArgumentParser) -> None:
    """Declare ``--otlp``."""
    parser.add_argument(
        "--otlp",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="read traces from this file of a Collector or Tempo (OTLP/JSON) instead of the files of the run; "
        "may be repeated",
    )


def add_profile(parser: argparse.ArgumentParser, default: str) -> None:
    """Declare ``--profile``.

    Args:
        parser: The parser of the command.
        default: Whose thresholds are used without the option, for its help.
    """
    parser.add_argument(
        "--profile",
        type=profile,
        metavar="NAME|FILE",
        help=f"thresholds: {', '.join(profiles.PROFILES)}, or a file ({default})",
    )


def profile(text: str) -> Profile:
    """Return a profile of thresholds, by its name or of a file."""
    try:
        return profiles.load(text)
    except OSError as error:
        known = ", ".join(profiles.PROFILES)
        raise argparse.ArgumentTypeError(f"{text!r} is no profile ({known}) and no file: {error.strerror}") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def load_profile() -> Profile:
    """Return the profile of the settings.

    Raises:
        VerlOtelError: There is no such profile.
    """
    try:
        return profile(config.read("health_profile"))
    except argparse.ArgumentTypeError as error:
        raise VerlOtelError(f"VERL_OTEL_HEALTH_PROFILE: {error}") from None


def count(text: str) -> int:
    """Return an integer of at least 0."""
    return _read(text, 0)


def positive(text: str) -> int:
    """Return an integer of at least 1."""
    return _read(text, 1)


def _read(text: str, least: int) -> int:
    value = int(text) if text.isdecimal() and len(text) <= len(str(MAX_COUNT)) else -1
    if not least <= value <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: give an integer of {least} or more")
    return value


def port(text: str) -> int:
    """Return the number of a port; 0 stands for a free one."""
    value = int(text) if text.isdecimal() and len(text) <= len(str(MAX_PORT)) else -1
    if not 0 <= value <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to {MAX_PORT}")
    return value


def timeout(text: str) -> float:
    """Return a time-out in seconds, more than 0 and at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_TIMEOUT:  # also refuses nan
        raise argparse.ArgumentTypeError(f"{text!r} is no time-out: give seconds, more than 0 and at most a day")
    return value


def duration(text: str) -> float:
    """Return a duration in seconds.

    Example:
        duration("30d") == 2592000.0
    """
    match = _AMOUNT.fullmatch(text.strip())
    unit = _SECONDS.get(match[2]) if match else None
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: give a number with s, m, h, d or w, e.g. 30d")
    return float(match[1]) * unit


def size(text: str) -> int:
    """Return a size in bytes. ``GiB`` and ``G`` are powers of 1024, ``GB`` is one of 1000.

    Example:
        size("10GiB") == 10737418240
    """
    match = _AMOUNT.fullmatch(text.strip())
    unit = _BYTES.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give a number with KiB, MiB, GiB or TiB, e.g. 10GiB")
    return int(float(match[1]) * unit)


class Steps(NamedTuple):
    """Which steps are shown: a number of them, or those with the numbers of a range."""

    most: int
    """0: those of the range."""
    numbers: range = range(0)


def steps(text: str) -> Steps:
    """Return how many steps are shown, or which.

    Example:
        steps("5") == Steps(5); steps("10-20") == Steps(0, range(10, 21))
    """
    return Steps(0, step_range(text)) if "-" in text else Steps(positive(text))


def step_range(text: str) -> range:
    """Return the numbers of steps.

    Example:
        step_range("10-20") == range(10, 21)
    """
    first, dash, last = text.partition("-")
    try:
        begin, end = count(first), count(last)
    except argparse.ArgumentTypeError:
        begin, end = 1, 0
    if begin > end or not dash:
        raise argparse.ArgumentTypeError(f"{text!r} is no range: give the first and the last step, e.g. 10-20")
    return range(begin, end + 1)
