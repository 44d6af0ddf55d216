# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Found by Python at start: hides or breaks modules, so that a test can train where something is missing.

``CPU_BED_HIDE=nvtx,verl_otel@worker`` makes ``nvtx`` missing everywhere and ``verl_otel`` in Ray's workers only.
``CPU_BED_BREAK=verl_otel.plugin@worker`` makes the import raise there.
"""

import os
import sys

IS_WORKER = any("default_worker.py" in argument for argument in sys.orig_argv)


def names(variable):
    for item in filter(None, os.environ.get(variable, "").split(",")):
        name, _, where = item.partition("@")
        if not where or IS_WORKER:
            yield name


class Obstacles:
    """A finder that comes first and refuses some names."""

    hidden = frozenset(names("CPU_BED_HIDE"))
    broken = frozenset(names("CPU_BED_BREAK"))

    def find_spec(self, name, path=None, target=None):
        if name in self.broken:
            raise RuntimeError(f"{name} is broken on purpose")
        if name in self.hidden or name.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden on purpose)", name=name)


if Obstacles.hidden or Obstacles.broken:
    sys.meta_path.insert(0, Obstacles())
