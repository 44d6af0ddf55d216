# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A main program of another project: a trainer whose loop generates in rounds and trains on half of each, as recipes with dynamic sampling do.

With ``COPIED_TRAINER`` in the environment its class is a copy that derives from none of verl's.
"""

import inspect
import itertools
import os
import uuid

import hydra
import numpy as np
import ray
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer import main_ppo_v0
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.metric_utils import compute_data_metrics, compute_timing_metrics
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage, compute_response_mask
from verl.trainer.ppo.reward import extract_reward
from verl.utils.device import auto_set_device
from verl.utils.metric import reduce_metrics
from verl.utils.profiler import marked_timer
from verl.utils.tracking import Tracking

ROUNDS = 2


class FilteringTrainer(RayPPOTrainer):
    """Fills the batch of a step in rounds, each of which is one turn of the loop in verl's timer ``step``."""

    def fit(self):
        settings = self.config.trainer
        logger = Tracking(
            settings.project_name, settings.experiment_name, settings.logger, OmegaConf.to_container(self.config)
        )
        self.global_steps = 0
        self._load_checkpoint()
        self.checkpoint_manager.update_weights(self.global_steps)
        logger.log(self._validate(), self.global_steps)
        self.global_steps = 1
        kept, timing = [], {}
        for loaded in itertools.chain.from_iterable(itertools.repeat(self.train_dataloader)):
            with marked_timer("step", timing):
                kept.append(self.generate(loaded, timing))
                if len(kept) < ROUNDS:
                    continue
                batch = DataProto.concat(kept)
                metrics = self.update(batch, timing)
            with marked_timer("testing", timing):
                metrics |= self._validate()
            metrics |= compute_data_metrics(batch, use_critic=False) | compute_timing_metrics(batch, timing)
            logger.log(metrics, self.global_steps)
            kept, timing = [], {}
            if self.global_steps == self.total_training_steps:
                return
            self.global_steps += 1

    def generate(self, loaded, timing):
        """Generate from the next prompts, and return the rows of every second one."""
        rollout = self.config.actor_rollout_ref.rollout
        batch = DataProto.from_single_dict(loaded)
        batch.meta_info["temperature"] = rollout.temperature
        prompts = self._get_gen_batch(batch)
        prompts.meta_info["global_steps"] = self.global_steps
        with marked_timer("gen", timing):
            answers = self.async_rollout_manager.generate_sequences(prompts.repeat(rollout.n, interleave=True))
            timing |= answers.meta_info.pop("timing")
        batch.non_tensor_batch["uid"] = np.array([str(uuid.uuid4()) for _ in range(len(batch))], dtype=object)
        batch = batch.repeat(rollout.n, interleave=True).union(answers)
        batch.batch["response_mask"] = compute_response_mask(batch)
        with marked_timer("reward", timing):
            scores, _ = extract_reward(batch)
            batch.batch["token_level_scores"] = batch.batch["token_level_rewards"] = scores
        return batch[[row for row in range(len(batch)) if row // rollout.n % ROUNDS == 0]]

    def update(self, batch, timing):
        """Train on a batch. Returns the metrics of the actor."""
        self.checkpoint_manager.sleep_replicas()
        batch.meta_info["global_token_num"] = batch.batch["attention_mask"].sum(-1).tolist()
        batch.meta_info["images_seqlens"] = []
        with marked_timer("old_log_prob", timing):
            old, _ = self._compute_old_log_prob(batch)
            batch.union(old.select(["old_log_probs"]))
        with marked_timer("ref", timing):
            batch.union(self._compute_ref_log_prob(batch))
        with marked_timer("adv", timing):
            algorithm = self.config.algorithm
            compute_advantage(batch, algorithm.adv_estimator, num_repeat=2, config=algorithm)
        with marked_timer("update_actor", timing):
            output = self._update_actor(batch)
        self.checkpoint_manager.update_weights(self.global_steps)
        return reduce_metrics(output.meta_info["metrics"])

    def _validate(self):
        return RayPPOTrainer._validate(self) | {"val-own/rounds": ROUNDS}


def copy_class(trainer):
    """Return a class with all that a trainer's class has and inherits, without the hooks of verl-otel."""
    members = {name: value for owner in reversed(trainer.__mro__[:-1]) for name, value in vars(owner).items()}
    plain = {name: inspect.unwrap(value) if inspect.isfunction(value) else value for name, value in members.items()}
    return type(trainer.__name__, (), {name: plain[name] for name in plain.keys() - {"__dict__", "__weakref__"}})


@ray.remote
class Runner(main_ppo_v0.BaseTaskRunner):
    """Trains with the trainer above, in verl's own way."""

    def run(self, config):
        copied = os.environ.get("COPIED_TRAINER")
        main_ppo_v0.RayPPOTrainer = copy_class(FilteringTrainer) if copied else FilteringTrainer
        main_ppo_v0.TaskRunner.__ray_metadata__.modified_class.run(self, config)


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
def main(config):
    auto_set_device(config)
    run_ppo(config, task_runner_class=Runner)


if __name__ == "__main__":
    main()
