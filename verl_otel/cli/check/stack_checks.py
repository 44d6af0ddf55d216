# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The checks of ``verl-otel check --stack``: Prometheus with rules and targets, engines, Grafana with data source and boards."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any, Final

from verl_otel._internal import safe_files
from verl_otel.cli import package_data
from verl_otel.cli.check import connections
from verl_otel.cli.check.cluster import Finding
from verl_otel.cli.check.connections import NoAnswerError
from verl_otel.cli.discover import command as discover
from verl_otel.cli.discover import target_probe
from verl_otel.cli.stack import addresses, components, ray_dashboard
from verl_otel.config import Config
from verl_otel.errors import VerlOtelError
from verl_otel.session import prometheus_targets
from verl_otel.session.prometheus_targets import Entries

MAX_OFFSET: Final = 2.0
"""Seconds by which the clock of Prometheus may differ from that of this machine."""
PROBE_TIMEOUT: Final = 2.0
MAX_LISTED: Final = 10
"""Failing targets with a finding of their own; the number of others is in one more."""


def check_stack(settings: Config) -> Iterator[Finding]:
    """Check the programs that receive telemetry, as their variables or their default ports say where they are."""
    try:
        found = addresses.choose(os.environ)
    except VerlOtelError as error:
        yield Finding("fail", "stack", str(error), "correct the variable, then `verl-otel check --stack`")
        return
    prometheus = f"http://{found['prometheus']}"
    entries, problem = _find_entries(settings)
    if problem:
        yield Finding("fail", "targets", problem, "run `verl-otel discover` on a node of the cluster")
    yield from _guard("Prometheus", prometheus, _check_prometheus(prometheus, entries))
    yield from _check_engines(entries)
    grafana = f"http://{found['grafana']}"
    yield from _guard("Grafana", grafana, _check_grafana(grafana, found["prometheus"]))


def _guard(program: str, url: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings; an answer of another form than those of a program is one, too."""
    try:
        yield from findings
    except safe_files.READ_ERRORS:
        text = f"an answer of what listens at {url} is not one of {program}"
        advice = f"set STACK_{program.upper()}=HOST:PORT, then `verl-otel check --stack`"
        yield Finding("fail", f"{program} server", text, advice)


def _find_entries(settings: Config) -> tuple[Entries, str]:
    try:
        return discover.find_entries(settings.run_dir / prometheus_targets.FOLDER, None, None), ""
    except VerlOtelError as error:
        return [], str(error)


def _check_prometheus(url: str, entries: Entries) -> Iterator[Finding]:
    try:
        answer = connections.ask(f"{url}/api/v1/query?query=time()")
    except NoAnswerError as error:
        start = "start it: `verl-otel stack`, on a Ray cluster `verl-otel stack --cluster`; STACK_PROMETHEUS=HOST:PORT says where it is"
        yield Finding(
            "fail", "Prometheus server", str(error), start if url in str(error) else f"{start}; or {error.advice}"
        )
        return
    if not isinstance(answer, dict) or answer.get("status") != "success":
        text = f"what listens at {url} is not Prometheus"
        yield Finding(
            "fail", "Prometheus server", text, "set STACK_PROMETHEUS=HOST:PORT, then `verl-otel check --stack`"
        )
        return
    yield Finding("ok", "Prometheus server", f"answers at {url}")
    offset = float(answer["data"]["result"][1]) - time.time()
    if abs(offset) > MAX_OFFSET:
        text = f"the clock of Prometheus differs by {offset:+.1f} s from that of this machine"
        yield Finding("fail", "clocks", text, "synchronize both: `chronyc tracking` or `timedatectl` shows the state")
    try:
        yield from _check_rules(url)
        yield from _check_targets(url, entries)
    except NoAnswerError as error:
        yield Finding("fail", "Prometheus server", str(error), error.advice or f"run `curl {url}/api/v1/rules` here")


def _check_rules(url: str) -> Iterator[Finding]:
    expected = {name for path in components.find_rules() for name in _read_groups(path.read_text("utf-8"))}
    answer = connections.ask(f"{url}/api/v1/rules")
    groups = answer["data"]["groups"] if isinstance(answer, dict) else []
    missing = sorted(expected - {group["name"] for group in groups})
    failing = [
        rule for group in groups if group["name"] in expected for rule in group["rules"] if rule.get("health") == "err"
    ]
    if missing:
        text = f"{len(missing)} of {len(expected)} groups are not loaded: {', '.join(missing[:3])}"
        advice = (
            "`verl-otel boards export DIR`, add DIR/rules/*.rules.yml to rule_files of prometheus.yml, and reload it"
        )
        yield Finding("fail", "rules", text, advice)
    elif failing:
        text = f"{len(failing)} rules fail, the first one: {failing[0]['name']}: {failing[0].get('lastError', '')}"
        yield Finding(
            "fail", "rules", text, "`verl-otel boards export DIR` writes the rules of this version; load those"
        )
    else:
        yield Finding("ok", "rules", f"{len(expected)} groups are loaded")


def _read_groups(text: str) -> list[str]:
    """Return the names of the groups of a rule file, which is YAML of our own."""
    names = (line.strip().removeprefix("- ") for line in text.splitlines() if line.strip().startswith("- name:"))
    return [line.partition(":")[2].strip().strip("\"'") for line in names]


def _check_targets(url: str, entries: Entries) -> Iterator[Finding]:
    answer = connections.ask(f"{url}/api/v1/targets?state=active")
    targets = answer["data"]["activeTargets"] if isinstance(answer, dict) else []
    down = [target for target in targets if target["health"] == "down"]
    for target in down[:MAX_LISTED]:
        name = target["labels"].get("instance", target["scrapeUrl"])
        advice = f"run `curl {target['scrapeUrl']}` on the machine of Prometheus; `verl-otel discover` names the cause"
        if target["labels"].get("job") == "ray":
            advice = (
                f"{ray_dashboard.find_targets()} lists it: an ended Ray leaves that file, delete it if no such Ray runs"
            )
        yield Finding("fail", "target", f"{name} ({target['scrapeUrl']}) is down: {target['lastError']}", advice)
    if len(down) > MAX_LISTED:
        yield Finding("fail", "target", f"{len(down) - MAX_LISTED} more are down", "`verl-otel discover` lists them")
    scraped = {target["discoveredLabels"].get("__address__") for target in targets}
    missing = sorted({str(entry["targets"][0]) for entry in entries} - scraped)
    if missing:
        text = f"{len(missing)} of {len(entries)} pages of running trainings are not scraped: {', '.join(missing[:3])}"
        advice = "wait 30 s; then use `verl-otel stack --cluster`, or `verl-otel discover --serve` with http_sd_configs in prometheus.yml"
        yield Finding("fail", "targets", text, advice)
    elif not down:
        yield Finding(
            "ok", "targets", f"{len(targets)} are up, those of {len(entries)} processes and engines among them"
        )


def _check_engines(entries: Entries) -> Iterator[Finding]:
    engines = [entry for entry in entries if entry["labels"].get("verl_engine")]
    for answer in target_probe.probe_all(engines, PROBE_TIMEOUT):
        name = answer.entry["labels"].get("instance", answer.address)
        if answer.state == "statistics off":
            yield Finding("fail", "engine", f"{name}: {answer.text.partition(':')[0]}", answer.text.partition(": ")[2])
        elif answer.state != "ok":
            yield Finding(
                "fail", "engine", f"{name} ({answer.address}): {answer.text}", "`verl-otel discover` asks it again"
            )
    if engines:
        yield Finding("ok", "engines", f"{len(engines)} were asked")


def _check_grafana(url: str, prometheus: str) -> Iterator[Finding]:
    try:
        connections.ask(f"{url}/api/health")
    except NoAnswerError as error:
        advice = "`verl-otel stack --grafana-home DIR` starts one; STACK_GRAFANA=HOST:PORT says where it is"
        yield Finding("note", "Grafana", f"{error}: there are no boards", advice)
        return
    try:
        frontend = connections.ask(f"{url}/api/frontend/settings")
        boards = connections.ask(f"{url}/api/search?type=dash-db&limit=5000")
    except NoAnswerError as error:
        text = f"{error}: its data source and boards cannot be seen without an account"
        yield Finding("note", "Grafana", text, "log in and look at Connections, Data sources, and at Dashboards")
        return
    sources = [source for source in _sources(frontend) if source.get("type") == "prometheus"]
    if sources:
        yield Finding("ok", "Grafana data source", ", ".join(str(source.get("name", "")) for source in sources))
    else:
        advice = f"`verl-otel boards export DIR` writes one; start Grafana with PROMETHEUS_URL=http://{prometheus}"
        yield Finding("fail", "Grafana data source", f"{url} has no data source of the type Prometheus", advice)
    missing = sorted(_read_uids() - {str(board.get("uid", "")) for board in boards or []})
    if missing:
        text = f"{len(missing)} boards of verl-otel are missing: {', '.join(missing[:5])}"
        yield Finding(
            "fail", "Grafana boards", text, "`verl-otel boards export DIR` writes them, with their provisioning"
        )
    else:
        yield Finding("ok", "Grafana boards", "all are there")


def _sources(frontend: Any) -> list[dict[str, Any]]:
    sources = frontend.get("datasources", {}) if isinstance(frontend, dict) else {}
    return [source for source in sources.values() if isinstance(source, dict)]


def _read_uids() -> set[str]:
    folder = package_data.find_folder("dashboards") / "generated"
    return {str(json.loads(path.read_text("utf-8"))["uid"]) for path in sorted(folder.glob("*.json"))}
