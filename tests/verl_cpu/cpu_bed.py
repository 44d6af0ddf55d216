# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Let the real verl trainer, workers, agent loop and reward loop run on a machine without an accelerator.

Loaded by ``import verl`` in every process (``VERL_USE_EXTERNAL_MODULES=cpu_bed``). Uses verl's own registries: a platform ``cpu``, the FSDP
engines registered for it, a rollout replica ``cpu``. Three functions are patched that assume an accelerator. It also keeps the bed's
own log (`cpu_log`) and seeds ``random`` and numpy in every process, as users do.
"""

import contextlib
import contextvars
import functools
import importlib.abc
import importlib.util
import inspect
import os
import random
import sys
import textwrap
import time
import types
import uuid

import cpu_log
import cpu_plant
import cpu_stamps
import numpy as np
import torch

try:
    from verl.plugin.platform.platform_base import PlatformBase
    from verl.plugin.platform.platform_manager import PlatformRegistry

    HAS_PLATFORMS = True
except ImportError:  # verl before 0.9 has no platforms: its device is "cpu" where there is no CUDA
    HAS_PLATFORMS = False

random.seed(42)
np.random.seed(42)  # noqa: NPY002 - the global generator is what users seed
torch.manual_seed(42)


def make_device_module():
    """Return what verl takes for ``torch.cuda``."""
    module = types.ModuleType("cpu_bed_device")
    module.is_available = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: torch.device("cpu")
    module.mem_get_info = lambda *_, **__: (1 << 34, 1 << 34)
    module.get_rng_state = torch.get_rng_state
    module.get_device_name = lambda *_, **__: "cpu"
    module.Stream, module.Event = torch.cpu.Stream, getattr(torch.cpu, "Event", object)
    module.current_stream, module.stream = torch.cpu.current_stream, torch.cpu.stream
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, lambda *_, **__: 0)
    for name in (
        "empty_cache", "synchronize", "set_device", "manual_seed", "manual_seed_all", "reset_peak_memory_stats",
        "ipc_collect", "set_rng_state",
    ):  # fmt: skip
        setattr(module, name, lambda *_, **__: None)
    return module


DEVICE = make_device_module()

if HAS_PLATFORMS:

    @PlatformRegistry.register(platform="cpu")
    class PlatformCPU(PlatformBase):
        """A platform whose only device is the CPU."""

        device_name = "cpu"
        vendor_name = "generic"
        device_module = DEVICE

        def is_available(self):
            return True

        def current_device(self):
            return torch.device("cpu")

        def device_count(self):
            return 1

        def set_device(self, index):
            pass

        def synchronize(self, index=None):
            pass

        def manual_seed(self, seed):
            torch.manual_seed(seed)

        def manual_seed_all(self, seed):
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings):
            pass

        def empty_cache(self):
            pass

        def get_device_capability(self, index=0):
            return None, None

        def communication_backend_name(self):
            return "gloo"

        def visible_devices_envvar(self):
            return "CUDA_VISIBLE_DEVICES"

        @contextlib.contextmanager
        def nvtx_range(self, message):
            yield

        def profiler_start(self):
            pass

        def profiler_stop(self):
            pass

        def ray_resource_name(self):
            return "GPU"  # verl's resource pool knows "GPU" and "NPU" only: Ray is given logical GPUs

        def ray_noset_envvars(self):
            return []

        def is_ipc_supported(self):
            return False

        def cudart(self):
            return None

else:
    import verl.utils.device as verl_device

    verl_device.get_torch_device = lambda: DEVICE
    verl_device.get_device_id = lambda: torch.device("cpu")
    verl_device.get_nccl_backend = lambda: "gloo"
    verl_device.set_expandable_segments = lambda *_, **__: None
    verl_device.get_resource_name = lambda: "GPU"


class PostImport(importlib.abc.MetaPathFinder):
    """Runs a function right after a module is imported, so that ``import verl`` stays cheap."""

    def __init__(self, functions):
        self.functions, self.busy = functions, set()

    def find_spec(self, name, path, target=None):
        if name not in self.functions or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.functions[name](module)

        spec.loader.exec_module = exec_module
        return spec


def register_engines(module):
    from verl.workers.engine.base import EngineRegistry

    policy = module.CPUOffloadPolicy
    module.CPUOffloadPolicy = lambda *_, **__: policy(pin_memory=False)  # pinning needs an accelerator
    cpu_plant.delay_calls(module.FSDPEngine, "save_checkpoint", "checkpoint")
    engines = (("language_model", module.FSDPEngineWithLMHead), ("value_model", module.FSDPEngineWithValueHead))
    for kind, engine in engines:
        if "cpu" not in EngineRegistry._engines.get(kind, {}).get("fsdp2", {}):
            EngineRegistry.register(model_type=kind, backend=["fsdp", "fsdp2"], device="cpu")(engine)


def hold_rank(module):
    cpu_plant.delay_calls(module.TrainingWorker, "train_mini_batch", "rank")
    cpu_plant.delay_calls(module.TrainingWorker, "infer_batch", "infer")


def hold_tracker(module):
    if hasattr(module, "FileLogger"):
        cpu_plant.delay_step(module.FileLogger, "log", "log")


def note_step(owner, name, find_step):
    """Keep the step of the trainer whose method begins."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def noted(self, *args, **kwargs):
        cpu_plant.Trainer.step = find_step(self)
        return original(self, *args, **kwargs)

    setattr(owner, name, noted)


def hold_trainer(module):
    trainer = module.PPOTrainer
    note_step(trainer, "step", lambda self: self.global_steps)  # separate_async has an `on_step_begin` of its own
    compute_metrics = trainer._compute_metrics

    @functools.wraps(compute_metrics)
    def _compute_metrics(self, *args, **kwargs):
        cpu_plant.Trainer.ended = self.global_steps
        return compute_metrics(self, *args, **kwargs)

    trainer._compute_metrics = _compute_metrics
    for name, place in (
        ("_balance_batch", "balance"), ("_compute_advantage", "advantage"), ("_compute_metrics", "metrics"),
        ("_submit_batch_to_rollout", "submit"), ("_val_metrics_update", "validate"),
    ):  # fmt: skip
        cpu_plant.delay_step(trainer, name, place)


def hold_separate(module):
    trainer = module.SeparateRayPPOTrainer
    # A step of fully asynchronous training is a version of the weights, of several local steps.
    note_step(trainer, "_fit_start_profile", cpu_stamps.find_step)
    cpu_plant.delay_step(module, "compute_advantage", "advantage")  # in its phase, which the trainer's method begins
    cpu_plant.delay_step(trainer, "_fit_dump_data", "balance")
    cpu_plant.delay_step(trainer, "_fit_collect_metrics", "metrics")


def fix_rollouter(module):
    """Work around a race of verl 0.9.1: a rollouter that is woken may read the old count of samples, and wait for its monitor, up to 10 s."""
    rollouter = module.FullyAsyncRollouter.__ray_metadata__.modified_class
    original = rollouter.reset_staleness

    @functools.wraps(original)
    async def reset_staleness(self, **kwargs):  # Ray's tracing adds one
        self.staleness_samples = 0  # it is counted after the rollouter is woken
        return await original(self, **kwargs)

    rollouter.reset_staleness = reset_staleness


def hold_messages(module):
    cpu_plant.delay_step(module.MessageQueueClient, "get_sample", "sample")


def hold_validation(module):
    cpu_plant.delay_calls(module.RayPPOTrainer, "_val_metrics_update", "validate")


def hold_items(module):
    cpu_plant.delay_step(module.RLHFDataset, "__getitem__", "item")


def hold_queue(module):
    cpu_plant.delay_step(module, "kv_batch_get", "get")
    cpu_plant.delay_calls(module, "kv_clear", "clear", lambda: cpu_plant.Trainer.ended)
    cpu_plant.delay_calls(module, "async_kv_batch_put", "put")


def hold_agent(module):
    cpu_plant.delay_calls(module.ToolAgentLoop, "run", "agent")


def register_replica(module):
    def load():
        from cpu_rollout import CPUReplica

        return CPUReplica

    module.RolloutReplicaRegistry.register("cpu", load)


def register_adapter(module):
    module._ROLLOUT_REGISTRY[("cpu", "async")] = "cpu_rollout.CPUServerAdapter"


def fix_process_group(module):
    """Mend what verl asks torch for: ``cpu:gloo,cpu:gloo``, which torch refuses."""
    original = module.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second=None, backend=None):
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize_global_process_group_ray


def fix_critic_attention(module):
    """Give the critic an attention that needs no accelerator."""

    def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path, torch_dtype=torch_dtype, config=model_config, attn_implementation="eager"
        )

    module.load_valuehead_model = load_valuehead_model


def fix_padding(module):
    """Give verl before 0.9.1, which asks for flash-attn, the same functions in plain torch that it has for another device."""

    def get_functions():
        from verl.utils.npu_flash_attn_utils import index_first_axis, pad_input, rearrange, unpad_input

        return index_first_axis, pad_input, rearrange, unpad_input

    if not hasattr(module, "_fallback_pad_input"):
        module._get_attention_functions = get_functions


def fix_layers(module):
    """Let verl 0.7 read transformers 5, which names a model's layers in a set."""
    original = module.apply_fsdp2

    @functools.wraps(original)
    def apply_fsdp2(model, *args, **kwargs):
        model._no_split_modules = sorted(model._no_split_modules or ())
        return original(model, *args, **kwargs)

    if not HAS_PLATFORMS:
        module.apply_fsdp2 = apply_fsdp2


TRAJECTORY = contextvars.ContextVar("trajectory")
"""Which trajectory the calls of this context belong to."""


def log_trajectories(module):
    original = module.AgentLoopWorker._run_agent_loop
    compute_score = module.AgentLoopWorker._compute_score

    @functools.wraps(original)
    async def _run_agent_loop(self, sampling_params, trajectory, **kwargs):
        fields = {
            "uid": str(kwargs.get("uid")),
            "index": int(kwargs.get("session_id", trajectory["rollout_n"])),
            "step": int(trajectory["step"]),
            "validate": bool(trajectory["validate"]),
        }
        TRAJECTORY.set({"id": uuid.uuid4().hex})  # some trainers give samples their uid later
        with cpu_log.stamped("trajectory", **fields, **TRAJECTORY.get()):
            return await original(self, sampling_params, trajectory, **kwargs)

    @functools.wraps(compute_score)
    async def _compute_score(self, outputs, *args, **kwargs):
        for output in outputs if isinstance(outputs, list) else [outputs]:
            lengths = {
                "prompt": len(output.prompt_ids),
                "response": len(output.response_ids),
                "generated": sum(output.response_mask),
                "limit": self.config.actor_rollout_ref.rollout.response_length,
            }
            cpu_log.write("output", messages=output.num_turns, **lengths, **TRAJECTORY.get({}))
        return await compute_score(self, outputs, *args, **kwargs)

    module.AgentLoopWorker._run_agent_loop = _run_agent_loop
    if "outputs" in inspect.signature(compute_score).parameters:  # verl 0.9
        module.AgentLoopWorker._compute_score = _compute_score


def log_hand_overs(module):
    """Log when a trajectory hands its samples to TransferQueue."""
    original = module.async_kv_batch_put

    @functools.wraps(original)
    async def async_kv_batch_put(*args, **kwargs):
        cpu_log.write("handed", time=time.time(), **TRAJECTORY.get({}))
        return await original(*args, **kwargs)

    module.async_kv_batch_put = async_kv_batch_put


def log_llm_calls(module):
    if not hasattr(module, "LLMServerClient"):  # verl 0.7: its client lies elsewhere, the server's log must do
        return
    cpu_plant.delay_calls(module.LLMServerClient, "_acquire_server", "llm")
    original = module.LLMServerClient.generate

    @functools.wraps(original)
    async def generate(self, request_id, **kwargs):
        given = len(kwargs["prompt_ids"])
        with cpu_log.stamped("llm", request=str(request_id), prompt_tokens=given, **TRAJECTORY.get({})) as fields:
            output = await original(self, request_id, **kwargs)
            fields["tokens"] = len(output.token_ids)
            return output

    module.LLMServerClient.generate = generate


def log_rewards(module):
    cpu_plant.delay_calls(module.RewardLoopWorker, "compute_score", "rewardloop")
    original = module.RewardLoopWorker.compute_score

    @functools.wraps(original)
    async def compute_score(self, data):
        with cpu_log.stamped("reward"):
            return await original(self, data)

    module.RewardLoopWorker.compute_score = compute_score


def run_both(first, second):
    """Return a hook that runs two."""

    def run(module):
        first(module)
        second(module)

    return run


def order_nodes(first):
    """Have verl spread its agent loop workers from the nodes that lack verl-otel on (``lacking``), or from the others on (``having``)."""
    import ray

    original = ray.nodes

    def nodes():
        return sorted(original(), key=lambda node: ("lacks_verl_otel" in node["Resources"]) != (first == "lacking"))

    ray.nodes = nodes


def use_own_trainer(module):
    """Train with a subclass as other projects have it: ``fit`` is a copy, and the timer is imported from where it is defined."""
    from verl.trainer.ppo import ray_trainer
    from verl.utils.profiler.performance import marked_timer

    source = textwrap.dedent(inspect.getsource(inspect.unwrap(ray_trainer.RayPPOTrainer.fit)))
    copied = {**vars(ray_trainer), "marked_timer": marked_timer, "__name__": "own_trainer"}
    exec(compile(source, "own_trainer", "exec"), copied)  # verl's own code
    members = {"fit": copied["fit"], "__module__": "own_trainer"}
    module.RayPPOTrainer = type("OwnTrainer", (ray_trainer.RayPPOTrainer,), members)


HOOKS = {
    "verl.workers.engine.fsdp.transformer_impl": register_engines,
    "verl.workers.engine_workers": hold_rank,
    "verl.utils.tracking": hold_tracker,
    "verl.trainer.ppo.v1.trainer_base": hold_trainer,
    "verl.experimental.separation.ray_trainer": hold_separate,
    "verl.experimental.fully_async_policy.fully_async_rollouter": fix_rollouter,
    "verl.experimental.fully_async_policy.message_queue": hold_messages,
    "verl.trainer.ppo.ray_trainer": hold_validation,
    "verl.utils.dataset.rl_dataset": hold_items,
    "transfer_queue": hold_queue,
    "verl.experimental.agent_loop.tool_agent_loop": hold_agent,
    "verl.workers.rollout.replica": register_replica,
    "verl.workers.rollout.base": register_adapter,
    "verl.utils.distributed": fix_process_group,
    "verl.utils.model": fix_critic_attention,
    "verl.utils.attention_utils": fix_padding,
    "verl.utils.fsdp_utils": fix_layers,
}
LOGS = {
    "verl.experimental.agent_loop.agent_loop": log_trajectories,
    "verl.workers.rollout.llm_server": log_llm_calls,
    "verl.experimental.reward_loop.reward_loop": log_rewards,
}
if os.environ.get("CPU_BED_STOP"):
    import verl_otel

    @verl_otel.on_record
    def stop(record):
        """Stop after this step, as a user's callback does."""
        if record.step == int(os.environ["CPU_BED_STOP"]):
            record.stop("as planned")


if os.environ.get("CPU_BED_OWN_TRAINER"):
    HOOKS["verl.trainer.main_ppo_v0"] = use_own_trainer
if os.environ.get(cpu_log.FOLDER):
    HOOKS |= LOGS
    HOOKS["transfer_queue"] = run_both(HOOKS["transfer_queue"], log_hand_overs)
    for name, function in cpu_stamps.HOOKS.items():
        HOOKS[name] = run_both(HOOKS[name], function) if name in HOOKS else function
for name in HOOKS.keys() & sys.modules.keys():  # imported before this module
    HOOKS.pop(name)(sys.modules[name])
sys.meta_path.insert(0, PostImport(HOOKS))
if os.environ.get("CPU_BED_NODES"):
    order_nodes(os.environ["CPU_BED_NODES"])
