# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The black box: what hangs, who died, and who waits for it, said while it is so. See ``docs/decisions/0013-the-black-box.md``.

Every process tells what it knows of itself (`box`). One process of a node watches all (`watcher`): it reads the roll (`roll`), and
where somebody is suspicious, everything that is open (`scene`), finds whom everybody waits for (`culprits`), and says it (`report`).
"""

from __future__ import annotations

from verl_otel.config import Config
from verl_otel.exporting.exporter import Exporter

__all__ = ["begin_run", "end_run", "make"]


def make(config: Config) -> list[Exporter]:
    """Return what a session has for stalls, to be opened after its exporters; nothing where nothing is to leave the process."""
    if not config.stalls or not config.exporters:
        return []
    from verl_otel.session.black_box import box

    return box.make(config)


def begin_run(config: Config) -> None:
    """Say that a run begins, in a folder where an earlier attempt may have ended."""
    from verl_otel.session.black_box import run_end

    _mark(config, run_end.RUNNING)


def end_run(config: Config) -> None:
    """Say that a run is over: processes that go from now on are not missed."""
    from verl_otel.session.black_box import neighbours, run_end

    _mark(config, run_end.FINISHED)
    neighbours.ask(lambda cluster: cluster.forget(config.run_id))


def _mark(config: Config, state: str) -> None:
    if config.stalls and config.exporters:
        from verl_otel.session.black_box import run_end

        run_end.mark(config, state)
