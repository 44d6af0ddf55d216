# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Applies the settings of a session to recording."""

from __future__ import annotations

from verl_otel._internal import error_boundary, private_files
from verl_otel.config import Config
from verl_otel.recording import own_loop, state
from verl_otel.recording.state import RECORDER


def apply(config: Config) -> None:
    """Apply the settings of sampling, memory and file access."""
    RECORDER.sampling.ratio = config.sampler_ratio
    RECORDER.sampling.whole_per_step = config.trajectories_per_step if "file" in config.exporters else 0
    RECORDER.sampling.share_above = config.trajectory_share
    RECORDER.sampling.exemplars = config.exemplar_filter != "always_off"
    RECORDER.convention_aliases = bool(config.semconv_opt_in)
    RECORDER.capacity = config.memory_mib * 1024 * 1024 // (2 * state.SPAN_BYTES)
    RECORDER.verdict_lines = config.verdict_lines
    RECORDER.capture_content = config.capture_content
    own_loop.configure(config.project, config.experiment)
    problem = private_files.use_group(config.files_group)
    if problem:
        error_boundary.warn_once("files group", "verl-otel: VERL_OTEL_FILES_GROUP: %s; files stay private", problem)
