# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks into verl, Ray and the engines.

A hook is installed when its module is imported, and can be undone. If its symbol is missing, only its data is missing.
"""


def install() -> None:
    """Register the hooks of every integration."""
    from verl_otel.integrations import aiohttp, ray, rl_insight, sglang, torch_compile, verl, vllm
    from verl_otel.integrations.gpu import collector

    ray.install()
    verl.install()
    rl_insight.install()
    vllm.install()
    sglang.install()
    aiohttp.install()
    torch_compile.install()
    collector.install()


def uninstall() -> None:
    """Put back everything that was replaced."""
    from verl_otel.integrations import aiohttp, patch, ray, rl_insight, spans
    from verl_otel.integrations.gpu import collector

    ray.uninstall()
    rl_insight.uninstall()
    aiohttp.uninstall()
    collector.uninstall()
    patch.undo_all()
    spans.OPENERS.clear()
