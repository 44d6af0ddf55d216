# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""vLLM: its own ``llm_request`` spans join the trajectory of the request. Its metrics stay unchanged.

Names are those of the V1 engine from 0.24 to 0.32. verl calls the engine in process and passes no trace headers.
"""

from verl_otel.integrations.patch import Hook, register
from verl_otel.integrations.vllm import engine, requests

_ENGINE = "vllm.v1.engine.async_llm"
_OUTPUT = "vllm.v1.engine.output_processor"
HOOKS = (
    Hook(_ENGINE, "AsyncLLM.__init__", engine.patch_init, "VERL_OTEL_ENGINE_TRACES has no effect on vLLM"),
    Hook(_ENGINE, "AsyncLLM.generate", requests.patch_generate, "vLLM's spans are outside of the trajectories"),
    Hook(
        _OUTPUT, "OutputProcessor.add_request", requests.patch_add, "vLLM's spans of aborted requests have no parents"
    ),
    Hook(
        _OUTPUT,
        "OutputProcessor.do_tracing",
        requests.patch_tracing,
        "vLLM's tracing needs rollout.disable_log_stats=False, or the engine dies",
    ),
)


def install() -> None:
    """Register the hooks of vLLM."""
    register(HOOKS)
