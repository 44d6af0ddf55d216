# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ray: our plug-in in every worker, the trace context over actor calls, and who a process is."""

import sys

from verl_otel import session
from verl_otel.integrations.patch import Hook, register
from verl_otel.integrations.ray import carrier, identity, notices, stalls, start
from verl_otel.session import targets
from verl_otel.session.black_box import neighbours

HOOKS = (
    Hook("ray", "init", start.patch_init, "workers load verl-otel only when they import verl"),
    Hook("ray.util.tracing.tracing_helper", "_tracing_actor_method_invocation", carrier.silence_ray, "Ray's own spans"),
    Hook("ray.actor", "ActorMethod._remote", carrier.patch_actors, "spans of other processes have no parents"),
)


def install() -> None:
    """Register the hooks of Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        carrier.Carrier.early = True
    identity.install()
    targets.add_mirror(notices.BOARD)
    neighbours.join(stalls.CLUSTER)
    current = session.current()
    carries = current is None or current.config.ray_carrier
    register(HOOKS if carries else HOOKS[:1])
