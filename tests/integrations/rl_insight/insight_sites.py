# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One process that runs verl's own code at every place where it calls RL-Insight, and users' calls of it; no GPU, no engine, no Ray. Prints what the other side saw."""

import asyncio
import json
import os
import sys
import threading
from pathlib import Path

import transfer_queue
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.profiler import DistProfiler
from verl.utils.tracking import RLInsightLogger, Tracking
from verl.workers.rollout.llm_server import LLMServerManager

import verl_otel

CONFIG = {
    "algorithm": {"adv_estimator": "grpo"},
    "trainer": {"logger": ["rl_insight"], "rl_insight": {"server": {"url": "http://127.0.0.1:1"}}},
    "transfer_queue": {"metrics": {"enabled": True}},
}


class Settings(dict):
    """A part of verl's configuration: what is not set is None."""

    __getattr__ = dict.get


class Worker:
    """A worker with verl's own decorators, of verl's roles and of a user's."""

    def __init__(self):
        self.profiler = DistProfiler(rank=3)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(color="red", role="train_batch")
    def train_batch(self, batch):
        return batch + 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @DistProfiler.annotate(role="actor_update", scheduled=True)
    def update_actor(self, batch):
        return self.train_batch(batch)

    @DistProfiler.annotate(role="my_helper")
    def help(self):
        raise ValueError("as before")


class Replica:
    """A rollout replica that needs no engine."""

    def __init__(self, replica_rank, **_kwargs):
        self.replica_rank = replica_rank
        self._server_handle = object()
        self._server_address = f"10.0.0.{replica_rank}:8000"

    async def init_standalone(self):
        return None


def start_replicas():
    """Have verl's own manager start two replicas and register their addresses."""
    manager = LLMServerManager.__new__(LLMServerManager)
    rollout = dict.fromkeys(("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"), 1)
    manager.rollout_config = Settings(
        **rollout, n_gpus_per_node=2, nnodes=1, name="vllm", prometheus=Settings(enable=False), disable_log_stats=False
    )
    manager.worker_group, manager.start_rank, manager.model_config = None, 0, None
    manager.rollout_replica_class = Replica
    asyncio.run(manager._initialize_llm_servers())


def call_as_user():
    """Report what a user reports, to the package and to verl's class."""
    import rl_insight
    from rl_insight.agent_loop import agent_loop_session

    rl_insight.init(project="p")
    rl_insight.metric_gauge("my_gauge", 2.5, "mine", kind="a")
    with RLInsightLogger.trace_state("encode", state_lane_id="rank_3", shard=1):
        RLInsightLogger.trace_span("late", start_time_ns=10**18, end_time_ns=10**18 + 10**9, attributes={"n": 1})
    RLInsightLogger.agent_loop_session(sample=1, session=2, uid="u").finish(trajectories=[1], status="done")
    assert agent_loop_session is rl_insight.agent_loop_session
    return rl_insight.__version__


def main():
    seen = {}
    transfer_queue.get_metrics_endpoint = lambda: "10.0.0.9:9100"
    tracking = Tracking("p", "e", default_backend=["rl_insight"], config=CONFIG)
    with verl_otel.step(1):
        worker = Worker()
        seen["updated"] = worker.update_actor(1)
        try:
            worker.help()
        except ValueError as error:
            seen["raised"] = str(error)
    start_replicas()
    seen["version"] = call_as_user()
    tracking.log({"actor/pg_loss": 0.5, "val-core/gsm8k/acc/mean@1": 0.25, "text": "x"}, 1)
    seen["answers"] = "__verl_otel__" in vars(RLInsightLogger._rl_insight_module)
    seen["targets"] = [
        [entry["targets"][0], entry["labels"]["verl_role"], entry["labels"].get("replica")]
        for path in Path(os.environ["VERL_OTEL_RUN_DIR"], "targets").glob("*.json")
        for entry in json.loads(path.read_text())
    ]
    tracking.finish()
    with RLInsightLogger.trace_state("after_the_end"):
        seen["after"] = True
    seen["threads"] = sorted(thread.name for thread in threading.enumerate())
    seen["ray"] = sys.modules["ray"].is_initialized()
    print(json.dumps(seen))


main()
