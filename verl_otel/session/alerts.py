# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reports what goes wrong and stops nothing: a line in the log of the training, a record of the run log, and an event of the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from verl_otel._internal import error_boundary, log_lines
from verl_otel._internal.printable import show
from verl_otel.config import Config
from verl_otel.recording import run_log
from verl_otel.semconv import logs
from verl_otel.watchdog import event_file

MAX_TEXT: Final = 2000
"""Characters of an alert."""
_logger = logging.getLogger("verl_otel")


def report(config: Config | None, step: int, text: str) -> None:
    """Report an alert.

    Args:
        config: The settings; None: there is no session, and so no event.
        step: Number of the step.
        text: What was seen.
    """
    text = show(text, MAX_TEXT)
    log_lines.warn(_logger, "verl-otel: alert at step %d: %s", step, text)
    run_log.add_step("alert", step, {"text": text}, logs.WARNING)
    append_event(config, "alert", f"step {step}: {text}", {"step": step})


def append_event(config: Config | None, kind: str, text: str, detail: Mapping[str, Any]) -> None:
    """Append an event to those of the run, if it has a folder. A failure is logged once."""
    if config is not None and config.run_path.is_dir():
        try:
            event_file.append_event(config.run_path, kind, text, detail)
        except OSError as error:
            error_boundary.warn_once("events", "verl-otel: an event cannot be written: %s", error.strerror)
