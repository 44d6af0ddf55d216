# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of SGLang's requests; the real ones have more fields."""

from dataclasses import dataclass


@dataclass
class GenerateReqInput:
    rid: str | None = None
    external_trace_header: dict | None = None


@dataclass
class EmbeddingReqInput:
    rid: str | None = None
    external_trace_header: dict | None = None
