# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The real programs, tiers, certificates and senders for the tests of the pipeline."""

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]

from tests.builders.programs import need_programs
from tests.collector.proxy import Proxy
from tests.collector.steady import Training
from tests.collector.tiers import Prometheus, Tier, read_spans, variables_of
from tests.collector.trajectories import group


def pytest_collection_modifyitems(items):
    """Mark everything here: it needs programs that `make collector` builds."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.collector)


@pytest.fixture(scope="session")
def programs():
    """The real otelcol-verl, prometheus and promtool; skipped where they are not built."""
    folder = need_programs("otelcol", "prometheus")
    return SimpleNamespace(
        otelcol=folder / "otelcol-verl", prometheus=folder / "prometheus", promtool=folder / "promtool"
    )


@pytest.fixture
def start_tier(programs, tmp_path):
    """Start a Collector: ``start_tier(name, files, **variables)``. It is ended with the test. ``run=False``: only make it."""
    made = []

    def start(name, files, *, run=True, **variables):
        made.append(Tier(programs.otelcol, tmp_path, name, files, **variables))
        return made[-1].start() if run else made[-1]

    yield start
    for tier in made:
        tier.kill()


@pytest.fixture
def start_prometheus(programs, tmp_path):
    """Start a Prometheus: ``start_prometheus(name, tier=, targets=)``. It is ended with the test."""
    made = []

    def start(name="prometheus", **keywords):
        made.append(Prometheus(programs.prometheus, tmp_path, name, **keywords))
        return made[-1].start()

    yield start
    for each in made:
        each.kill()


@pytest.fixture(scope="session")
def credentials(tmp_path_factory):
    """Return a function that makes a folder with ca.pem, agent and gateway certificates with their keys, and a token."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the test's certificates, is not installed")
    numbers = itertools.count()

    def call(folder, words, *more):
        subprocess.run([openssl, *words.split(), *more], cwd=folder, check=True, capture_output=True)

    def make(days=2, *, names=("agent", "gateway"), folder=None):
        """``days`` below 0: the certificates have expired. ``folder``: renew the certificates in it, by the same authority."""
        key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        if folder is None:
            folder = tmp_path_factory.mktemp(f"credentials{next(numbers)}")
            call(folder, f"req -x509 {key} -days 30 -subj /CN=authority -keyout ca.key -out ca.pem")
            (folder / "token").write_text(f"secret-{os.urandom(8).hex()}")
        (folder / "usage").write_text(
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        for name in names:
            call(folder, f"req {key} -subj /CN={name} -keyout {name}.key.new -out {name}.csr")
            signed = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile usage -days {days}"
            call(folder, f"{signed} -out {name}.pem.new")
            for suffix in ("key", "pem"):
                (folder / f"{name}.{suffix}.new").replace(folder / f"{name}.{suffix}")
        return folder

    return make


@pytest.fixture
def start_pipeline(start_tier, credentials):
    """Start a gateway and an agent that sends to it, with mTLS and a token; returns both.

    ``agent``: variables of the agent; ``below``: its overlays; ``folder``: credentials; ``between``: from the gateway's name to
    the one that the agent dials.
    """

    def start(*overlays, agent=None, below=(), folder=None, between=str, **gateway):
        folder = folder or credentials()
        above = start_tier("gateway", ["gateway.yaml", *overlays], **variables_of(folder, "gateway"), **gateway)
        name = between(above.grpc_name)
        variables = {
            "OTELCOL_GATEWAYS": f"[{name}]",
            "OTELCOL_METRICS_GATEWAY": name,
            **variables_of(folder, "agent"),
            **(agent or {}),
        }
        below = start_tier("agent", ["agent.yaml", *below], **variables)
        return SimpleNamespace(agent=below, gateway=above, credentials=folder)

    return start


@pytest.fixture
def start_watched(start_pipeline, start_prometheus, hasty):
    """Start a gateway, an agent and a Prometheus, which scrapes (``scrape``) or is pushed to (``push``); returns the three."""

    def start(path, *overlays, **keywords):
        if path == "scrape":
            tiers = start_pipeline(*overlays, **keywords)
            tiers.prometheus = start_prometheus("scraper", tier=tiers.gateway)
            return tiers
        prometheus = start_prometheus("pushed_to")
        pushing = ("metrics-by-otlp.yaml", hasty.push)
        tiers = start_pipeline(*overlays, *pushing, **keywords, OTELCOL_PROMETHEUS_OTLP=prometheus.otlp_url)
        tiers.prometheus = prometheus
        return tiers

    return start


@pytest.fixture
def start_training(tmp_path):
    """Start a training that records all the time: ``start_training(url, kind, pause, name=, **variables)``. It is ended with the test."""
    made = []

    def start(url, *arguments, **keywords):
        made.append(Training(tmp_path, url, *arguments, **keywords))
        return made[-1]

    yield start
    for each in made:
        each.stop()


@pytest.fixture
def start_proxy():
    """Start a proxy before an address; returns it. It is ended with the test."""
    made = []

    def start(target):
        made.append(Proxy(target))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def hasty(tmp_path_factory):
    """Overlays that compress time.

    Retries come after 0.3 s to 1 s and not up to 15 s, certificates are read every second and not every ten, and a connection that is
    silent is given up after 12 s and not 20.
    """
    folder = tmp_path_factory.mktemp("hasty")
    retry, keep = "{initial_interval: 300ms, max_interval: 1s}", "{timeout: 2s}"
    texts = {
        "agent": f"""
exporters:
  loadbalancing/traces: {{retry_on_failure: {retry}, protocol: {{otlp: {{keepalive: {keep}, tls: {{reload_interval: 1s}}}}}}}}
  otlp_grpc/metrics: {{retry_on_failure: {retry}, keepalive: {keep}, tls: {{reload_interval: 1s}}}}
""",
        "gateway": f"""
receivers: {{otlp: {{protocols: {{grpc: {{tls: {{reload_interval: 1s}}}}}}}}}}
exporters:
  otlp_grpc/traces: {{retry_on_failure: {retry}}}
""",
        "push": f"""
exporters:
  otlp_http/prometheus: {{retry_on_failure: {retry}}}
""",
    }
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return SimpleNamespace(**{name: folder / f"{name}.yaml" for name in texts})


@pytest.fixture
def run_sender(clean_python, tmp_path):
    """Run one of the senders of this folder with the real SDK, to its end; returns the folder of its files, and what it printed."""

    def run(program, url, *arguments, run_id="r", seconds=300, **variables):
        done = clean_python(
            "-m",
            f"tests.collector.{program}",
            *arguments,
            cwd=TOP,
            seconds=seconds,
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            VERL_OTEL_RUN_DIR=str(tmp_path / "runs"),
            VERL_OTEL_RUN_ID=run_id,
            VERL_OTEL_EXPORTERS="otlp,file",
            VERL_OTEL_TRAJECTORIES_PER_STEP="0",
            **variables,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]
        return SimpleNamespace(folder=tmp_path / "runs" / run_id, printed=lines)

    return run


@pytest.fixture
def run_trajectories(run_sender):
    """Run the trajectories against a URL; returns the trace ids of each kind, and every span that was recorded, by its trace."""

    def run(url, count, slow_seconds):
        sent = run_sender(
            "send_trajectories", url, count, slow_seconds, VERL_OTEL_STALLS="0"
        )  # no spans of blocked loops
        recorded = group(read_spans(sorted(sent.folder.glob("traces-*.jsonl"))))
        return sent.printed[-1], recorded

    return run
