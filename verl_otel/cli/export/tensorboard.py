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
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

from verl_otel._internal.printable import counted, show
from verl_otel.cli import options, run_selection
from verl_otel.cli.export.sample_texts import MAX_SAMPLES, SampleTexts
from verl_otel.cli.export.step_reader import LoggedStep, StepReader
from verl_otel.exporting.tensorboard import event_file, tags

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
    reader = StepReader(places)
    with (folder / FILE).open("wb") as stream:
        writer = Writer(stream, SampleTexts(places, min(arguments.samples, MAX_SAMPLES)))
        writer.write(_last_attempts(list(reader.read())))
        stream.flush()
        print(f"{show(folder, 2_000)}: {counted(writer.steps, 'step')}", flush=True)
        while arguments.follow:
            time.sleep(arguments.interval)
            writer.write(list(reader.read()))
            stream.flush()
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
