# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The inference engines and TransferQueue as Prometheus targets, and one job for them in the user's ``prometheus.yml``.

An engine chooses its port at every launch, and a replica knows it when one of its ``init_*`` methods returns; this holds for rollout, reward
and teacher replicas, and for classes of users. With ``rollout.prometheus.enable`` verl overwrites the user's ``prometheus.yml`` on every node.
This hook prevents that: the engines are in the run's targets file, and a job that reads it is merged into ``prometheus.yml``.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, argument, assign, replace
from verl_otel.integrations.verl import prometheus_merge
from verl_otel.integrations.verl.configuration import name_model, read_setting
from verl_otel.prometheus_names import label_name
from verl_otel.recording.attribute_values import to_text
from verl_otel.recording.state import RECORDER
from verl_otel.resource import build as build_resource
from verl_otel.semconv import attributes as attr
from verl_otel.session import current as current_session
from verl_otel.session.prometheus_targets import FOLDER as TARGETS_FOLDER
from verl_otel.session.prometheus_targets import add_entries as add_targets
from verl_otel.session.prometheus_targets import make_entry as make_target
from verl_otel.session.prometheus_targets import read_own as read_targets

_OTHER_STARTS: Final = tuple(f"RolloutReplica.init_{kind}" for kind in ("hybrid", "hybrid_colocated", "colocated"))
_UPDATE: Final = "update_prometheus_config"
_RPC_TIMEOUT: Final = 10.0
_ROLE, _ENGINE, _MODEL, _REPLICA_RANK = map(label_name, (attr.ROLE, attr.ENGINE, attr.MODEL, attr.REPLICA_RANK))
"""Labels of a target."""


def add_engines(addresses: Sequence[str], engine: str, labels: Sequence[dict[str, str]] = ()) -> None:
    """Add engines of this run as targets.

    Args:
        addresses: ``host:port`` of each.
        engine: The engine's name.
        labels: Labels of each, including ``instance`` and ``verl_role``; by default derived from its index.

    Example:
        add_engines(["10.0.0.7:41231"], "vllm")
    """
    current = current_session()
    if current is None or not current.config.exporters:
        return
    own_resource = build_resource(current.config)
    run_id = own_resource.text(attr.RUN_ID)
    entries = []
    for index, address in enumerate(addresses):
        target_labels = labels[index] if labels else {"instance": f"llm_server-{index}-{engine}", _ROLE: "llm_server"}
        target_labels = {_ENGINE: engine, **target_labels, "instance": f"{run_id}/{target_labels['instance']}"}
        entries.append(make_target(own_resource, address, **target_labels))
    add_targets(current.config, entries)


def add_transfer_queue(config: Any) -> None:
    """Add TransferQueue's own ``/metrics`` as a target, if the configuration switches it on.

    Its controller is asked for the address on a thread: it is another process, and may be busy.
    """
    if read_setting(config, "transfer_queue.metrics.enabled") is True:
        threading.Thread(target=_add_transfer_queue, name="verl-otel-transfer-queue", daemon=True).start()


def _add_transfer_queue() -> None:
    with error_boundary.suppress_errors("transfer queue"):
        address = sys.modules["transfer_queue"].get_metrics_endpoint()
        current = current_session()
        if not address or current is None or not current.config.exporters:
            return
        if any(
            address in entry["targets"] for entry in read_targets(current.config)
        ):  # verl's logger for RL-Insight was first
            return
        resource = build_resource(current.config)
        labels = {"instance": f"{resource.text(attr.RUN_ID)}/transfer_queue-{address}", _ROLE: "transfer_queue"}
        add_targets(current.config, [make_target(resource, to_text(address), **labels)])


async def _add_replica(replica: Any) -> None:
    """Add the targets of one replica."""
    config = replica.config
    engine = to_text(getattr(config, "name", "")) or "engine"
    address = getattr(replica, "_server_address", None)
    if not address or not _serves_metrics(engine, config):
        return
    role = "llm_server"
    if getattr(replica, "is_reward_model", False):
        role = "reward"
    elif getattr(replica, "is_teacher_model", False):
        role = "teacher"
    rank = to_text(replica.replica_rank)
    labels = {
        "instance": f"{role}{getattr(replica, 'name_suffix', '')}-{rank}-{engine}",
        _ROLE: role,
        _REPLICA_RANK: rank,
        _MODEL: name_model(getattr(replica.model_config, "path", ""), _find_served_name(role, config)),
    }
    decoders = await _find_decoders(replica)
    decoder_labels = [{**labels, "instance": f"{labels['instance']}-decode-{index}"} for index in range(len(decoders))]
    add_engines([address, *decoders], engine, [labels, *decoder_labels])


def _find_served_name(role: str, config: Any) -> Any:
    """Return the name under which an engine serves the model; None unless verl passes it to the engine."""
    prometheus = getattr(config, "prometheus", None)
    is_passed = role == "llm_server" and getattr(prometheus, "enable", False) is True
    return getattr(prometheus, "served_model_name", None) if is_passed else None


async def _find_decoders(replica: Any) -> list[str]:
    """Return the addresses of decode engines, if prefill and decode are disaggregated: each serves metrics of its own."""
    servers = getattr(replica, "_decode_servers", None) or ()
    requests = asyncio.gather(*(server.get_server_address.remote() for server in servers))
    addresses = await asyncio.wait_for(requests, _RPC_TIMEOUT) if servers else ()
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses]


def _serves_metrics(engine: str, config: Any) -> bool:
    """Return whether an engine serves ``/metrics`` for Prometheus: SGLang only if verl enables it; TensorRT-LLM serves JSON."""
    if engine == "sglang":
        is_enabled = bool(getattr(getattr(config, "prometheus", None), "enable", False))
        return is_enabled or os.environ.get("VERL_RL_INSIGHT_ENABLE") == "1"
    return engine != "trtllm"


def _wrap_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        if RECORDER.on:
            with error_boundary.suppress_errors("engine targets"):
                await _add_replica(self)
        return result

    return start


def _wrap_update(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_prometheus_config(*args: Any, **kwargs: Any) -> Any:
        current = current_session()
        if not RECORDER.on or current is None or current.config.keep_prometheus_yml == "verl":
            return original(*args, **kwargs)
        with error_boundary.suppress_errors("engine targets"):
            existing = {address for entry in read_targets(current.config) for address in entry["targets"]}
            addresses = argument(args, kwargs, 1, "server_addresses") or ()
            if not existing.issuperset(addresses):  # replicas that were started in another way
                add_engines(addresses, to_text(argument(args, kwargs, 2, "rollout_name") or "engine"))
            folder = current.config.run_dir / TARGETS_FOLDER
            if current.config.keep_prometheus_yml == "merge":
                prometheus_merge.begin(argument(args, kwargs, 0, "config"), folder, current.config.run_id)
            else:
                _log_hint(folder)
        return None

    return update_prometheus_config


def _log_hint(folder: Any) -> None:
    error_boundary.warn_once(
        "prometheus.yml",
        "verl-otel: prometheus.yml stays as it is (VERL_OTEL_KEEP_PROMETHEUS_YML=keep). Add to its scrape_configs, once: "
        "{job_name: verl, file_sd_configs: [{files: ['%s/*.json']}]}   or, for several nodes, beside `verl-otel discover --serve`: "
        "{job_name: verl, http_sd_configs: [{url: 'http://127.0.0.1:9465/'}]}",
        folder,
    )


def _patch_update(module: ModuleType) -> None:
    """Replace the function in its module and in modules that imported it by name before."""
    original = getattr(module, _UPDATE)
    replace(module, _UPDATE, _wrap_update)
    for other in list(sys.modules.values()):
        if other is not module and getattr(other, "__dict__", {}).get(_UPDATE) is original:
            assign(other, _UPDATE, getattr(module, _UPDATE))


_CONSEQUENCE: Final = "verl overwrites prometheus.yml when rollout.prometheus.enable is on"
HOOKS: Final = (
    Hook.wrapping(
        "verl.workers.rollout.replica",
        "RolloutReplica.init_standalone",
        _wrap_start,
        "no engines among the targets",
        others=dict.fromkeys(_OTHER_STARTS, _wrap_start),
    ),
    Hook("verl.workers.rollout.utils", _UPDATE, _patch_update, _CONSEQUENCE, since="verl 0.8"),
    Hook("verl.experimental.agent_loop.prometheus_utils", _UPDATE, _patch_update, _CONSEQUENCE, until="verl 0.8"),
)
