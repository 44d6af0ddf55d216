# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""SGLang's registry: its processes share metrics through files; ``prometheus_client`` chooses this mode when it is imported.

verl-otel imports that package only if ``VERL_OTEL_EXPORTERS`` holds ``prometheus``, at the first record of a process. If this happens before
SGLang has set the folder of the files, the metrics of SGLang's tokenizer would not reach them. The choice is repeated here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from verl_otel.integrations.patch import add_callbacks, replace

_EXPORTER: Final = "verl_otel.exporting.prometheus"


def _choose_mode_again(*_: Any) -> None:
    if _EXPORTER in sys.modules:
        values: Any = sys.modules["prometheus_client.values"]
        if not values.ValueClass._multiprocess:
            # verl-otel does not use value objects of that package: this affects SGLang's later metrics only.
            values.ValueClass = values.get_value_class()


def patch(module: ModuleType) -> None:
    """Have ``prometheus_client`` choose its mode again after SGLang has set the folder of its files."""
    replace(module, "set_prometheus_multiproc_dir", add_callbacks("sglang metrics", after=_choose_mode_again))
