# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks into verl, Ray and the engines. Each is found at import time, can be undone, and costs detail when it is missing."""


def install(*, early: bool = False) -> None:
    """Register the hooks of every integration.

    Args:
        early: Whether no actor class can have been exported from this process yet (a Ray worker's setup hook).
    """
    from verl_otel.integrations import ray, verl

    ray.install(early=early)
    verl.install()


def uninstall() -> None:
    """Put back everything that was replaced."""
    from verl_otel.integrations import calls, patch

    patch.undo_all()
    calls.clear()
