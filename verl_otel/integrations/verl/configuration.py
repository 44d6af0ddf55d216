# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads settings of verl's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_otel.recording.attribute_values import to_text


def read_setting(config: Any, path: str) -> Any:
    """Return a setting; None if it is missing.

    Args:
        config: A mapping, or an object with ``get`` such as OmegaConf's.
        path: Its keys, separated by dots.

    Example:
        read_setting(config, "trainer.nnodes")
    """
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) or hasattr(config, "get") else None
    return config


def name_model(path: Any, served_name: Any = None) -> str:
    """Return the name of a model as verl's engines report it: the last part of the served name, or else of the path.

    Example:
        name_model("/models/Qwen/Qwen3-8B/") == "Qwen3-8B"
    """
    return to_text(served_name or path).rstrip("/").rpartition("/")[2]
