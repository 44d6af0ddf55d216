# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the scalars of a run as event files for TensorBoard.

Each of verl's keys is a tag. Beside them are rollout/reward_mean, rollout/reward_std, rollout/response_length_mean, ppo/policy_loss, ppo/value_loss,
ppo/entropy, ppo/kl_div, ppo/kl_reference, ppo/clip_ratio, ppo/grad_norm and system/gpu_utilization, and the histograms rollout/reward_dist and
ppo/grad_norm_dist. TensorBoard need not be installed. Steps that a resumed run has trained again have the values of the last attempt.

--samples copies text of the training: of each step the first samples that verl writes to trainer.rollout_data_dir, as rollout/sample_0 and so on.

Examples:
  verl-otel export tensorboard RUN --output tb/my-run
  verl-otel export tensorboard RUN --follow --interval 5
  verl-otel export tensorboard RUN --samples 2
  tensorboard --logdir tb
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from verl_otel._internal import safe_files
from verl_otel._internal.printable import counted, show
from verl_otel.analysis.io import run_files, run_log
from verl_otel.cli import options, rollouts, run_selection
from verl_otel.exporting.tensorboard import event_file, tags
from verl_otel.exporting.tensorboard.event_file import Distribution
from verl_otel.semconv import logs
from verl_otel.semconv.metric_names import HW_GPU_UTILIZATION, SCALAR_SOURCE, TRAINING_STEP, VALIDATION_SCORE

# -- Texts for TensorBoard: the first samples of each step, from the files that verl itself writes (``trainer.rollout_data_dir``) --

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
        self.written = 0
        """Steps with texts."""

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
                self.written += 1
                yield step, seconds, {f"rollout/sample_{index}": describe(each) for index, each in enumerate(samples)}
        while len(self._awaited) > MAX_AWAITED:
            self._awaited.popitem(last=False)

    def find_reason(self) -> str:
        """Return why there are no texts."""
        if "training" not in rollouts.has_folder(run_files.read_manifest(self._places)):
            return "verl wrote none in this run, which trainer.rollout_data_dir switches on"
        return "the files of trainer.rollout_data_dir are not there; they may be on another node"


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


# -- Reads what verl logged at each step from the files of a run, and what is appended to them --

_WANTED: Final = tuple(name.encode() for name in (TRAINING_STEP, VALIDATION_SCORE, HW_GPU_UTILIZATION, SCALAR_SOURCE))
MAX_READINGS: Final = 10_000
"""GPU readings of all nodes that wait for the end of their step."""


class LoggedStep(NamedTuple):
    """What is known of a step."""

    step: tags.Step
    rewards: Distribution | None


class StepReader:
    """Reads the steps of a run.

    Args:
        places: Folders of the run.
    """

    def __init__(self, places: list[Path]) -> None:
        self._places = places
        self._tails: dict[Path, run_log.Tail[Any]] = {}
        self._begun = False
        self._grouper = tags.StepGrouper()
        self._fields = tags.StepFields()
        self._gpus: deque[tuple[int, float]] = deque(maxlen=MAX_READINGS)
        """Time and utilization (0 to 1)."""
        self._share: float | None = None

    def read(self) -> Iterator[LoggedStep]:
        """Yield the steps that were written since the last call, in the order of time."""
        for record in self._read_new(run_log.find_files(self._places), run_log.parse):
            self._add_record(record)
        for values in self._read_new(run_log.find_metrics(self._places), parse_line):
            self._grouper.add(values)
            self._gpus.extend(
                (value.time_ns, value.value)
                for value in values
                if value.metric == HW_GPU_UTILIZATION and 0 <= value.value <= 1
            )
        self._gpus = deque(sorted(self._gpus), maxlen=MAX_READINGS)
        self._begun = True
        steps = list(self._grouper.take())
        last = {step.number: step.time_ns for step in steps}
        for step in steps:
            is_last = (
                last[step.number] == step.time_ns
            )  # the records of a step that was trained twice are those of the last time
            values, rewards = self._fields.take(step) if is_last else (step.values, None)
            yield LoggedStep(self._with_gpus(step._replace(values=values)), rewards)
        self._fields.bound()

    def _add_record(self, record: run_log.Record) -> None:
        number, scope = record.get(logs.STEP), record[logs.SCOPE]
        if isinstance(number, int):
            self._fields.add(number, scope, record)

    def _read_new(self, paths: list[Path], parse: Any) -> Iterator[Any]:
        for path in paths:
            if path in self._tails or (self._begun and run_log.is_rotated(path)):
                continue  # a file that was rotated meanwhile was read under its former name
            self._tails[path] = run_log.Tail(path, parse)
        for path in paths:
            if path in self._tails:
                yield from self._tails[path].read()

    def _with_gpus(self, step: tags.Step) -> tags.Step:
        """Add the mean utilization of the GPUs since the last step, in percent; it is read once a minute."""
        readings = []
        while self._gpus and self._gpus[0][0] <= step.time_ns:
            readings.append(self._gpus.popleft()[1])
        if readings:
            self._share = sum(readings) / len(readings)
        if self._share is None:
            return step
        return step._replace(values={**step.values, "gpu_utilization": 100 * self._share})


def parse_line(line: bytes) -> list[tags.Value] | None:
    """Return the gauges of a line of a metrics file; None if it has none that is wanted, or is damaged."""
    if not any(name in line for name in _WANTED):
        return None
    try:
        document = safe_files.parse_json(line)
        return [
            value
            for resource in document["resourceMetrics"]
            for scope in resource["scopeMetrics"]
            for metric in scope["metrics"]
            for value in _read_metric(metric)
        ]
    except safe_files.READ_ERRORS:
        return None


def _read_metric(metric: dict[str, Any]) -> Iterator[tags.Value]:
    for point in metric.get("gauge", {}).get("dataPoints", ()):
        labels = {
            pair["key"]: str(pair["value"].get("stringValue", json.dumps(pair["value"])))
            for pair in point.get("attributes", ())
        }
        raw = point["asInt"] if "asInt" in point else point["asDouble"]
        yield tags.Value(
            str(metric["name"]), str(metric.get("description", "")), labels, int(point["timeUnixNano"]), float(raw)
        )


# -- the export --

INTERVAL: Final = 5.0
"""Seconds between two looks at the files with ``--follow``."""
FILE: Final = "events.out.tfevents.0000000001.verl-otel"
"""The same name each time, so that a second export replaces the first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the format."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder to write to, created if absent (<run id>.tensorboard)"
    )
    parser.add_argument(
        "--samples", type=options.count, default=0, metavar="N", help=f"texts of each step, {MAX_SAMPLES} at most (0)"
    )
    parser.add_argument("--follow", action="store_true", help="go on with new steps, until Ctrl-C")
    parser.add_argument(
        "--interval", type=options.timeout, default=INTERVAL, metavar="SECONDS", help="seconds between two looks (5)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the events. Returns 1 when the run has no scalars."""
    places = run_selection.find_places(arguments.folders, "export")
    folder: Path = arguments.output or Path(f"{places[0].resolve().name}.tensorboard")
    folder.mkdir(parents=True, exist_ok=True)
    reader, samples = StepReader(places), SampleTexts(places, min(arguments.samples, MAX_SAMPLES))
    with (folder / FILE).open("wb") as stream:
        writer = Writer(stream, samples)
        writer.write(_last_attempts(list(reader.read())))
        stream.flush()
        print(f"{show(folder, 2_000)}: {counted(writer.steps, 'step')}", flush=True)
        while arguments.follow:
            time.sleep(arguments.interval)
            writer.write(list(reader.read()))
            stream.flush()
    if arguments.samples and not samples.written:
        print(f"verl-otel: no samples: {samples.find_reason()}", file=sys.stderr)
    if writer.steps:
        return 0
    print("verl-otel: the run has no scalars of verl", file=sys.stderr)
    return 1


class Writer:
    """Writes steps into an event file; after a lower step number readers discard what they have from there on.

    Args:
        stream: The file.
        samples: Texts of the steps.
    """

    def __init__(self, stream: BinaryIO, samples: SampleTexts) -> None:
        self._stream = stream
        self._samples = samples
        self._tagger = tags.Tagger()
        self._last = -1
        self.steps = 0

    def write(self, steps: list[LoggedStep]) -> None:
        """Append steps."""
        for logged in steps:
            step = logged.step
            seconds = step.time_ns / 1e9
            if self._last < 0:
                self._stream.write(event_file.encode_start(seconds))
            elif step.number < self._last:
                self._stream.write(event_file.encode_restart(seconds, step.number))
            self._last = step.number
            self.steps += 1
            scalars = self._tagger.make_scalars(step.values)
            distributions = self._tagger.make_distributions(step.values, logged.rewards)
            self._stream.write(event_file.encode_step(seconds, step.number, scalars, distributions))
            self._samples.add(step.number, seconds)
        for number, seconds, texts in self._samples.read():
            self._stream.write(event_file.encode_texts(seconds, number, texts))


def _last_attempts(steps: list[LoggedStep]) -> list[LoggedStep]:
    """Return the steps without those that a later attempt of the run repeated. Two records of one step are one step."""
    kept: list[LoggedStep] = []
    for logged in steps:
        while kept and kept[-1].step.number > logged.step.number:
            kept.pop()
        if kept and kept[-1].step.number == logged.step.number:
            before = kept.pop()
            values = {**before.step.values, **logged.step.values}
            logged = LoggedStep(logged.step._replace(values=values), logged.rewards or before.rewards)  # noqa: PLW2901
        kept.append(logged)
    return kept
