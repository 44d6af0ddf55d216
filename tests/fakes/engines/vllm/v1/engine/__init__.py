# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of what vLLM's frontend and its engine core tell each other; the real ones have more fields."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class EngineCoreRequest:
    request_id: str
    arrival_time: float
    trace_headers: Mapping[str, str] | None = None
    external_req_id: str | None = None


@dataclass
class EngineCoreOutput:
    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    trace_headers: Mapping[str, str] | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
