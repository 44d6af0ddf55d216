# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel stack --cluster`` on a real Ray of two nodes: a training that is only switched on is complete in Prometheus."""

import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.builders.environments import inherit
from tests.builders.training_logs import find_unexpected
from tests.collector import ray_bed
from tests.collector.nodes import find_hindrance
from tests.collector.tiers import OPENER
from verl_otel.integrations.ray import cluster_endpoint, discovery

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "cluster.md"

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytest.importorskip("verl", reason="verl is not installed in this environment")


@pytest.fixture(scope="module")
def cluster(programs, tmp_path_factory):
    """Two nodes; skipped where there can be none."""
    hindrance = find_hindrance()
    if hindrance:
        pytest.skip(f"no network namespaces here: {hindrance}")
    with ray_bed.start_cluster(tmp_path_factory.mktemp("ray"), dashboard=True) as made:
        yield made


@pytest.fixture(scope="module")
def stack(cluster, tmp_path_factory):
    with ray_bed.start_stack(tmp_path_factory.mktemp("stack"), cluster.address, ray=cluster.head.folder) as running:
        yield running


def post(url, token, opener=OPENER):
    """Return the status of an empty request with a token."""
    headers = {"content-type": "application/x-protobuf", **({"authorization": f"Bearer {token}"} if token else {})}
    try:
        with opener.open(urllib.request.Request(url, b"", headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def read_endpoint(cluster):
    """Return what trainings find in Ray's store."""
    with discovery.open_store(cluster.address) as client:
        value = client.internal_kv_get(cluster_endpoint.KEY, b"verl_otel", timeout=10)
    return cluster_endpoint.decode(value) if value else None


def make_certificates(folder, address):
    """Make the certificates by the lines of the guide; returns the options of the stack."""
    section = GUIDE.read_text("utf-8").partition("### Encrypt OTLP")[2]
    *lines, start = section.partition("```sh\n")[2].partition("```")[0].strip().replace("10.0.0.1", address).split("\n")
    subprocess.run(["sh", "-e", "-c", "\n".join(lines)], cwd=folder, check=True, capture_output=True)
    command, options = start.split(" --cluster ")
    assert command == "verl-otel stack"
    return [folder / word if word.endswith((".pem", ".key")) else word for word in options.split()]


def check_nodes(cluster, folder):
    """Return what ``check --cluster`` finds out about the endpoint, from each node."""
    environ = inherit("OTEL", "VERL_", "PYTEST", "RAY_") | ray_bed.QUIET | {"RAY_ADDRESS": cluster.address}
    command = [ray_bed.BIN / "verl-otel", "check", "--cluster", "--json"]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return [each for each in json.loads(done.stdout)["checks"] if each["subject"] == "OTLP of the cluster"]


def write_endpoint(cluster, endpoint):
    with discovery.open_store(cluster.address) as client:
        client.internal_kv_put(cluster_endpoint.KEY, endpoint.encode(), True, b"verl_otel", timeout=10)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificates, is not installed")
def test_by_tls_trainings_get_the_authority_until_the_stack_ends(cluster, tmp_path):
    """By the lines of the guide, the store has an https address and the certificate of its authority, by which it is trusted; at the end nothing.

    A wrong token and a wrong authority are failures of each node.
    """
    options = make_certificates(tmp_path, cluster.head.address)
    with ray_bed.start_stack(tmp_path, cluster.address, *options) as stack:
        found = read_endpoint(cluster)
        assert found.http == stack.otlp_http
        assert found.http.startswith(f"https://{cluster.head.address}:")
        trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=found.certificate))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusting)
        assert post(f"{found.http}/v1/metrics", found.token, opener) == 200
        assert post(f"{found.http}/v1/metrics", "wrong-token-of-some-length", opener) == 401
        assert [each["state"] for each in check_nodes(cluster, tmp_path)] == ["ok", "ok"]
        other = tmp_path / "other"
        other.mkdir()
        make_certificates(other, cluster.head.address)
        wrong = {
            "answers 401": found._replace(token="wrong-token-of-some-length"),
            "is not trusted": found._replace(certificate=(other / "authority.pem").read_text()),
        }
        for words, endpoint in wrong.items():
            write_endpoint(cluster, endpoint)
            results = check_nodes(cluster, tmp_path)
            assert [(each["state"], words in each["text"]) for each in results] == [("fail", True)] * 2, results
        write_endpoint(cluster, found)
    assert read_endpoint(cluster) is None


def test_a_node_reaches_otlp_with_the_token_and_nothing_else(cluster, stack):
    """From the other node: without the token or with a wrong one OTLP is refused, and Prometheus and the list of targets cannot be reached."""
    token = Path(stack.token_file).read_text()
    for wrong in ("", "wrong-token-of-some-length"):
        assert cluster.node.run(post, f"{stack.otlp_http}/v1/metrics", wrong) == 401
    assert cluster.node.run(post, f"{stack.otlp_http}/v1/metrics", token) == 200
    for url in (stack.prometheus, stack.discovery, stack.collector_metrics):
        inside = url.replace("127.0.0.1", cluster.head.address)
        with pytest.raises(urllib.error.URLError, match="refused"):
            cluster.node.run(post, inside, token)


def test_check_asks_both_nodes_and_the_stack(cluster, stack, tmp_path):
    """``check --cluster --stack``: both nodes have the versions of here, the right time, and reach the endpoint; Prometheus has rules and targets."""
    prometheus = stack.prometheus.removeprefix("http://")
    environ = inherit("OTEL", "VERL_", "PYTEST", "RAY_") | ray_bed.QUIET
    environ |= {"RAY_ADDRESS": cluster.address, "STACK_PROMETHEUS": prometheus, "STACK_GRAFANA": "127.0.0.1:9"}
    command = [ray_bed.BIN / "verl-otel", "check", "--cluster", "--stack", "--json"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)["checks"]
    assert [finding for finding in found if finding["state"] == "fail"] == [], done.stderr
    nodes = [finding for finding in found if finding["subject"].startswith("node ") and finding["state"] == "ok"]
    assert len(nodes) == 2
    assert all("64 CPU, 1 GPU" in finding["text"] for finding in nodes)
    reached = [finding["text"] for finding in found if finding["subject"] == "OTLP of the cluster"]
    assert len(reached) == 2
    assert all(text.endswith(f"reaches {stack.otlp_http}") for text in reached)
    assert {"Prometheus server", "rules", "targets"} <= {each["subject"] for each in found if each["state"] == "ok"}


def count_up(stack):
    """Return how many engines answer Prometheus."""
    return len(ray_bed.query(stack, 'up{verl_role="llm_server"} == 1'))


def test_every_process_of_both_nodes_is_in_prometheus(cluster, stack, tmp_path, wait_for):
    """By ``ray job submit``, with nothing set but the switch: each process, rank and engine is found by PromQL, with the numbers of the bed's own log.

    The tokens that the engines count add up to those of the bed.
    """
    assert stack.otlp_http.startswith(f"http://{cluster.head.address}:")
    with ray_bed.submit_training(tmp_path, cluster, **ray_bed.hold(step=2)) as (training, process):
        wait_for(lambda: count_up(stack) == 2 or process.poll() is not None, 400, 1)
        engines = ray_bed.query(stack, 'up{verl_role="llm_server"} == 1')
        ray_bed.await_tokens(stack, training, process, 2, wait_for)
        ray_bed.release(training)
        assert process.wait(600) == 0, training.log[-4000:]
    assert find_unexpected(training.log) == []
    assert {labels["instance"].rpartition("/")[2] for labels, _ in engines} == {"llm_server-0-cpu", "llm_server-1-cpu"}
    written = ray_bed.read_instances(training)

    def find_processes():
        return {labels["instance"] for labels, _ in ray_bed.query(stack, 'target_info{job="verl"}')}

    wait_for(lambda: find_processes() >= written, 60, 1)
    assert len({labels["host_name"] for labels, _ in ray_bed.query(stack, 'target_info{job="verl"}')}) == 2
    ranks = ray_bed.query(stack, 'target_info{verl_role="actor_rollout_ref"}')
    assert {labels["verl_rank"] for labels, _ in ranks} == {"0", "1"}
    ray_bed.await_totals(stack, training, wait_for)


def test_rays_own_metrics_of_both_nodes_are_in_prometheus(cluster, stack, wait_for):
    """The list of targets that Ray writes on its head is a job of the stack: each node has its CPUs there."""

    def find():
        return {labels["ip"]: value for labels, value in ray_bed.query(stack, 'ray_node_cpu_count{job="ray"}')}

    nodes = {cluster.head.address, cluster.second.address}
    wait_for(lambda: find().keys() == nodes, 60, 1)
    assert min(find().values()) >= 1


def test_a_restarted_head_gets_the_endpoint_again(cluster, stack, wait_for):
    """Head and node are started again, with an empty store: the stack, which was not touched, publishes the same endpoint and token."""
    before = read_endpoint(cluster)
    assert before.token == Path(stack.token_file).read_text()
    cluster.second.stop()
    cluster.head.stop()
    cluster.start_head()
    wait_for(lambda: read_endpoint(cluster) == before, 60, 0.5)
    assert stack.process.poll() is None
