# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads settings of verl's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
