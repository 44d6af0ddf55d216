# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""SGLang: its own request spans join the trajectory of the request. Its metrics stay unchanged.

Names are those of 0.5.12. SGLang creates spans if the user enables them (``enable_trace``, ``otlp_traces_endpoint``), in several
processes and with its own exporter; this integration only adds the trace context of the caller. verl passes SGLang a request object and no
HTTP request.

SGLang's processes share metrics through files; ``prometheus_client`` chooses this mode when it is imported. verl-otel
imports that package only if ``VERL_OTEL_EXPORTERS`` holds ``prometheus``, at the first record of a process. If this
happens before SGLang has set the folder of the files, the metrics of SGLang's tokenizer would not reach them. The
choice is repeated here.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from verl_otel.integrations.patch import Hook, argument, register
from verl_otel.integrations.spans import make_headers
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.state import RECORDER

_EXPORTER: Final = "verl_otel.exporting.prometheus"
_FIELD: Final = "external_trace_header"
"""The field that SGLang reads first, and keeps until the request has ended or is aborted."""


def _send_headers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    if RECORDER.on and args[0].server_args.enable_trace:
        obj, request = argument(args, kwargs, 1, "obj"), argument(args, kwargs, 2, "request")
        # Otherwise the caller set headers, or this release has no such field, or SGLang reads those of the request.
        if not getattr(obj, _FIELD, True) and (request is None or "traceparent" not in request.headers):
            headers = make_headers()
            if headers is not None:
                setattr(obj, _FIELD, headers)
    yield


def _choose_mode_again(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Have ``prometheus_client`` choose its mode again after SGLang has set the folder of its files."""
    yield
    if _EXPORTER in sys.modules:
        values: Any = sys.modules["prometheus_client.values"]
        if not values.ValueClass._multiprocess:
            # verl-otel does not use value objects of that package: this affects SGLang's later metrics only.
            values.ValueClass = values.get_value_class()


HOOKS = (
    Hook.wrapping(
        "sglang.srt.managers.tokenizer_manager",
        "TokenizerManager.generate_request",
        # The call returns the host's own generator, so that closing it works as before.
        surround("sglang request", _send_headers),
        "SGLang's spans are outside of the trajectories",
    ),
    Hook.wrapping(
        "sglang.srt.utils.common",
        "set_prometheus_multiproc_dir",
        surround("sglang metrics", _choose_mode_again),
        "SGLang's own metrics may be missing where VERL_OTEL_EXPORTERS holds prometheus",
    ),
)


def install() -> None:
    """Register the hooks of SGLang."""
    register(HOOKS)
