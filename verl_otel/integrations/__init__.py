# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks into verl, Ray and the engines. Each is found at import time, can be undone, and costs detail when it is missing."""


def install() -> None:
    """Register the hooks of every integration."""
    from verl_otel.integrations import ray, rl_insight, verl

    ray.install()
    verl.install()
    rl_insight.install()


def uninstall() -> None:
    """Put back everything that was replaced."""
    from verl_otel.integrations import calls, patch, rl_insight

    rl_insight.uninstall()
    patch.undo_all()
    calls.clear()
