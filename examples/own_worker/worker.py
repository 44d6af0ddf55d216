# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A worker class of your own, with telemetry."""

import time

from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

import verl_otel

CLIPPED = verl_otel.counter("policy.samples.clipped", unit="{sample}", description="Samples whose ratio was clipped.")


class PolicyWorker(Worker):
    """Updates a policy on its part of the batch."""

    # verl's decorator is the outer one: it marks the method for the worker group, and ours is around the call itself.
    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    @verl_otel.update("actor")
    def update_actor(self, batch: list[int]) -> dict[str, float]:
        """Return the metrics of one update. ``loss`` and ``grad_norm`` are read from the result by the decorator."""
        with verl_otel.span("forward_backward", attributes={"samples": len(batch)}) as span:
            clipped = sum(sample % 3 == 0 for sample in batch)
            time.sleep(0.02 * len(batch))  # stands for the computation
            span.set_attribute("clipped", clipped)
        CLIPPED.add(clipped)
        return {"loss": sum(batch) / len(batch), "grad_norm": 0.5, "clipped": clipped}
