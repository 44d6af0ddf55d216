# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The inference engines as Prometheus targets, and the user's ``prometheus.yml`` left alone.

An engine chooses its port at every launch, and a replica knows it when one of its ``init_*`` methods returns: rollout, reward and teacher
replicas alike, also a user's own class. With ``rollout.prometheus.enable`` verl writes a whole ``prometheus.yml`` over the
user's on every node; here it writes nothing and the engines are in the run's targets file.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard, session
from verl_otel.integrations.patch import Hook, argument, assign, replace
from verl_otel.recording.store import Store
from verl_otel.recording.values import to_text
from verl_otel.semconv import attributes as attr
from verl_otel.session import resource, targets

_STARTS: Final = ("init_hybrid", "init_hybrid_colocated", "init_colocated", "init_standalone")
_UPDATE: Final = "update_prometheus_config"
_RPC_TIMEOUT: Final = 10.0


def add_engines(addresses: Sequence[str], engine: str, labels: Sequence[dict[str, str]] = ()) -> None:
    """Add engines of this run as targets.

    Args:
        addresses: ``host:port`` of each.
        engine: The engine's name.
        labels: Labels of each, ``instance`` and ``verl_role`` among them; made up from its place in the list if not given.

    Example:
        add_engines(["10.0.0.7:41231"], "vllm")
    """
    current = session.current()
    if current is None or not current.config.exporters:
        return
    mine = resource.build(current.config)
    run_id = mine.text(attr.RUN_ID)
    entries = []
    for index, address in enumerate(addresses):
        said = labels[index] if labels else {"instance": f"llm_server-{index}-{engine}", "verl_role": "llm_server"}
        said = {"verl_engine": engine, **said, "instance": f"{run_id}/{said['instance']}"}
        entries.append(targets.make_entry(mine, address, **said))
    targets.add_entries(current.config, entries)


async def _announce(replica: Any) -> None:
    """Add what one replica serves."""
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
        "verl_role": role,
        "verl_replica_rank": rank,
        "verl_model": to_text(getattr(replica.model_config, "path", "")).rstrip("/").rpartition("/")[2],
    }
    decoders = await _find_decoders(replica)
    many = [{**labels, "instance": f"{labels['instance']}-decode-{index}"} for index in range(len(decoders))]
    add_engines([address, *decoders], engine, [labels, *many])


async def _find_decoders(replica: Any) -> list[str]:
    """Return the addresses of the engines that only decode, where prefill and decode are apart: each has metrics of its own."""
    servers = getattr(replica, "_decode_servers", None) or ()
    asked = asyncio.gather(*(server.get_server_address.remote() for server in servers))
    found = await asyncio.wait_for(asked, _RPC_TIMEOUT) if servers else ()
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found]


def _serves_metrics(engine: str, config: Any) -> bool:
    """Return whether ``/metrics`` of an engine can be read by Prometheus: SGLang's only when verl asks it to, TensorRT-LLM's is JSON."""
    if engine == "sglang":
        asked = bool(getattr(getattr(config, "prometheus", None), "enable", False))
        return asked or os.environ.get("VERL_RL_INSIGHT_ENABLE") == "1"
    return engine != "trtllm"


def _wrap_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        if Store.on:
            with _guard.swallowed("engine targets"):
                await _announce(self)
        return result

    return start


def _wrap_update(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_prometheus_config(*args: Any, **kwargs: Any) -> Any:
        current = session.current()
        if not Store.on or current is None or not current.config.keep_prometheus_yml:
            return original(*args, **kwargs)
        with _guard.swallowed("engine targets"):
            known = {address for entry in targets.read_own(current.config) for address in entry["targets"]}
            addresses = argument(args, kwargs, 1, "server_addresses") or ()
            if not known.issuperset(addresses):  # replicas that were started in a way of their own
                add_engines(addresses, to_text(argument(args, kwargs, 2, "rollout_name") or "engine"))
            _advise(current.config.run_dir / targets.FOLDER)
        return None

    return update_prometheus_config


def _advise(folder: Any) -> None:
    _guard.say(
        "prometheus.yml",
        "verl-otel: prometheus.yml stays as it is (VERL_OTEL_KEEP_PROMETHEUS_YML=0 has verl write it). Add to its scrape_configs, once: "
        "{job_name: verl, file_sd_configs: [{files: ['%s/*.json']}]}   or, for several nodes, beside `verl-otel discover --serve`: "
        "{job_name: verl, http_sd_configs: [{url: 'http://127.0.0.1:9465/'}]}",
        folder,
    )


def _patch_replica(module: ModuleType) -> None:
    for name in _STARTS:
        replace(module.RolloutReplica, name, _wrap_start)


def _patch_update(module: ModuleType) -> None:
    """Replace the function in its module and wherever it was imported by name before."""
    original = getattr(module, _UPDATE)
    replace(module, _UPDATE, _wrap_update)
    for other in list(sys.modules.values()):
        if other is not module and getattr(other, "__dict__", {}).get(_UPDATE) is original:
            assign(other, _UPDATE, getattr(module, _UPDATE))


_GIVES: Final = "verl overwrites prometheus.yml when rollout.prometheus.enable is on"
HOOKS: Final = (
    Hook(
        "verl.workers.rollout.replica", "RolloutReplica.init_standalone", _patch_replica, "no engines among the targets"
    ),
    Hook("verl.workers.rollout.utils", _UPDATE, _patch_update, _GIVES, since="verl 0.8"),
    Hook("verl.experimental.agent_loop.prometheus_utils", _UPDATE, _patch_update, _GIVES, until="verl 0.8"),
)
