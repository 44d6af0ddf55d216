# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A process that forks at many moments of its life with telemetry; prints as JSON what became of the children.

Usage: fork_storm.py METHOD FORKS EVERY   (settings by environment, as for a training)

METHOD is ``main`` (the main thread forks) or ``thread`` (another one, from before telemetry starts); EVERY is in seconds. Each child imports
modules, some of which telemetry uses and some of which it does not, records two spans and ends. A child that hangs is ended by its alarm; one
that was forked before telemetry began is early.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path

DEADLINE = 45
"""Seconds for a child that needs some tenths of a second on a machine with nothing else to do."""
MODULES = ("requests", "google.protobuf.json_format", "prometheus_client", "xmlrpc.client", "encodings.idna", "mailbox")
NO_TELEMETRY, NO_PAGE, NO_SPANS = 77, 78, 79


def fork_all(forks, every, pids, durations):
    """Fork at each moment, counted from the first; a late one is not left out."""
    begin = time.monotonic()
    for number in range(forks):
        time.sleep(max(0.0, begin + number * every - time.monotonic()))
        before = time.monotonic()
        pid = os.fork()
        if not pid:
            signal.alarm(DEADLINE)
            os._exit(work(number))
        durations.append(time.monotonic() - before)
        pids.append(pid)


def work(number):
    """Do the work of one child, whose first half comes first in every other one, and end as a process does; return the exit code."""
    session = sys.modules.get("verl_otel.session")
    current = session.current_session() if session is not None and hasattr(session, "current_session") else None
    steps = [import_modules, record]
    for step in (steps if number % 2 else reversed(steps)) if current else [import_modules]:
        step()
    if not current:
        return NO_TELEMETRY
    exporters = os.environ["VERL_OTEL_EXPORTERS"]
    if "prometheus" in exporters and not is_served(session):
        return NO_PAGE
    session.shutdown()
    return 0 if "file" not in exporters or is_written() else NO_SPANS


def import_modules():
    for name in MODULES:
        importlib.import_module(name)


def record():
    import verl_otel

    for part in ("first", "second"):
        with verl_otel.span(f"{part}-{os.getpid()}"):
            pass


def is_served(session):
    """Return whether this process comes to serve what it recorded itself."""
    deadline = time.monotonic() + DEADLINE / 2
    while time.monotonic() < deadline:
        session.flush(1)
        for exporter in session.current_session().outputs.exporters:
            if exporter.name == "prometheus":
                with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=DEADLINE) as answer:
                    page = answer.read().decode()
                if f"-{os.getpid()}" in page or f'process_pid="{os.getpid()}"' in page:
                    return True
        time.sleep(0.1)
    return False


def is_written():
    """Return whether both spans of this process are in its file."""
    folder = Path(os.environ["VERL_OTEL_RUN_DIR"], os.environ["VERL_OTEL_RUN_ID"])
    text = "".join(path.read_text("utf-8") for path in folder.glob(f"traces-*-{os.getpid()}.jsonl"))
    return all(f"{part}-{os.getpid()}" in text for part in ("first", "second"))


def main(method, forks, every):
    pids, durations = [], []
    storm = threading.Thread(target=fork_all, args=(int(forks), float(every), pids, durations))
    if method == "thread":
        import verl_otel.early_imports

        storm.start()
    import verl_otel.plugin

    with verl_otel.span("parent"):
        pass
    if method == "main":
        fork_all(int(forks), float(every), pids, durations)
    else:
        storm.join()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    early = codes.count(NO_TELEMETRY)
    failed = [code for code in codes if code not in (0, NO_TELEMETRY)]
    print(json.dumps({"failed": failed, "early": early, "whole": codes.count(0), "slowest_fork": max(durations)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
