# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the page of a run as one file: the page with the documents that the live page would ask its server for.

The file is opened from disk and contains names from data sets and models. Therefore: a policy that allows only the
hashes of its scripts and style and no request at all (W3C, Content Security Policy Level 3), and documents in a block
that no browser executes.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from verl_otel._internal import printable, safe_files
from verl_otel.analysis.findings import find_excesses
from verl_otel.analysis.model import Explanation, Step
from verl_otel.cli import formatting, headlines
from verl_otel.cli.page import assembly, data
from verl_otel.errors import VerlOtelError

DETAILS: Final = 2_400_000
"""Maximum bytes of the details of steps."""
DETAILED: Final = 400
"""Maximum steps with details."""
POINTS: Final = 60_000
"""Maximum points of all scalars together."""
DEVICES: Final = Path("/dev")
"""Folder whose entries are never replaced: ``/dev/stdout`` may be a link to a regular file."""


def render(run: Explanation) -> str:
    """Return the page as text."""
    lines = [*formatting.headline(run), *(line.text for line in headlines.find_headlines(run))]
    return assembly.render_file(printable.show(run.run_id), filter(None, lines), dict(_list_documents(run)))


def _list_documents(run: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the documents by their addresses, the details of as many steps as fit, the most relevant ones first."""
    name = "runs/" + quote(printable.show(run.run_id), safe="!'()*")  # as encodeURIComponent does it
    count = sum(bool(series.values) for series in run.series)
    yield "run", printable.show(run.run_id)
    yield name, _pack({**data.describe_run(run), "read": 1, "age": None, "log": []})
    for first in range(0, max(1, len(run.steps)), data.MAX_STEPS):
        yield f"{name}/steps?first={first}", _pack(data.list_steps(run, first))
    yield f"{name}/scalars", _pack(data.list_scalars(run, limit=max(60, min(2_000, POINTS // max(1, count)))))
    room, excesses = DETAILS, find_excesses(run.steps, run.steps)
    for index in islice(order_steps(run.steps), DETAILED):
        packed = _pack(data.describe_step(run, index, excesses[index]))
        room -= len(packed)
        if room < 0:
            return
        yield f"{name}/steps/{index}", packed


def _pack(document: Any) -> str:
    text = json.dumps(document, separators=(",", ":"), allow_nan=False, default=list)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def order_steps(steps: Sequence[Step]) -> Iterable[int]:
    """Yield the steps in the order of relevance: failed, delayed and slow ones, interleaved with evenly spread ones."""
    order = sorted(
        range(len(steps)),
        key=lambda index: (
            not steps[index].path,  # without a path there is little detail
            not steps[index].failed,
            -max((verdict.saved for verdict in steps[index].verdicts), default=0.0),
            -steps[index].seconds,
        ),
    )
    spread = sorted(range(len(steps)), key=lambda index: (not steps[index].path, _bits(index)))
    # two of the worst, then one evenly spread step: slow steps are compared with healthy ones
    mixed = (index for place in range(len(steps)) for index in (*order[2 * place : 2 * place + 2], spread[place]))
    return dict.fromkeys(mixed)


def _bits(index: int) -> int:
    """Return a key that separates neighbours (van der Corput sequence: the bits in reverse)."""
    return int(f"{index:024b}"[::-1], 2)


def write(run: Explanation, path: Path) -> None:
    """Write the page atomically.

    Raises:
        VerlOtelError: It cannot be written there.
    """
    if path.is_dir():
        raise VerlOtelError(f"{path} cannot be written: it is a folder; give the name of a file")
    if (path.exists() and not path.is_file()) or path.absolute().parent == DEVICES:
        raise VerlOtelError(f"{path} cannot be written: it is not a regular file, and would be replaced")
    text = render(run)
    try:
        safe_files.write_atomically(path, text, private=False)  # the umask of the user who has asked for it
    except OSError as error:
        raise VerlOtelError(f"{path} cannot be written: {error.strerror}") from None
