# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""SGLang: its own request spans join the trajectory whose request they are. Its metrics are left alone.

Names are those of 0.5.12. SGLang makes spans where the user switches them on (``enable_trace``, ``otlp_traces_endpoint``), in several
processes and by its own exporter; that is his, and all that is done is to say whose request it is.
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
