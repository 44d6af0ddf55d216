# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The checks outside of this process: ``check --cluster`` asks the nodes, ``check --stack`` Prometheus, engines and Grafana."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from verl_otel._internal import safe_files
from verl_otel._internal.call_timeout import call_for
from verl_otel._version import __version__
from verl_otel.cli import discover, package_data, stack_components
from verl_otel.cli.documents.tools import Finding
from verl_otel.config import Config
from verl_otel.errors import VerlOtelError
from verl_otel.integrations import cluster_store
from verl_otel.integrations.ray import cluster_endpoint
from verl_otel.integrations.ray.cluster_endpoint import ClusterEndpoint
from verl_otel.integrations.source_inspection import installed_version
from verl_otel.session import prometheus_targets
from verl_otel.session.prometheus_targets import TargetEntries

MAX_OFFSET: Final = 2.0
"""Seconds by which the clock of Prometheus may differ from that of this machine."""
PROBE_TIMEOUT: Final = 2.0
MAX_LISTED: Final = 10
"""Failing targets with a finding of their own; the number of others is in one more."""


def check_stack(settings: Config) -> Iterator[Finding]:
    """Check the programs that receive telemetry, as their variables or their default ports say where they are."""
    try:
        found = stack_components.choose_addresses(os.environ)
    except VerlOtelError as error:
        yield Finding("fail", "stack", str(error), "give it a port, or HOST:PORT, then `verl-otel check --stack`")
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


def _find_entries(settings: Config) -> tuple[TargetEntries, str]:
    try:
        return discover.find_entries(settings.run_dir / prometheus_targets.TARGETS_FOLDER, None, None), ""
    except VerlOtelError as error:
        return [], str(error)


def _check_prometheus(url: str, entries: TargetEntries) -> Iterator[Finding]:
    try:
        answer = ask_url(f"{url}/api/v1/query?query=time()")
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
    expected = {name for path in stack_components.find_rules() for name in _read_groups(path.read_text("utf-8"))}
    answer = ask_url(f"{url}/api/v1/rules")
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


def _check_targets(url: str, entries: TargetEntries) -> Iterator[Finding]:
    answer = ask_url(f"{url}/api/v1/targets?state=active")
    targets = answer["data"]["activeTargets"] if isinstance(answer, dict) else []
    down = [target for target in targets if target["health"] == "down"]
    for target in down[:MAX_LISTED]:
        name = target["labels"].get("instance", target["scrapeUrl"])
        advice = f"run `curl {target['scrapeUrl']}` on the machine of Prometheus; `verl-otel discover` names the cause"
        if target["labels"].get("job") == "ray":
            advice = f"an ended Ray leaves its list of targets: if no such Ray runs, `rm {stack_components.find_ray_targets()}`"
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


def _check_engines(entries: TargetEntries) -> Iterator[Finding]:
    engines = [entry for entry in entries if entry["labels"].get("verl_engine")]
    for answer in discover.probe_all(engines, PROBE_TIMEOUT):
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
        ask_url(f"{url}/api/health")
    except NoAnswerError as error:
        advice = "`verl-otel stack --grafana-home DIR` starts one; STACK_GRAFANA=HOST:PORT says where it is"
        yield Finding("note", "Grafana", f"{error}: there are no boards", advice)
        return
    try:
        frontend = ask_url(f"{url}/api/frontend/settings")
        boards = ask_url(f"{url}/api/search?type=dash-db&limit=5000")
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


# -- Every node of the running Ray cluster: versions, resources, clock, and whether it reaches the OTLP endpoint of the cluster --

CLOCK_READINGS: Final = 3
"""Readings of the clock of a node. Before the first one, a worker process has to start."""
MAX_NODE_OFFSET: Final = 1.0
"""Seconds by which the clock of a node may differ."""
_PACKAGES: Final = ("verl", "ray", "torch", "vllm", "sglang")
NODE_TIMEOUT: Final = 60.0
"""Timeout in seconds for the answer of a node."""


def ask_nodes() -> Iterator[Finding]:
    """Yield a finding for each node, or one for the cluster if it cannot be reached."""
    try:
        import ray
    except ImportError:
        yield Finding(
            "fail",
            "cluster",
            "Ray is not installed here",
            "run `verl-otel check --cluster` in the environment that trains",
        )
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        yield Finding(
            "fail",
            "cluster",
            f"no running Ray cluster: {str(error).splitlines()[0]}",
            "start it with `ray start --head`, or set RAY_ADDRESS=HOST:PORT, and RAY_AUTH_MODE as the cluster has it",
        )
        return
    try:
        yield from _ask(ray)
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()


def _ask(ray: Any) -> Iterator[Finding]:
    look = _make_look(_read_endpoint(), _PACKAGES)
    for node in ray.nodes():
        if not node.get("Alive"):
            continue
        name = f"node {node.get('NodeManagerHostname') or node['NodeManagerAddress']}"
        options = {"num_cpus": 0, "resources": {f"node:{node['NodeManagerAddress']}": 0.001}}
        task = ray.remote(look).options(**options)
        answer, offset = _ask_node(ray, task)
        if answer is None:
            yield Finding(
                "fail",
                name,
                "no answer",
                f"run `ray status`, and look at the logs of that node; the timeout is {NODE_TIMEOUT:g} s",
            )
            continue
        yield from _judge(name, answer, node.get("Resources") or {})
        if abs(offset) > MAX_NODE_OFFSET:
            text = f"{name}: its clock differs by {offset:+.1f} s from that of this machine"
            yield Finding(
                "fail",
                "clocks",
                text,
                "synchronize it: `chronyc tracking` or `timedatectl` on that node shows the state",
            )


def _ask_node(ray: Any, task: Any) -> tuple[dict[str, Any] | None, float]:
    """Return the answer of a node, None without one, and by how many seconds at least its clock differs."""
    answer, offsets = None, []
    for _ in range(CLOCK_READINGS):
        begin = time.time()
        reference = task.remote()
        ready, _ = ray.wait([reference], timeout=NODE_TIMEOUT)
        if not ready:
            return answer, 0.0
        answer, end = ray.get(reference), time.time()
        # The clock was read between the two: only what lies outside is a difference.
        offsets.append(min(answer["time"] - begin, 0.0) + max(answer["time"] - end, 0.0))
    return answer, max(offsets, key=abs)


def _judge(name: str, answer: dict[str, Any], resources: Mapping[str, float]) -> Iterator[Finding]:
    version, others = answer["verl_otel"], answer["versions"]
    shown = ", ".join(f"{package} {number}" for package, number in others.items() if number)
    amounts = ", ".join(f"{resources[kind]:g} {kind}" for kind in ("CPU", "GPU", "NPU") if resources.get(kind))
    if version == __version__:
        yield Finding("ok", name, f"verl-otel {version}, {shown}; {amounts}")
    elif version.startswith("!"):
        text = f"verl-otel cannot be loaded there ({version[1:]}); its processes are not recorded"
        yield Finding("fail", name, text, "run `pip install verl-otel` on that node")
    else:
        yield Finding("note", name, f"verl-otel {version}, here {__version__}", "use the same version on every node")
    here = _read_versions()
    different = [
        f"{package} {number}, here {here[package]}" for package, number in others.items() if number != here[package]
    ]
    if different and not version.startswith("!"):
        yield Finding(
            "note", name, f"other versions there: {'; '.join(different)}", "install the same versions on every node"
        )
    if answer["endpoint"]:
        yield from _judge_reach(name, answer)


def _judge_reach(name: str, answer: dict[str, Any]) -> Iterator[Finding]:
    url, problem = answer["endpoint"], answer["problem"]
    proxy = find_proxy(url, answer["proxies"])
    if problem is not None:
        reason, advice = explain(url, problem)
        yield Finding("fail", "OTLP of the cluster", f"from {name}: {reason}", advice)
    elif proxy:
        text = f"from {name}: {proxy} is set there, so what is sent to {url} goes to a proxy"
        host = urlsplit(url).hostname
        yield Finding(
            "fail",
            "OTLP of the cluster",
            text,
            f"add {host} to NO_PROXY in the environment of `ray start` on that node",
        )
    else:
        yield Finding("ok", "OTLP of the cluster", f"{name} reaches {url}")


def _read_endpoint() -> ClusterEndpoint:
    value = cluster_store.read(cluster_endpoint.KEY)
    found = cluster_endpoint.decode(value) if value else None
    return found or ClusterEndpoint("", "", "")


def _read_versions() -> dict[str, str]:
    return {package: ".".join(re.findall(r"\d+", installed_version(package))[:3]) for package in _PACKAGES}


def _make_look(endpoint: ClusterEndpoint, packages: tuple[str, ...]) -> Callable[[], dict[str, Any]]:
    """Return the function that runs on a node. It is pickled by value, so that a node without verl-otel can run it."""
    url, send = endpoint.http, _make_sender(endpoint)  # no object of verl-otel

    def look() -> dict[str, Any]:
        import os
        import re
        import time
        from importlib import metadata

        versions = {}
        for package in packages:
            try:
                versions[package] = ".".join(re.findall(r"\d+", metadata.version(package))[:3])
            except metadata.PackageNotFoundError:
                versions[package] = ""
        try:
            import verl_otel.plugin

            own = str(verl_otel.__version__)
        except BaseException as error:
            own = f"!{type(error).__name__}: {error}"
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        return {
            "verl_otel": own,
            "versions": versions,
            "endpoint": url,
            "problem": send() if url else None,
            "proxies": proxies,
            "time": time.time(),
        }

    return look


def _make_sender(endpoint: ClusterEndpoint) -> Callable[[], int | str | None]:
    """Return a function that sends an empty OTLP request, with token and certificate as trainings do. It returns a problem of `explain`, or None."""
    url, token, certificate = f"{endpoint.http}/v1/metrics", endpoint.token, endpoint.certificate

    def send() -> int | str | None:
        import ssl
        import urllib.error
        import urllib.request

        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-protobuf"}
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        try:
            if certificate:
                context = ssl.create_default_context(cadata=certificate)
                context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # trainings do not ask for it
                handlers.append(urllib.request.HTTPSHandler(context=context))
            request = urllib.request.Request(url, b"", headers)  # noqa: S310 - the URL of OTLP
            urllib.request.build_opener(*handlers).open(request, timeout=5.0).close()
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code}"
        except Exception as error:  # each is a finding
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                return "timeout"
            if isinstance(reason, ssl.SSLError):
                return f"TLS: {getattr(reason, 'verify_message', '') or reason.reason or reason}"
            return getattr(reason, "errno", None) or str(reason) or type(reason).__name__
        return None

    return send


# -- Requests, and why one fails: nothing listens, it is bound to another address, a firewall, or a proxy in between --

TIMEOUT: Final = 5.0
"""Timeout of one request in seconds."""
MAX_BYTES: Final = 32 << 20
_UNREACHABLE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH)


class NoAnswerError(Exception):
    """A request has no usable response; the message is the reason, ``advice`` what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.advice = advice


def ask_url(url: str) -> Any:
    """Return the JSON document at a URL, without a proxy; None for another response.

    Raises:
        NoAnswerError: There is no response.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read() -> bytes:
        with opener.open(url, timeout=TIMEOUT) as answer:
            return bytes(answer.read(MAX_BYTES))

    try:
        return safe_files.parse_json(call_for(TIMEOUT, "verl-otel-check", read))
    except urllib.error.HTTPError as error:
        raise NoAnswerError(f"{url} answers {error.code} {error.reason}", "") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        number = reason.errno if isinstance(reason, OSError) else None
        raise NoAnswerError(
            *explain(url, "timeout" if isinstance(reason, TimeoutError) else number or str(reason))
        ) from None
    except ValueError:
        return None


def explain(url: str, problem: int | str) -> tuple[str, str]:
    """Return why a connection failed, and what to do.

    Args:
        url: What was connected to.
        problem: The number of the error of the operating system, ``timeout``, ``HTTP <status>``, ``TLS: <reason>``, or another text.

    Example:
        explain("http://10.0.0.1:4318", errno.ECONNREFUSED)
    """
    address = urlsplit(url).netloc.rpartition("@")[2]
    port = address.rpartition(":")[2]
    if problem == errno.ECONNREFUSED:
        reason = f"{address} refuses connections: nothing listens there, or only on another address of that machine"
        return reason, f"run `ss -ltn 'sport = :{port}'` there: no line: start it; 127.0.0.1: bind it to {address}"
    if problem == "timeout":
        reason = f"{address} does not answer within {TIMEOUT:g} s: a firewall drops the packets, or the machine is gone"
        return reason, f"open TCP port {port} of that machine for this network: `curl -v {url}` here then has an answer"
    if problem == "HTTP 401":
        reason = f"{address} answers 401: the token in Ray's store is not that of the Collector"
        return (
            reason,
            "start `verl-otel stack --cluster` again: it publishes its token; another program may listen there",
        )
    if isinstance(problem, str) and problem.startswith("TLS: "):
        reason = f"{address} is not trusted: {problem.removeprefix('TLS: ')}"
        return reason, (
            "start `verl-otel stack --cluster` with a --tls-cert that is valid for that address, and the --tls-ca that has signed it; "
            f"`openssl s_client -connect {address}` shows the certificate"
        )
    if problem in _UNREACHABLE:
        return (
            f"{address}: there is no route to it",
            "use an address in a network that both machines are part of (`ip address`)",
        )
    text = problem if isinstance(problem, str) else errno.errorcode.get(problem, str(problem))
    return f"{address}: {text}", f"run `curl -v {url}` here"


def find_proxy(url: str, environ: Mapping[str, str]) -> str:
    """Return the variable that would send requests for a URL to a proxy; empty if none does. OTLP over HTTP heeds them.

    Example:
        find_proxy("http://10.0.0.1:4318", {"HTTP_PROXY": "http://proxy:3128"}) == "HTTP_PROXY"
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    exempt = [word.strip() for word in (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")]
    if any(word == "*" or (word and (host == word or host.endswith(f".{word.lstrip('.')}"))) for word in exempt):
        return ""
    if any(_is_in_network(host, word) for word in exempt):
        return ""
    names = (f"{parts.scheme}_proxy", f"{parts.scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    return next((name for name in names if environ.get(name)), "")


def _is_in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
