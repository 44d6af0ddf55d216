# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run a real vLLM engine under verl's own server class, in a Ray actor on the CPU, and ask it a few times.

Usage: python -m tests.vllm_real.serve FOLDER COUNT [ENDPOINT]. With an endpoint, the user gives vLLM one of its own. Says what it saw as one line of JSON at
the end; the telemetry is where the settings say.
"""

import json
import sys
import time
from pathlib import Path

import ray
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

import verl_otel
from tests.verl_cpu.cpu_assets import make_tokenizer


class Server(vLLMHttpServer):
    """verl's own server. Newer releases of vLLM refuse an argument of its ``abort_all_requests``, so the engine is told directly."""

    async def pause(self):
        await self.engine.pause_generation(mode="abort")
        await self.engine.resume_generation()

    async def look(self):
        """Say whether the engine lives, and what of ours is in this process."""
        from verl_otel.integrations import patch

        return {"errored": self.engine.errored, "hooks": patch.status, "stats": self.engine.log_stats}


def make_model(folder):
    """Write a tiny model whose heads have a size that the CPU backend accepts."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tokenizer(folder)
    config = Qwen2Config(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)


def launch(folder, endpoint):
    """Start the server as verl does, with the settings that a CPU needs and its defaults otherwise."""
    rollout = RolloutConfig(
        name="vllm", mode="async", dtype="float32", load_format="auto", enforce_eager=True, enable_sleep_mode=False,
        free_cache_engine=False, tensor_model_parallel_size=1, max_num_seqs=8, prompt_length=64, response_length=4000, max_model_len=4096,
        engine_kwargs={"vllm": {"otlp_traces_endpoint": endpoint}} if endpoint else {},
    )  # fmt: skip
    assert rollout.disable_log_stats  # verl's default, with which tracing would end the engine
    server = ray.remote(num_cpus=1)(Server).remote(
        config=rollout,
        model_config=HFModelConfig(path=str(folder)),
        rollout_mode=RolloutMode.STANDALONE,
        workers=[],
        replica_rank=0,
        node_rank=0,
        gpus_per_node=0,
        nnodes=1,
        cuda_visible_devices="",
    )
    with verl_otel.span("launch"):
        ray.get(server.launch_server.remote())
    return server


def ask(server, number, seconds=None, **parameters):
    """Ask once, as the agent loop does: a trajectory, an LLM call, the server's own id; give up after a while if told so."""
    with verl_otel.trajectory(f"u{number}", number), verl_otel.llm("tiny"):
        reference = server.generate.remote(
            prompt_ids=[10, 11, 12, 13], sampling_params={"temperature": 1.0, **parameters}, request_id=f"r{number}"
        )
        if seconds is not None:
            time.sleep(seconds)
            ray.get(server.pause.remote())
        return ray.get(reference)


def main(folder, count, endpoint):
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder)
    ray.init(address="local", num_cpus=4, include_dashboard=False)
    server = launch(folder, endpoint)
    answers = [ask(server, number, max_tokens=8, ignore_eos=True) for number in range(count)]
    aborted = ask(server, count, seconds=0.5, max_tokens=3900, ignore_eos=True)
    ray.get(server.generate.remote(prompt_ids=[10, 11], sampling_params={"max_tokens": 2}, request_id="stray"))
    said = ray.get(server.look.remote())
    said |= {"tokens": [len(answer.token_ids) for answer in answers], "aborted": aborted.stop_reason}
    ray.shutdown()
    print("SEEN " + json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
