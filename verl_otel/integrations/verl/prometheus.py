# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The inference engines and TransferQueue as Prometheus targets, and one job for them in the user's ``prometheus.yml``.

An engine chooses its port at every launch, and a replica knows it when one of its ``init_*`` methods returns; this
holds for rollout, reward and teacher replicas, and for classes of users. With ``rollout.prometheus.enable`` verl
overwrites the user's ``prometheus.yml`` on every node. This hook prevents that: the engines are in the run's targets
file, and a job that reads it is added to ``prometheus.yml``.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.config import Config
from verl_otel.integrations import cluster_store
from verl_otel.integrations.patch import Hook, argument, assign, replace
from verl_otel.integrations.verl.configuration import name_model, read_setting
from verl_otel.prometheus_names import label_name
from verl_otel.recording.attribute_values import to_text
from verl_otel.recording.state import RECORDER
from verl_otel.resource import build_resource
from verl_otel.semconv import attributes as attr
from verl_otel.session import current_session
from verl_otel.session.prometheus_file import add_job, describe_reader, lists_run
from verl_otel.session.prometheus_job import make_pattern
from verl_otel.session.prometheus_targets import TARGETS_FOLDER, add_targets, make_target, read_own_targets

_OTHER_STARTS: Final = tuple(f"RolloutReplica.init_{kind}" for kind in ("hybrid", "hybrid_colocated", "colocated"))
_UPDATE: Final = "update_prometheus_config"
_RPC_TIMEOUT: Final = 10.0
_HINT: Final = (
    "verl-otel: prometheus.yml stays as it is (VERL_OTEL_KEEP_PROMETHEUS_YML=keep). Add to its scrape_configs, once: "
    "{job_name: verl, file_sd_configs: [{files: ['%s']}]}   or, for several nodes, beside `verl-otel discover --serve`: "
    "{job_name: verl, http_sd_configs: [{url: 'http://127.0.0.1:9465/'}]}"
)
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
    default = [{"instance": f"llm_server-{index}-{engine}", _ROLE: "llm_server"} for index in range(len(addresses))]
    _add({address: {_ENGINE: engine, **each} for address, each in zip(addresses, labels or default, strict=True)})


def _add(labels_of: Mapping[str, dict[str, str]]) -> None:
    """Add addresses as targets of this run; ``instance`` among their labels is without the run."""
    current = current_session()
    if current is None or not current.config.exporters:
        return
    resource = build_resource(current.config)
    run_id = resource.text(attr.RUN_ID)
    entries = [
        make_target(resource, address, **{**labels, "instance": f"{run_id}/{labels['instance']}"})
        for address, labels in labels_of.items()
    ]
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
        # verl's logger for RL-Insight may be first
        if address and current is not None and address not in _read_addresses(current.config):
            _add({to_text(address): {"instance": f"transfer_queue-{address}", _ROLE: "transfer_queue"}})


def _read_addresses(config: Config) -> set[str]:
    return {address for entry in read_own_targets(config) for address in entry["targets"]}


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


# -- Adds one job to ``rollout.prometheus.file`` on every node that has this file, as verl does with its own, and reloads Prometheus --
# A thread does it: the start of a training does not wait for a disk, a node or a Prometheus. Nothing is done where there is no such file.

NODE_SECONDS: Final = 30.0
"""Seconds in which the other nodes have to answer."""
_MAX_NODES: Final = 2000
_NOT_SHARED: Final = (
    "; but the targets of this run are not in {folder} there: let the nodes share VERL_OTEL_RUN_DIR, or run "
    "`verl-otel discover --serve` there before a run starts, or now with `verl-otel prometheus add --http-sd http://127.0.0.1:9465/`"
)
DISCOVERY: Final = "http://127.0.0.1:9465/"
"""Where `verl-otel discover --serve` lists the targets of all nodes."""
_TRIES: Final = 4
_PAUSE: Final = 2.0
"""Seconds between two tries to find the run in that list."""


def begin_merge(config: Any, folder: Path, run_id: str) -> None:
    """Merge the job in a thread, which logs one line for each file.

    Args:
        config: verl's ``PrometheusConfig``, with `file` and `port`.
        folder: The folder of the targets files.
        run_id: The run, whose targets files are in this folder.
    """
    file, port = getattr(config, "file", None), getattr(config, "port", None)
    if not isinstance(file, str) or not file or isinstance(port, bool) or not isinstance(port, int):
        return
    arguments = (file, port, str(folder), run_id)
    threading.Thread(target=_merge_everywhere, args=arguments, name="verl-otel-prometheus", daemon=True).start()


@error_boundary.never_raises("prometheus.yml")
def _merge_everywhere(file: str, port: int, folder: str, run_id: str) -> None:
    lines = filter(None, (merge_here(file, port, folder, run_id), *_merge_elsewhere(file, port, folder, run_id)))
    nowhere = f"no node has {file}, so that no job was added: verl-otel prometheus add --file names another"
    for line in list(lines) or [nowhere]:
        error_boundary.warn_once(f"prometheus.yml {line}", "verl-otel: %s", line)


def merge_here(file: str, port: int, folder: str, run_id: str) -> str:
    """Merge the job into the file of this node. Returns one line; empty if this node has no such file.

    The source is the folder of the targets. If the run is not there, it is the HTTP service discovery of this node, if that lists the run.
    """
    path = Path(file)
    if not path.exists():
        return ""
    addresses = dict.fromkeys(("127.0.0.1", _find_address()))
    urls = [f"http://{address}:{port}" for address in addresses]
    is_shared = any(Path(folder).glob(f"{run_id}@*.json"))
    discovery = "" if is_shared else _find_discovery(run_id)
    outcome = add_job(path, [discovery or make_pattern(folder)], urls)
    if outcome.state == "refused" or discovery:
        return outcome.text
    problem = describe_reader(path, Path(folder), urls) if is_shared else _NOT_SHARED.format(folder=folder)
    return f"{outcome.text}{problem}"


def _find_discovery(run_id: str) -> str:
    """Return the URL of an HTTP service discovery on this node that lists a run; empty if there is none."""
    for _ in range(_TRIES):
        found = lists_run(DISCOVERY, run_id)
        if found is None:
            return ""
        if found:
            return DISCOVERY
        time.sleep(_PAUSE)  # its list is some seconds old
    return ""


def _find_address() -> str:
    """Return the address of this node as verl finds it."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _merge_elsewhere(file: str, port: int, folder: str, run_id: str) -> Iterator[str]:
    """Merge the job on all other nodes of the Ray cluster. Yields one line for each that has the file."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return

    def merge_there() -> str:  # pickled by value: a node without verl-otel does nothing
        try:
            from verl_otel.integrations.verl.prometheus import merge_here
        except ImportError:
            return ""
        return merge_here(file, port, folder, run_id)

    own = cluster_store.runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node.get("Alive") and node.get("NodeID") != own][:_MAX_NODES]
    task = ray.remote(num_cpus=0, max_retries=0)(merge_there)
    pending = {
        task.options(resources={f"node:{node['NodeManagerAddress']}": 0.001}).remote(): node["NodeManagerAddress"]
        for node in nodes
    }
    done, _ = ray.wait([*pending], num_returns=len(pending), timeout=NODE_SECONDS) if pending else ([], [])
    for reference in done:
        with error_boundary.suppress_errors("prometheus.yml"):
            if line := ray.get(reference, timeout=1):
                yield f"node {pending[reference]}: {to_text(line)}"


def _wrap_update(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_prometheus_config(*args: Any, **kwargs: Any) -> Any:
        current = current_session()
        if not RECORDER.on or current is None or current.config.keep_prometheus_yml == "verl":
            return original(*args, **kwargs)
        with error_boundary.suppress_errors("engine targets"):
            addresses = argument(args, kwargs, 1, "server_addresses") or ()
            if not _read_addresses(current.config).issuperset(addresses):  # replicas that were started in another way
                add_engines(addresses, to_text(argument(args, kwargs, 2, "rollout_name") or "engine"))
            folder = current.config.run_dir / TARGETS_FOLDER
            if current.config.keep_prometheus_yml == "merge":
                begin_merge(argument(args, kwargs, 0, "config"), folder, current.config.run_id)
            else:
                error_boundary.warn_once("prometheus.yml", _HINT, make_pattern(folder))
        return None

    return update_prometheus_config


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
