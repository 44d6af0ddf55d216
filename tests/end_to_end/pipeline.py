# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a platform engineer deploys, on one machine: agent, gateway, Prometheus with our rules, Alertmanager, and a receiver of its notifications.

Two servers of Prometheus, because a metric has one way into one: ``watcher`` scrapes the gateway and the processes of runs that are not sent to
it; ``beside`` scrapes the processes of the real run, which sends to the agent as well.
"""

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from tests.builders.programs import need_programs
from tests.collector.tiers import Process, Prometheus, Tier, fetch
from tests.end_to_end import compressed_rules
from tests.fakes.http_server import HttpServer

FACTOR = 30
"""By which every time of the rules is divided: a minute of a runbook is two seconds here."""
SCRAPE = "1s"
EXPORT = "500"
"""Milliseconds of ``OTEL_METRIC_EXPORT_INTERVAL``; 10 s over `FACTOR`, rounded up."""
PARTS = ("otelcol", "prometheus", "alertmanager")


class Watcher(Prometheus):
    """A Prometheus with our rules, their times compressed, that scrapes every second and tells an Alertmanager, if there is one."""

    def __init__(self, program, folder, name, *, tiers=(), targets=None, alertmanager=None):
        super().__init__(program, folder, name, tier=tiers[0] if tiers else None, targets=targets)
        compressed_rules.write(self.folder / "rules", FACTOR)
        document = compressed_rules.yaml.safe_load(self.settings.read_text("utf-8"))
        document["global"]["scrape_interval"] = SCRAPE
        document["global"]["scrape_timeout"] = SCRAPE
        document["rule_files"] = [f"{self.folder}/rules/*.rules.yml"]
        by_name = {each["job_name"]: each for each in document["scrape_configs"]}
        by_name["otelcol"]["static_configs"] = [{"targets": [each.addresses["self"] for each in tiers]}]
        if not tiers:
            document["scrape_configs"] = [by_name["verl"]]
        if alertmanager is not None:
            target = {"static_configs": [{"targets": [alertmanager.addresses["prometheus"]]}]}
            document["alerting"] = {"alertmanagers": [target]}
        self.settings.write_text(compressed_rules.yaml.safe_dump(document, sort_keys=False), "utf-8")

    def fired(self, run_id=""):
        """Return the alerts that have fired: (alert, labels) of those of a run, or with ``""`` of no run, at any time so far."""
        found = self.query(f'max_over_time(ALERTS{{alertstate="firing", verl_run_id="{run_id}"}}[1h])')
        return [(labels["alertname"], labels) for labels, _ in found]


class Alertmanager(Process):
    """An Alertmanager with the project's example, its waits compressed."""

    ready_path = "/-/ready"

    def __init__(self, program, folder, receiver):
        super().__init__(folder, "alertmanager", "prometheus")
        self.program = program
        self.settings = compressed_rules.write_alertmanager(self.folder / "alertmanager.yml", FACTOR, receiver)

    def command(self):
        return [
            self.program,
            f"--config.file={self.settings}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address={self.addresses['prometheus']}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]

    def alerts(self, run_id):
        """Return what it holds of a run: alert to whether another one inhibits it."""
        found = json.loads(fetch(f"http://{self.addresses['prometheus']}/api/v2/alerts?filter=verl_run_id%3D{run_id}"))
        return {each["labels"]["alertname"]: bool(each["status"]["inhibitedBy"]) for each in found}


class Receiver:
    """A receiver: a server that keeps every notification, as (receiver, status, alert, run)."""

    def __init__(self):
        self.notifications = []
        self._server = HttpServer(self._receive).start()
        self.url = self._server.url
        self.close = self._server.close

    def _receive(self, call):
        for alert in json.loads(call.body)["alerts"]:
            labels = alert["labels"]
            self.notifications.append(
                (call.path[1:], alert["status"], labels["alertname"], labels.get("verl_run_id", ""))
            )
        return 200


class Pipeline(NamedTuple):
    """All of it, running."""

    agent: Tier
    gateway: Tier
    watcher: Watcher
    beside: Watcher
    alertmanager: Alertmanager
    receiver: Receiver
    real: Path
    """Folder of the real run; ``beside`` finds its targets below ``runs``."""
    loops: Path
    """The same for the runs that ``watcher`` scrapes."""


@contextlib.contextmanager
def start(folder, certificate):
    """Start everything, and stop it at the end.

    Args:
        folder: Where the folders of its parts go.
        certificate: Files (certificate, key), by which both tiers know each other.
    """
    programs, real, loops = need_programs(*PARTS), folder / "real", folder / "loops"
    names = ("OTELCOL_TLS_CA", "OTELCOL_TLS_CERT", "OTELCOL_TLS_KEY", "OTELCOL_TOKEN_FILE")
    known = dict(zip(names, (certificate[0], *certificate, folder / "token"), strict=True))
    known["OTELCOL_TOKEN_FILE"].write_text("secret")
    forgetful = folder / "forgetful.yaml"
    forgetful.write_text(f"exporters: {{prometheus/metrics: {{metric_expiration: {300 / FACTOR}s}}}}\n")
    with contextlib.ExitStack() as ending:

        def run(process):
            ending.callback(process.kill)
            return process.start()

        def run_tier(name, files, **variables):
            return run(Tier(programs / "otelcol-verl", folder, name, files, **known, **variables))

        def watch(name, runs, **keywords):
            return run(Watcher(programs / "prometheus", folder, name, targets=runs / "runs" / "targets", **keywords))

        gateway = run_tier("gateway", ["gateway.yaml", "traces-to-file.yaml", forgetful])
        name = gateway.grpc_name
        agent = run_tier("agent", ["agent.yaml"], OTELCOL_GATEWAYS=f"[{name}]", OTELCOL_METRICS_GATEWAY=name)
        receiver = Receiver()
        ending.callback(receiver.close)
        alertmanager = run(Alertmanager(programs / "alertmanager", folder, receiver.url))
        watcher = watch("watcher", loops, tiers=(gateway, agent), alertmanager=alertmanager)
        yield Pipeline(agent, gateway, watcher, watch("beside", real), alertmanager, receiver, real, loops)
