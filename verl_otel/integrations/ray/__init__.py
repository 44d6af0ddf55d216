# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ray: the plug-in in every worker, trace context over calls of actors and tasks, and the identity of a process."""

import sys

from verl_otel.integrations.patch import Hook, register
from verl_otel.integrations.ray import cluster, context_propagation, identity, init_hook
from verl_otel.integrations.ray.spilling import SpillCollector
from verl_otel.session import current_session
from verl_otel.session.prometheus_targets import add_target_publisher, remove_target_publisher
from verl_otel.system import collectors
from verl_otel.watchdog.cluster_backend import set_cluster_backend

HOOKS = (
    Hook("ray", "init", init_hook.patch_init, "workers load verl-otel only when they import verl"),
    init_hook.END_CLIENT,
    identity.BEGIN_ACTOR,
    Hook(
        "ray.util.tracing.tracing_helper",
        "_tracing_actor_method_invocation",
        context_propagation.silence_ray,
        "Ray's own spans",
    ),
    Hook(
        "ray.actor", "ActorMethod._remote", context_propagation.patch_actors, "spans of other processes have no parents"
    ),
    Hook(
        "ray.util.client.worker",
        "Worker.call_remote",
        context_propagation.patch_client,
        "with Ray Client spans of other processes have no parents",
    ),
)


def uninstall() -> None:
    """Remove the cluster's backend, target publisher and collector. The hooks are removed with all others."""
    collectors.remove(SpillCollector.name)
    set_cluster_backend(None)
    remove_target_publisher(cluster.REGISTRY)


def install() -> None:
    """Register the hooks of Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        context_propagation.Propagation.early = True
    identity.install()
    add_target_publisher(cluster.REGISTRY)
    set_cluster_backend(cluster.BACKEND)
    collectors.add(SpillCollector())
    current = current_session()
    carries = current is None or current.config.ray_carrier
    register(HOOKS if carries else HOOKS[:3])
