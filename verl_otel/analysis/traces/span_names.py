# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Names of the spans that the analysis looks for; a prefix is followed by a key."""

from __future__ import annotations

from typing import Final

from verl_otel.semconv.spans import SPANS

STEP: Final = SPANS["step"].name
PHASE_PREFIX: Final = SPANS["phase"].name
CALL_PREFIX: Final = SPANS["call"].name
WORKER_PREFIX: Final = SPANS["worker"].name
WEIGHT_SYNC: Final = SPANS["weight_sync"].name
CHECKPOINT: Final = SPANS["checkpoint"].name
VALIDATION: Final = SPANS["validation"].name
TESTING: Final = f"{PHASE_PREFIX}testing"
"""The validation of an own loop; verl's trainers have a span of their own around it."""
LOGGING: Final = SPANS["logging"].name
DATA_LOADING: Final = SPANS["data_loading"].name
BLOCKED: Final = SPANS["blocked"].name
PAUSED: Final = SPANS["paused"].name
STOOD: Final = SPANS["stood"].name
BETWEEN: Final = "verl.between"
"""The time between two steps, which the analysis handles as a span."""
CONSUME: Final = SPANS["consume"].name
TRAJECTORY: Final = SPANS["trajectory"].name
TURN: Final = SPANS["turn"].name
GENERATE: Final = SPANS["generate"].name
TOOL_PREFIX: Final = SPANS["tool"].name
REWARD: Final = SPANS["reward"].name
