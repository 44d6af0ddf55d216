# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import verl_otel


def test_a_step_is_recorded(recorded):
    """A step with a phase gives two spans, the phase below the step."""
    with verl_otel.step(3), verl_otel.phase("gen"):
        pass
    step, phase = recorded.span("verl.step"), recorded.span("verl.phase.gen")
    assert phase.parent_id == step.span_id
    assert step.attributes == {"verl.step.number": 3, "verl.step.lineage": "submitted"}
    assert recorded.value("verl.training.steps") == 1
