# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Send steps, trajectories and a counter to an OpenTelemetry Collector.

Usage: OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 python send.py
"""

import verl_otel

STEPS, TRAJECTORIES = 3, 8


def main() -> None:
    """Record the steps and send them."""
    # OTLP is the default where OTEL_EXPORTER_OTLP_ENDPOINT is set. Under verl VERL_OTEL_ENABLED=1 takes the place of this
    # call; a program that does not import verl starts telemetry itself.
    verl_otel.init()
    samples = verl_otel.counter("example.samples", unit="{sample}", description="Samples of all steps.")
    for step in range(1, STEPS + 1):
        with verl_otel.step(step), verl_otel.rollout():
            for index in range(TRAJECTORIES):
                with verl_otel.trajectory(f"prompt-{step}", index, step=step), verl_otel.tool("lookup"):
                    samples.add(1)
    # Sends what is left, for at most VERL_OTEL_EXIT_TIMEOUT seconds. At exit it runs by itself.
    verl_otel.shutdown()
    print(f"sent {STEPS} steps and {STEPS * TRAJECTORIES} trajectories")


if __name__ == "__main__":
    main()
