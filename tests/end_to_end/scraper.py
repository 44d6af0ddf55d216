# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A reader of the run's ``file_sd`` file that scrapes every target, as a Prometheus would, while the training runs."""

import contextlib
import http.client
import json
import threading
import time
import urllib.request

from prometheus_client import parser as plain_text
from prometheus_client.openmetrics import parser as openmetrics

ACCEPT = "application/openmetrics-text; version=1.0.0"


class Scraper:
    """Scrapes every half second on a thread of its own until it is left."""

    def __init__(self, folder):
        self.folder = folder
        self.last = {}
        """Instance to the families of its last scrape, strictly parsed."""
        self.targets = {}
        self.steps = {}
        """Step to the samples of the trainer's page that showed it: name to value."""
        self.failures = []
        self.scrapes = 0
        self._stop = threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join(10)

    def _run(self):
        while not self._stop.is_set():
            for path in self.folder.glob("*.json"):
                with contextlib.suppress(OSError, ValueError):
                    for entry in json.loads(path.read_text()):
                        self._scrape(entry)
            time.sleep(0.1)

    def _scrape(self, entry):
        (address,), labels = entry["targets"], entry["labels"]
        try:
            request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": ACCEPT})
            with urllib.request.urlopen(request, timeout=5) as answer:
                if "Content-Type" not in answer.headers:
                    return  # the process ended in the middle of its answer
                parse = openmetrics if "openmetrics" in answer.headers["Content-Type"] else plain_text
                text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return  # the process has just ended, perhaps in the middle of its answer
        self.targets[labels["instance"]] = labels
        self.scrapes += 1
        try:
            families = list(parse.text_string_to_metric_families(text))
        except ValueError as error:
            self.failures.append((labels["instance"], str(error), text))
            return
        self.last[labels["instance"]] = families
        samples = {sample.name: sample.value for family in families for sample in family.samples}
        if labels["verl_role"] == "trainer" and "verl_training_step" in samples:
            self.steps[int(samples["verl_training_step"])] = samples
