# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One process that runs verl's own code at every place where it calls RL-Insight, and users' calls of it; no GPU, no engine, no Ray.

vLLM and SGLang cannot be imported here: ``generate`` of verl's two servers is compiled from verl's source, with stand-ins for what it
takes from the engine. Prints what the other side saw.
"""

import ast
import asyncio
import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import transfer_queue
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.profiler import DistProfiler
from verl.utils.tracking import RLInsightLogger, Tracking
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import TokenOutput

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


def take_method(module, class_name, method, **names):
    """Compile one method from the source of a module of verl that cannot be imported here."""
    root = Path(importlib.util.find_spec("verl").origin).parent
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    (owner,) = (
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    (node,) = (each for each in owner.body if getattr(each, "name", "") == method)
    space = {"Any": Any, "Optional": Optional, "RLInsightLogger": RLInsightLogger, "TokenOutput": TokenOutput, **names}
    space["torch"] = SimpleNamespace(Tensor=list)
    exec(compile(ast.Module([node], type_ignores=[]), str(path), "exec"), space)
    return space[method]


async def generate_by_vllm():
    """Call ``vLLMHttpServer.generate``; its engine streams two outputs."""
    ended = SimpleNamespace(token_ids=[7, 8], logprobs=None, finish_reason="stop", num_preempted=2)

    async def stream(**_kwargs):
        for _ in range(2):
            await asyncio.sleep(0)
            yield SimpleNamespace(outputs=[ended])

    async def admit(_request_id):
        return None

    server = SimpleNamespace(
        config=Settings(max_model_len=64, response_length=8, prompt_length=8),
        model_config=Settings(),
        engine=SimpleNamespace(generate=stream),
        replica_rank=1,
        global_steps=4,
        lora_as_adapter=False,
        _admitting=1,
        _disaggregation_role="null",
        _park_until_admitted=admit,
    )
    generate = take_method(
        "workers.rollout.vllm_rollout.vllm_async_server",
        "vLLMHttpServer",
        "generate",
        normalize_token_ids=list,
        SamplingParams=lambda **values: Settings(values),
        TokensPrompt=dict,
        qwen2_5_vl_dedup_image_tokens=lambda ids, _processor: ids,
        extract_prompt_logprobs=lambda **_values: None,
    )
    output = await generate(server, [1, 2, 3], {}, "r1")
    return [output.token_ids, output.num_preempted]


async def generate_by_sglang():
    """Call ``SGLangHttpServer.generate``; its engine gives one output."""

    async def stream(_request, _raw):
        yield {"output_ids": [5, 6], "meta_info": {"finish_reason": {"type": "stop"}}}

    server = SimpleNamespace(
        config=Settings(max_model_len=64, response_length=8, prompt_length=8),
        tokenizer_manager=SimpleNamespace(generate_request=stream),
        replica_rank=2,
        global_steps=4,
        lora_as_adapter=False,
        _disaggregation_role="null",
    )
    names = {"GenerateReqInput": SimpleNamespace, "normalize_token_ids": list, "secrets": None}
    generate = take_method(
        "workers.rollout.sglang_rollout.async_sglang_server", "SGLangHttpServer", "generate", **names
    )
    return (await generate(server, [1, 2], {}, "r2")).token_ids


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
    with verl_otel.trajectory("u1", 0):
        seen["vllm"] = asyncio.run(generate_by_vllm())
        seen["sglang"] = asyncio.run(generate_by_sglang())
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
