# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl.engine.memory.asleep``: what the processes of an engine hold on GPUs right after verl has put it to sleep.

Engines that share GPUs with the trainer sleep while it trains. What they keep (CUDA contexts, graphs, communicators, weights at a shallow level of
sleep) the trainer lacks. The driver is asked once for each sleep, on a thread, in the server actor of the engine, whose children the processes of the
engine are. NVIDIA only; where the ids of processes are not those of the driver, as in some containers, there is no such metric.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.gpu import nvml
from verl_otel.integrations.gpu.device import Unreadable
from verl_otel.integrations.patch import Hook
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.series import gauge
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.session import current_session
from verl_otel.system import procfs

_NEVER_SLEEPS: Final = "STANDALONE"
"""Mode of a replica with GPUs of its own."""


class _Reading:
    """The thread that reads the driver. No other one is started while it waits for the driver."""

    thread: threading.Thread | None = None


def _measure(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    yield
    session = current_session()
    is_off = not RECORDER.on or (session is not None and not session.config.hardware)
    if is_off or not _is_asleep(args[0]) or (_Reading.thread is not None and _Reading.thread.is_alive()):
        return
    _Reading.thread = threading.Thread(target=measure, name="verl-otel-sleep", daemon=True)
    _Reading.thread.start()


def _is_asleep(server: Any) -> bool:
    """Return whether a server whose ``sleep`` has returned is asleep."""
    mode = getattr(getattr(server, "rollout_mode", None), "name", "")
    return bool(server.config.free_cache_engine) and mode != _NEVER_SLEEPS and getattr(server, "node_rank", 0) == 0


@error_boundary.never_raises("sleeping engine")
def measure() -> None:
    """Record what this process and its descendants hold on each GPU."""
    with contextlib.suppress(Unreadable):
        held = nvml.read_processes()
        own = {os.getpid(), *procfs.list_descendants({os.getpid()})} if held else set()
        for device, sizes in held.items():
            if kept := sum(size for pid, size in sizes.items() if pid in own):
                gauge(metric_names.ENGINE_MEMORY_ASLEEP, ((attr.HW_ID, device),)).set(kept)


_GIVES: Final = "no memory of sleeping engines"
HOOKS: Final = tuple(
    Hook.wrapping(
        f"verl.workers.rollout.{module}", f"{name}.sleep", surround("engine sleep", _measure), _GIVES, since=since
    )
    for module, name, since in (
        ("vllm_rollout.vllm_async_server", "vLLMHttpServer", ""),
        ("sglang_rollout.async_sglang_server", "SGLangHttpServer", ""),
        ("trtllm_rollout.trtllm_async_server", "TRTLLMHttpServer", "verl 0.8"),
    )
)
