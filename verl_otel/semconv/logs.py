# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Levels, scopes and field names of the run log."""

from typing import Final

DEBUG: Final = 5
INFO: Final = 9
WARNING: Final = 13
ERROR: Final = 17
CRITICAL: Final = 21
"""OTLP severity numbers (`opentelemetry.proto.logs.v1.SeverityNumber`)."""
OFF: Final = 25
"""Above all of them: nothing is logged."""
LEVELS: Final = {"DEBUG": DEBUG, "INFO": INFO, "WARNING": WARNING, "ERROR": ERROR, "CRITICAL": CRITICAL}
NAMES: Final = {number: name for name, number in LEVELS.items()}

TRAINING: Final = "training"
ROLLOUT: Final = "rollout"
PPO: Final = "ppo"
REWARD: Final = "reward"
"""Scope of what the reward function returned beside the scores of a step."""
TIMING: Final = "timing"
"""Scope of the seconds of each of verl's timers in a step, by its name."""
VALIDATION: Final = "validation"
HELD: Final = "held"
"""Scope of the events about steps that were held: in OTLP the event ``verl.held``."""
SAMPLE: Final = "sample"
WORKER: Final = "worker"
PYTHON: Final = "log"
"""Scope of records of Python's ``logging``."""
REPORTS: Final = "verl_otel.watchdog"
"""Logger of the reports of the watchdog. They have what events and spans have, and no content of users; other lines of verl-otel may quote an
alert or an error of the user's code."""

TIMESTAMP: Final = "timestamp"
LEVEL: Final = "level"
SCOPE: Final = "scope"
STEP: Final = "step"
TRACE_ID: Final = "trace_id"
SPAN_ID: Final = "span_id"
RESERVED: Final = (TIMESTAMP, LEVEL, SCOPE, STEP, TRACE_ID, SPAN_ID)
"""Keys of every line; fields of these names get an underscore."""

FILE: Final = "verl_logs"
"""Beginning of the file names."""
EVENT_PREFIX: Final = "verl."
"""Beginning of event names and attributes in OTLP: ``verl.rollout``, ``verl.rollout.reward_mean``."""
