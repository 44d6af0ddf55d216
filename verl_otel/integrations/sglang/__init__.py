# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""SGLang: its own request spans join the trajectory of the request. Its metrics stay unchanged.

Names are those of 0.5.12. SGLang creates spans if the user enables them (``enable_trace``, ``otlp_traces_endpoint``), in several
processes and with its own exporter; this integration only adds the trace context of the caller.
"""

from verl_otel.integrations.patch import Hook, register
from verl_otel.integrations.sglang import metrics, requests

HOOKS = (
    Hook(
        "sglang.srt.managers.tokenizer_manager",
        "TokenizerManager.generate_request",
        requests.patch,
        "SGLang's spans are outside of the trajectories",
    ),
    Hook(
        "sglang.srt.utils.common",
        "set_prometheus_multiproc_dir",
        metrics.patch,
        "SGLang's own metrics may be missing where VERL_OTEL_EXPORTERS holds prometheus",
    ),
)


def install() -> None:
    """Register the hooks of SGLang."""
    register(HOOKS)
