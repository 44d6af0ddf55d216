# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Real Collectors and a real Prometheus as children of a test: started on free ports, killed, started again."""

import json
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tests.builders import otlp_json
from tests.builders.environments import inherit
from verl_otel.cli import stack_components

COLLECTOR = Path(__file__).resolve().parents[2] / "collector"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url, form=None):
    """Return what a URL answers; with ``form`` it is posted."""
    data = None if form is None else urllib.parse.urlencode(form, doseq=True).encode()
    with OPENER.open(url, data, timeout=60) as answer:
        return answer.read().decode()


def read_spans(paths):
    """Return the spans of files of OTLP JSON, in order: trace id, span id, and the JSON object."""
    return [
        (span["traceId"], span["spanId"], span)
        for path in paths
        for message in otlp_json.read_objects(path)
        for _, _, span in otlp_json.each_span(message)
    ]


def variables_of(folder, name):
    """Return the variables by which a tier finds its credentials."""
    return {
        "OTELCOL_TLS_CA": folder / "ca.pem",
        "OTELCOL_TLS_CERT": folder / f"{name}.pem",
        "OTELCOL_TLS_KEY": folder / f"{name}.key",
        "OTELCOL_TOKEN_FILE": folder / "token",
    }


class Process:
    """A program that a test starts, kills and starts again, with the same command and the same ports."""

    ready_path = "/"

    def __init__(self, folder, name, listener):
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.name = name
        self.log = self.folder / "log.txt"
        self.addresses = stack_components.choose_addresses({}, free=True)
        self.ready_url = f"http://{self.addresses[listener]}{self.ready_path}"
        self.process = None
        self._begin = 0
        """Where the log of the process that runs begins."""

    def command(self):
        raise NotImplementedError

    def environ(self):
        return {}

    def port(self, listener):
        return self.addresses[listener].rpartition(":")[2]

    def start(self, seconds=180):
        """Start it and wait until it answers."""
        assert self.process is None, f"{self.name} runs"
        deadline = time.monotonic() + seconds
        self._run()
        while not self.is_ready():
            if self.process.poll() is not None:
                assert self._lost_port(), f"{self.name} has ended: {self.read_log()[-3000:]}"
                time.sleep(0.2)
                self._run()
            assert time.monotonic() < deadline, f"{self.name} is not ready: {self.read_log()[-3000:]}"
            time.sleep(0.05)
        return self

    def _run(self):
        inherited = inherit("OTEL", "VERL_")
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self.process = subprocess.Popen(
                [str(word) for word in self.command()],
                env={**inherited, **{key: str(value) for key, value in self.environ().items()}},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _lost_port(self):
        """Whether a connection of another process has one of the ports, which were free when they were chosen."""
        return b"address already in use" in self.log.read_bytes()[self._begin :]

    def is_ready(self):
        try:
            fetch(self.ready_url)
        except OSError:
            return False
        return True

    def kill(self, number=signal.SIGKILL, seconds=180):
        """Send a signal and wait for the end."""
        if self.process is not None:
            self.process.send_signal(number)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
            self.process = None

    def stop(self):
        """End it as an operator does; what it held is on the disk then."""
        self.kill(signal.SIGTERM)

    def read_log(self):
        return self.log.read_text("utf-8", "replace")


class Tier(Process):
    """A Collector.

    Args:
        program: otelcol-verl.
        folder: Where its folder goes; the queue on the disk and a file of traces are in it.
        name: What it is called in the test.
        files: Configurations of collector/, the base first; or paths of others.
        variables: Variables in addition to the ports.
    """

    def __init__(self, program, folder, name, files, **variables):
        super().__init__(folder, name, "health")
        self.program, self.files, self.variables = program, files, variables
        self.trace_file = self.folder / "traces.jsonl"

    def command(self):
        return [self.program, *(f"--config={COLLECTOR / each}" for each in self.files)]

    def environ(self):
        return {
            "OTELCOL_GRPC": self.addresses["grpc"],
            "OTELCOL_HTTP": self.addresses["http"],
            "OTELCOL_METRICS": self.addresses["metrics"],
            "OTELCOL_SPAN_METRICS": self.addresses["tempo"],
            "OTELCOL_HEALTH": self.addresses["health"],
            "OTELCOL_SELF_PORT": self.port("self"),
            "OTELCOL_STATE_DIR": self.folder / "queue",
            "OTELCOL_TRACE_FILE": self.trace_file,
            **self.variables,
        }

    @property
    def http_url(self):
        return f"http://{self.addresses['http']}"

    @property
    def grpc_name(self):
        """Where clients with TLS reach it: by the name that is in the certificates."""
        return f"localhost:{self.port('grpc')}"

    def own(self, name, **labels):
        """Return the sum of one of its own metrics, over the series with these labels."""
        page = fetch(f"http://{self.addresses['self']}/metrics")
        total = 0.0
        for line in page.splitlines():
            full, _, value = line.rpartition(" ")
            if full.partition("{")[0].removesuffix("_total") == name and all(
                f'{key}="{wanted}"' in full for key, wanted in labels.items()
            ):
                total += float(value)
        return total

    def spans(self):
        """Return the spans in its file of traces: trace id, span id and the JSON object of each, in order."""
        return read_spans([self.trace_file] if self.trace_file.exists() else [])


class Prometheus(Process):
    """A Prometheus with the project's own settings, which scrapes every second.

    Args:
        program: prometheus.
        folder: Where its folder goes.
        name: What it is called in the test.
        tier: The Collector that it scrapes, if any.
        targets: Folder of ``file_sd`` files, if any.
    """

    ready_path = "/-/ready"

    def __init__(self, program, folder, name="prometheus", tier=None, targets=None):
        super().__init__(folder, name, "prometheus")
        self.program = program
        self.settings = self.folder / "prometheus.yml"
        text = (COLLECTOR / "prometheus.yml").read_text("utf-8")
        nobody = tier or self
        for old, new in {
            "scrape_interval: 10s": "scrape_interval: 1s",
            "evaluation_interval: 15s": "evaluation_interval: 1s",
            "[rules/*.rules.yml]": "[]",
            '"127.0.0.1:8889"': json.dumps(nobody.addresses["metrics"]),
            '"127.0.0.1:8888"': json.dumps(nobody.addresses["self"]),
            '"targets/*.json"': json.dumps(f"{targets or self.folder}/*.json"),
            "refresh_interval: 15s": "refresh_interval: 1s",
        }.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        self.settings.write_text(text, "utf-8")

    @property
    def url(self):
        return f"http://{self.addresses['prometheus']}"

    @property
    def otlp_url(self):
        return f"{self.url}/api/v1/otlp"

    @property
    def write_url(self):
        return f"{self.url}/api/v1/write"

    def command(self):
        return [
            self.program,
            f"--config.file={self.settings}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.addresses['prometheus']}",
            "--enable-feature=exemplar-storage,created-timestamp-zero-ingestion",
            "--web.enable-otlp-receiver",
            "--web.enable-remote-write-receiver",
            "--log.level=warn",
        ]

    def ask(self, path, **form):
        """Return the data of an answer of its HTTP interface."""
        try:
            answer = json.loads(fetch(f"{self.url}/api/v1/{path}", form or None))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {form}: {error.read().decode()[:500]}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        """Return the result of an instant query: (labels, value) of every series."""
        return [(each["metric"], float(each["value"][1])) for each in self.ask("query", query=expression)["result"]]

    def total(self, name="user_things_total", **labels):
        """Return the sum of a metric over all series with these labels."""
        selector = ",".join(f'{key}="{value}"' for key, value in labels.items())
        return sum(value for _, value in self.query(f"{name}{{{selector}}}"))

    def exemplars(self, selector, seconds=600):
        """Return the exemplars of a selector: (labels of the series, labels of the exemplar, value)."""
        now = time.time()
        groups = self.ask("query_exemplars", query=selector, start=now - seconds, end=now + 60)
        return [
            (group["seriesLabels"], each["labels"], float(each["value"]))
            for group in groups
            for each in group["exemplars"]
        ]


USERS = """# our own Prometheus
global: {scrape_interval: 1s}   # fast

scrape_configs:
  # itself
  - job_name: self
    static_configs: [{targets: ["%s"]}]
"""


class OwnPrometheus(Prometheus):
    """A Prometheus with a file of the user's, whose only target is itself."""

    lifecycle = True

    def __init__(self, program, folder):
        super().__init__(program, folder)
        self.text = USERS % self.addresses["prometheus"]
        self.settings.write_text(self.text)

    def command(self):
        return [*super().command(), *(["--web.enable-lifecycle"] if self.lifecycle else [])]

    def jobs(self):
        """Return the health of a target of each job."""
        return {each["scrapePool"]: each["health"] for each in self.ask("targets")["activeTargets"]}
