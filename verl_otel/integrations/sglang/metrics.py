# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""SGLang's registry: its processes share their metrics by files, which ``prometheus_client`` decides when it is imported.

We import that package only where ``VERL_OTEL_EXPORTERS`` holds ``prometheus``, and then at a process's first record. If that comes before
SGLang has said where the files are, the metrics of SGLang's tokenizer would never reach them. What we did is undone here.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.patch import replace

_OURS: Final = "verl_otel.exporting.prometheus"


def _decide_again(original: Any) -> Any:
    @functools.wraps(original)
    def set_prometheus_multiproc_dir(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _OURS in sys.modules:
            with _guard.swallowed("sglang metrics"):
                values: Any = sys.modules["prometheus_client.values"]
                if not values.ValueClass._multiprocess:
                    # Ours are no values of that package, so this is about SGLang's, which are made from now on.
                    values.ValueClass = values.get_value_class()
        return result

    return set_prometheus_multiproc_dir


def patch(module: ModuleType) -> None:
    """Have ``prometheus_client`` decide anew once SGLang has said where its files are."""
    replace(module, "set_prometheus_multiproc_dir", _decide_again)
