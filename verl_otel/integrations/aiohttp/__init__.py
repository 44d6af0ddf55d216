# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""aiohttp: HTTP calls of rewards carry ``traceparent`` and are client spans.

It is switched on only in processes that make such calls, by the code that makes them.
"""

from verl_otel.integrations import server_spans
from verl_otel.integrations.aiohttp import client, routers
from verl_otel.integrations.patch import Hook, register

_REWARD = "verl.experimental.reward_loop.reward_loop"
_ROUTER = "verl.experimental.reward_loop.router.naive_router"
_GIVES = "HTTP calls of rewards carry no trace context"
HOOKS = (
    Hook(_REWARD, "RewardLoopWorker._init_reward_fn", client.patch_worker, _GIVES),
    Hook(_ROUTER, "NaiveRouter.__init__", routers.patch_init, "no HTTP calls of the reward router", since="verl 0.8"),
    Hook(
        _ROUTER,
        "NaiveRouter._make_async_request",
        routers.patch_request,
        "HTTP calls of the reward router are outside of the trajectories",
        since="verl 0.8",
    ),
)


def install() -> None:
    """Register the hooks. Nothing is imported before the first hook runs."""
    register(HOOKS)
    server_spans.register_opener("compute_score", client.watch_call)


def uninstall() -> None:
    """Stop instrumenting new sessions; existing sessions create no more spans."""
    client.switch_off()
