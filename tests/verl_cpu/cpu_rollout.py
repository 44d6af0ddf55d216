# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The rollout replica of the bed: an actor that generates on the CPU, deterministic to the bit or random."""

import asyncio
import os
import random
import sys
import threading
import zlib

import cpu_log
import cpu_plant
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

MODE = "CPU_BED_GEN"
"""``det``: sampled with a generator seeded by weights version, prompt and arrival; ``apart``: by the replica, too, so that two answers to a prompt
differ although each comes from another one; ``random``: any tokens, at once."""
TOOL = "CPU_BED_TOOL"
"""Set: the first answer to each prompt is a call of the tool ``add``."""
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
LONGEST = 8


class CPUHttpServer:
    """Has the methods of verl's ``vLLMHttpServer`` that a trainer calls."""

    def __init__(self, config, model_config, replica_rank, node_rank=0):
        from verl.utils.config import omega_conf_to_dataclass

        # Sampling threads hold the interpreter for 5 ms at a time; that is as much as two stamps of one call may differ.
        sys.setswitchinterval(0.0005)
        self.config = config
        self.model_config = omega_conf_to_dataclass(model_config)
        self.replica_rank, self.node_rank = replica_rank, node_rank
        self.global_steps = None
        self.slots = asyncio.Semaphore(config.max_num_seqs)
        self.loads = 0
        self.seen = {}
        self.tokenizer = self.model_config.tokenizer
        self.model = None
        if os.environ.get(MODE, "det") != "random":
            from transformers import AutoModelForCausalLM

            torch.set_num_threads(1)
            path = self.model_config.local_path
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
            self.model = model.eval()

    async def launch_server(self):
        from fastapi import FastAPI, Response
        from prometheus_client import CollectorRegistry, Counter, generate_latest
        from verl.workers.rollout.utils import run_uvicorn

        registry = CollectorRegistry()
        self.generated = Counter("vllm:generation_tokens", "generated tokens", ["model_name"], registry=registry)
        app = FastAPI()

        @app.get("/metrics")
        def metrics():
            return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

        self.address = ray.util.get_node_ip_address().strip("[]")
        self.port, self.task = await run_uvicorn(app, None, self.address)

    async def get_server_address(self):
        return self.address, self.port

    async def generate(
        self, prompt_ids, sampling_params, request_id, image_data=None, video_data=None, audio_data=None,
        mm_processor_kwargs=None, priority=0, **kwargs,
    ):  # fmt: skip
        with cpu_log.stamped("server", request=str(request_id), replica=self.replica_rank):
            async with self.slots:
                return await self.answer(list(prompt_ids), sampling_params)

    async def answer(self, prompt, sampling_params):
        await cpu_plant.reach_async("server", self.global_steps, self.replica_rank)
        cpu_plant.reach("hold", self.global_steps, self.replica_rank)
        limit = (
            sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens") or self.config.response_length
        )
        if self.model is None:
            await asyncio.sleep(0.01)
            tokens = [random.randrange(self.model_config.hf_config.vocab_size) for _ in range(random.randint(1, limit))]
            logprobs = [-1.0] * len(tokens)
        else:
            tokens, logprobs = await asyncio.to_thread(self.sample, prompt, limit, sampling_params)
        cpu_log.write("tokens", replica=self.replica_rank, count=len(tokens))
        self.generated.labels("tiny").inc(len(tokens))
        return TokenOutput(
            token_ids=tokens, log_probs=logprobs, stop_reason="completed", num_preempted=0,
            extra_fields={"global_steps": self.global_steps, "num_cached_tokens": 0},
        )  # fmt: skip

    @torch.no_grad()
    def sample(self, prompt, limit, sampling_params):
        if os.environ.get(TOOL) and "<tool_call>" not in self.tokenizer.decode(prompt):
            tokens = [*self.tokenizer.encode(CALL), self.tokenizer.eos_token_id]
            return tokens, [-1.0] * len(tokens)
        key = (self.global_steps, tuple(prompt))
        self.seen[key] = self.seen.get(key, 0) + 1
        apart = [self.replica_rank] if os.environ.get(MODE) == "apart" else []
        generator = torch.Generator().manual_seed(zlib.crc32(repr((key, self.seen[key], *apart)).encode()))
        temperature = float(sampling_params.get("temperature", 1.0))
        tokens, logprobs = [], []
        for _ in range(min(limit, LONGEST)):
            logits = self.model(torch.tensor([prompt + tokens])).logits[0, -1].float()
            likely = torch.log_softmax(logits / (temperature or 1.0), -1)
            token = (
                int(likely.argmax())
                if temperature <= 0
                else int(torch.multinomial(likely.exp(), 1, generator=generator))
            )
            tokens.append(token)
            logprobs.append(likely[token].item())
            if token == self.tokenizer.eos_token_id:
                break
        return tokens, logprobs

    async def load_weights(self, named):
        self.loads += 1
        await cpu_plant.reach_async("weights", self.loads, self.replica_rank)
        if self.model is not None:
            self.model.load_state_dict(dict(named), strict=False)

    async def set_global_steps(self, global_steps):
        self.global_steps = global_steps

    async def sleep(self):
        pass

    async def wake_up(self, tags=None):
        pass

    async def clear_kv_cache(self):
        pass

    async def release_kv_cache(self):
        pass

    async def resume_kv_cache(self):
        pass

    async def abort_all_requests(self, reject_request=False):
        return {"aborted_count": 0, "request_ids": []}

    async def resume_generation(self):
        pass

    async def start_profile(self, **kwargs):
        pass

    async def stop_profile(self, **kwargs):
        pass


class CPUReplica(RolloutReplica):
    """One server actor; it needs no GPU and lives on the node of its first worker, as those of vLLM and SGLang do."""

    async def launch_servers(self):
        name = f"cpu_server_{self.replica_rank}_0"
        node = await self.workers[0].__ray_call__.remote(lambda worker: ray.get_runtime_context().get_node_id())
        options = {
            "name": name,
            "num_cpus": 0,
            "max_concurrency": self.max_concurrency,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        }
        server = (
            ray.remote(CPUHttpServer)
            .options(**options)
            .remote(config=self.config, model_config=self.model_config, replica_rank=self.replica_rank)
        )
        await server.launch_server.remote()
        self.servers = [server]
        self._server_handle = server
        address, port = await server.get_server_address.remote()
        self._server_address = f"{address}:{port}"


class CPUServerAdapter(BaseRollout):
    """The trainer's side of the weight sync."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1, **kwargs):
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.rollout_rank = 0
        self.is_leader_rank = True
        self.found = None
        self.sending = None

    def server(self):
        if self.found is None:
            self.found = ray.get_actor(f"cpu_server_{self.replica_rank}_0")
        return self.found

    async def resume(self, tags):
        await self.server().wake_up.remote(tags=tags)

    async def release(self):
        await self.server().sleep.remote()

    async def update_weights(self, weights, global_steps=None, wire_format="named_tensors", **kwargs):
        with cpu_log.stamped("sync", replica=self.replica_rank, version=global_steps) as fields:
            fields["bytes"] = await self.send(weights, global_steps)

    async def send(self, weights, global_steps):
        from verl.workers.rollout.utils import ensure_async_iterator

        in_background = any(cpu_plant.find("background", global_steps, self.replica_rank))
        if not in_background:
            await cpu_plant.reach_async("sync", global_steps, self.replica_rank)
        named, size = [], 0
        async for name, parameter in ensure_async_iterator(weights):
            size += parameter.numel() * parameter.element_size()
            named.append((name, parameter.detach().to("cpu", torch.float32).clone()))
        if in_background:
            self.send_in_background(named, global_steps)
            return size
        await self.server().load_weights.remote(named)
        await self.server().set_global_steps.remote(global_steps)
        return size

    def send_in_background(self, named, global_steps):
        """Send weights in a thread, after those of the step before."""
        before = self.sending

        def send():
            if before is not None:
                before.join()
            cpu_plant.reach("sync", global_steps, self.replica_rank)
            ray.get([self.server().load_weights.remote(named), self.server().set_global_steps.remote(global_steps)])

        self.sending = threading.Thread(target=send, daemon=True)
        self.sending.start()
