# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer of your own: verl's synchronous trainer with a phase, a span and a gauge added."""

from typing import Any

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

import verl_otel

DIFFICULTY = verl_otel.gauge("curriculum.difficulty", unit="1", description="Difficulty of the tasks, from 0 to 1.")


@register_trainer("curriculum")
class CurriculumTrainer(PPOTrainerSync):
    """Makes the tasks harder with each step.

    Steps, verl's own phases, worker calls, trajectories and scalars are recorded without any code here.
    """

    def on_step_end(self) -> None:
        """Update the weights as verl does, then choose the next difficulty, which is a phase of its own."""
        super().on_step_end()
        with verl_otel.phase("curriculum"):
            DIFFICULTY.set(self.choose_difficulty(self.global_steps))

    @verl_otel.span
    def choose_difficulty(self, step: int) -> float:
        """Return the difficulty of the next step."""
        return min(1.0, step / 10)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Compute the advantage as verl does, and add a scalar of your own, which is recorded like all others."""
        metrics["curriculum/samples"] = len(batch.keys)
        return super()._compute_advantage(batch, metrics)
