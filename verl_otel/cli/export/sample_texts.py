# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Texts for TensorBoard: the first samples of each step, from the files that verl itself writes (``trainer.rollout_data_dir``)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from verl_otel.analysis.io import run_files
from verl_otel.cli import rollouts

MAX_SAMPLES: Final = 10
MAX_TEXT: Final = 4_000
"""Characters of a prompt and of each part of a response; of a longer text the middle is left out."""
MAX_AWAITED: Final = 8
"""Steps whose samples verl may write after their scalars."""


class SampleTexts:
    """The texts of steps, once verl has written them.

    Args:
        places: Folders of the run.
        count: Samples of each step; 0: none, and no file is read.
    """

    def __init__(self, places: Sequence[Path], count: int) -> None:
        self._places = places
        self._count = count
        self._awaited: OrderedDict[int, float] = OrderedDict()
        """Seconds since 1970 by step."""

    def add(self, step: int, seconds: float) -> None:
        """Await the samples of a step."""
        if self._count:
            self._awaited[step] = seconds

    def read(self) -> Iterator[tuple[int, float, dict[str, str]]]:
        """Yield step, seconds and texts by tag of the steps whose samples are there; the last of the others are awaited further."""
        if not self._awaited:
            return
        manifest = run_files.read_manifest(self._places)
        for step, seconds in list(self._awaited.items()):
            samples = rollouts.read_first(manifest, step, self._count)
            if samples:
                del self._awaited[step]
                yield step, seconds, {f"rollout/sample_{index}": describe(each) for index, each in enumerate(samples)}
        while len(self._awaited) > MAX_AWAITED:
            self._awaited.popitem(last=False)


def describe(sample: Mapping[str, Any]) -> str:
    """Return a sample as Markdown. Its own text is in blocks of code: it is shown as it is."""
    parts = [f"score {sample['score']:g}" if sample["score"] is not None else "no score"]
    parts += ["**prompt**", _quote(sample["prompt"])]
    for part in sample["parts"]:
        parts += [f"**{_TITLES[part['kind']]}**", _quote(part["text"])]
    if sample["expected"] is not None:
        parts += ["**expected**", _quote(sample["expected"])]
    return "\n\n".join(parts)


_TITLES: Final = {"text": "response", "tool_call": "tool call", "tool_response": "answer of the tool"}


def _quote(text: str) -> str:
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]}\n… {len(text) - MAX_TEXT:,} characters left out …\n{text[-MAX_TEXT // 2 :]}"
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
