# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs of trajectories as verl's agent loop makes them."""


def make_output(loop, number):
    """Return the output of one trajectory, all of whose tokens are a number.

    Args:
        loop: verl's module of agent loops.
        number: Distinguishes the trajectory from others.
    """
    import torch

    row = torch.full((1, 4), number)
    return loop._InternalAgentLoopOutput(
        prompt_ids=row[:, :2], response_ids=row[:, 2:], input_ids=row, position_ids=row,
        response_mask=torch.ones(1, 2, dtype=torch.long), attention_mask=torch.ones(1, 4, dtype=torch.long),
        reward_score=1.0, num_turns=2, metrics={"generate_sequences": 1.0, "tool_calls": 0.5},
        extra_fields={"min_global_steps": 0, "max_global_steps": 1, "reward_extra_info": {}},
    )  # fmt: skip
