# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of SGLang's tokenizer manager: where it finds the trace headers of a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class TokenizerManager:
    def __init__(self, server_args: Any, port_args: Any):
        self.server_args = server_args
        self.found: list[Any] = []

    async def generate_request(self, obj: Any, request: Any = None):
        header = None
        if self.server_args.enable_trace:
            if obj.external_trace_header:
                header = obj.external_trace_header
            elif request:
                header = {name: request.headers[name] for name in ("traceparent",) if name in request.headers}
        self.found.append(header)
        yield {"meta_info": {"finish_reason": None}, "output_ids": [1]}


def make_manager(*, enable_trace: bool) -> TokenizerManager:
    """A manager with the one argument that counts."""
    return TokenizerManager(SimpleNamespace(enable_trace=enable_trace), None)
