# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The age of a run's files, and signs of life of its processes."""

import os
import time

from verl_otel.system import procfs
from verl_otel.watchdog import process_reports

DAY = 86400


def set_age(folder, seconds):
    """Let everything in a folder have been written this long ago."""
    moment = time.time() - seconds
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            os.utime(path, (moment, moment))


def report_of(folder, process):
    """Write the report of a process of a run, as its heartbeat does."""
    place = folder / process_reports.FOLDER
    place.mkdir(exist_ok=True)
    report = process_reports.ProcessReport(
        "x-y-1", process, procfs.read_node_name(), "r1/x-0", "x", None, "", 0, 1.0, (), {}, (), ()
    )
    process_reports.write(place, report)
