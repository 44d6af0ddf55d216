# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A process that forks at many moments of its life with telemetry; prints as JSON what became of the children.

Usage: fork_storm.py METHOD FORKS EVERY   (settings by environment, as for a training)

METHOD is ``main`` (the main thread forks), ``thread`` (another thread forks, from before telemetry starts) or
``multiprocessing``; EVERY is in seconds. Each child imports modules, some of which telemetry
uses and some of which it does not, records two spans and ends. A child that has not ended after `DEADLINE` hangs; one that was forked before
telemetry began is early.
"""

import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path

DEADLINE = 45.0
"""Seconds for a child that needs some tenths of a second on a machine with nothing else to do."""
MODULES = ("requests", "google.protobuf.json_format", "prometheus_client", "xmlrpc.client", "encodings.idna", "mailbox")


class Storm:
    """The children: when each was forked, how long the fork took, and what it left."""

    def __init__(self, forks, every):
        self.forks, self.every = forks, every
        self.born = {}
        self.hung, self.failed, self.lost, self.early = [], [], [], []
        self.recorded = []
        self.slowest_fork = 0.0
        self.done = threading.Event()

    def moments(self):
        """Wait for each moment at which to fork, counted from the first; a late one is not left out."""
        begin = time.monotonic()
        for number in range(self.forks):
            while time.monotonic() < begin + number * self.every:
                time.sleep(0.001)
            yield number

    def fork(self):
        """Fork at each moment; children that have ended are collected on the way."""
        for number in self.moments():
            before = time.monotonic()
            pid = os.fork()
            if not pid:
                signal.alarm(int(2 * DEADLINE))
                os._exit(child(number))
            self.slowest_fork = max(self.slowest_fork, time.monotonic() - before)
            self.born[pid] = before
            self.collect(block=False)
        self.done.set()

    def collect(self, *, block):
        """Take the ended children; with ``block``, wait for all of them and kill the ones that hang."""
        while self.born:
            for pid, born in list(self.born.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.end(pid, status)
                elif time.monotonic() - born > DEADLINE:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    del self.born[pid]
                    self.hung.append(pid)
            if not block:
                return
            time.sleep(0.01)

    def end(self, pid, status):
        del self.born[pid]
        code = os.waitstatus_to_exitcode(status)
        if code == NO_TELEMETRY:
            self.early.append(pid)
        elif code:
            self.failed.append((pid, code))
        else:
            self.check(pid)

    def check(self, pid):
        """Note whether a child that ended in order left what it recorded."""
        self.recorded.append(pid)
        if not is_there(pid):
            self.lost.append(pid)

    def start_processes(self):
        """Do the same by multiprocessing."""
        context, running = multiprocessing.get_context("fork"), []
        for number in self.moments():
            before = time.monotonic()
            process = context.Process(target=worker, args=(number,))
            process.start()
            self.slowest_fork = max(self.slowest_fork, time.monotonic() - before)
            running.append(process)
        for process in running:
            process.join(DEADLINE)
            if process.exitcode is None:
                process.kill()
                self.hung.append(process.pid)
            elif process.exitcode:
                self.failed.append((process.pid, process.exitcode))
            else:
                self.check(process.pid)


NO_TELEMETRY = 77


def worker(number):
    """Import and record; the first half of the work comes first in every other child."""
    import verl_otel

    steps = [
        lambda: [importlib.import_module(name) for name in MODULES],
        lambda: [record(verl_otel, part) for part in ("first", "second")],
    ]
    for step in steps if number % 2 else reversed(steps):
        step()


def record(verl_otel, part):
    with verl_otel.span(f"{part}-{os.getpid()}"):
        pass


def child(number):
    """Do the work of one child and end as a process does; return the exit code."""
    if "verl_otel" not in sys.modules:
        [importlib.import_module(name) for name in MODULES]
        return NO_TELEMETRY
    session = sys.modules.get("verl_otel.session")
    current = session.current_session() if session is not None and hasattr(session, "current_session") else None
    if current is None:
        return NO_TELEMETRY
    worker(number)
    if "prometheus" in os.environ["VERL_OTEL_EXPORTERS"] and not scrape(session):
        return 3
    session.shutdown()
    return 0


def scrape(session):
    """Return whether this process comes to serve what it recorded itself."""
    deadline = time.monotonic() + DEADLINE / 2
    while time.monotonic() < deadline:
        session.flush(1)
        for port in [
            exporter.port for exporter in session.current_session().outputs.exporters if exporter.name == "prometheus"
        ]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
                page = answer.read().decode()
            if f"-{os.getpid()}" in page or f'process_pid="{os.getpid()}"' in page:
                return True
        time.sleep(0.1)
    return False


def is_there(pid):
    """Return whether both spans of a child are in its file, if there are to be files."""
    if "file" not in os.environ["VERL_OTEL_EXPORTERS"]:
        return True
    folder = Path(os.environ["VERL_OTEL_RUN_DIR"], os.environ["VERL_OTEL_RUN_ID"])
    text = "".join(path.read_text("utf-8") for path in folder.glob(f"traces-*-{pid}.jsonl"))
    return all(f"{part}-{pid}" in text for part in ("first", "second"))


def main(method, forks, every):
    storm = Storm(int(forks), float(every))
    if method == "thread":
        import verl_otel.early_imports

        threading.Thread(target=storm.fork).start()
    import verl_otel.plugin

    with verl_otel.span("parent"):
        pass
    if method == "main":
        storm.fork()
    elif method == "multiprocessing":
        storm.start_processes()
    storm.done.wait() if method in ("main", "thread") else None
    storm.collect(block=True)
    print(
        json.dumps(
            {
                "hung": storm.hung,
                "failed": storm.failed,
                "lost": storm.lost,
                "early": len(storm.early),
                "recorded": storm.recorded,
                "slowest_fork": round(storm.slowest_fork, 3),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
