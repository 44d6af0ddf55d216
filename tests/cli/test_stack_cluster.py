# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel stack --cluster`` without Ray's programs: what is bound, what trainings read, and what a restart of the cluster changes."""

import contextlib
import socket
import stat
from types import SimpleNamespace

import pytest

from verl_otel.cli import stack, stack_components
from verl_otel.cli.stack import Publication
from verl_otel.cli.stack_components import ClusterPlan, Plan
from verl_otel.errors import VerlOtelError
from verl_otel.integrations.cluster_store import NAMESPACE
from verl_otel.integrations.ray import cluster_endpoint, discovery
from verl_otel.integrations.ray.cluster_endpoint import ClusterEndpoint

OURS = ClusterEndpoint("http://127.0.0.1:1", "http://127.0.0.1:2", "t0ken-of-the-cluster")


class Head:
    """The store of a head, as Ray's client shows it."""

    def __init__(self):
        self.values = {}
        self.away = False

    @contextlib.contextmanager
    def open(self, address):
        if self.away:
            raise discovery.ClusterError(f"no Ray cluster at {address}: Connection refused")
        yield self

    def internal_kv_get(self, key, namespace, timeout):
        return self.values.get((namespace, key))

    def internal_kv_put(self, key, value, overwrite, namespace, timeout):
        self.values[namespace, key] = value

    def internal_kv_del(self, key, by_prefix, namespace, timeout):
        del self.values[namespace, key]

    @property
    def endpoint(self):
        """What trainings find."""
        value = self.values.get((NAMESPACE, cluster_endpoint.KEY))
        return cluster_endpoint.decode(value) if value else None


@pytest.fixture
def head(monkeypatch):
    made = Head()
    monkeypatch.setattr(discovery, "find_cluster", lambda address: address or "10.0.0.1:6379")
    monkeypatch.setattr(discovery, "open_store", made.open)
    return made


@pytest.fixture
def publish(head):
    """Publish an endpoint; it is withdrawn after the test."""
    made = []

    def start(endpoint=OURS):
        made.append(Publication(None, endpoint))
        made[-1].start()
        return made[-1]

    yield start
    head.away = False
    for each in made:
        each.stop()


@pytest.fixture(autouse=True)
def no_line_printed(monkeypatch):
    """Lines that are printed once in a process are printed in every test."""
    monkeypatch.setattr("verl_otel.cli.discover._printed", set())


def test_without_ray_it_names_what_works(call, tmp_path, monkeypatch):
    """No cluster: code 2 before anything is made, with the command for one machine and the variables for other nodes."""

    def refuse(address):
        raise discovery.NoClusterError("no running Ray cluster here: say where it is (--address HOST:PORT)")

    monkeypatch.setattr(discovery, "find_cluster", refuse)
    done = call("stack", "--cluster", "--data", tmp_path / "data")
    assert done.code == 2
    for words in ("no running Ray cluster here", "--address HOST:PORT", "`verl-otel stack`", "VERL_OTEL_TOKEN_FILE"):
        assert words in done.err
    assert not (tmp_path / "data").exists()


def test_the_address_is_that_of_the_route_to_the_head():
    """On the head itself it is the head's own address, whatever that is; nothing has to listen there."""
    assert stack.find_own_address("127.0.0.1:6379") == "127.0.0.1"
    assert stack.find_own_address("127.0.0.9:6379") in ("127.0.0.1", "127.0.0.9")
    with pytest.raises(VerlOtelError, match="--host"):
        stack.find_own_address("nowhere.invalid:6379")


@pytest.mark.parametrize("free", [False, True])
def test_only_otlp_leaves_the_loopback(free):
    """The derived address is that of OTLP; Prometheus, Grafana and all others stay where they are. A variable with a host wins."""
    found = stack_components.choose_addresses({}, free=free, outside="127.0.0.3")
    outside = {name for name, address in found.items() if address.startswith("127.0.0.3:")}
    assert outside == {"http", "grpc"}
    assert {address.rpartition(":")[0] for name, address in found.items() if name not in outside} == {"127.0.0.1"}
    chosen = stack_components.choose_addresses({"OTELCOL_HTTP": "127.0.0.5:4000"}, outside="fd00::1")
    assert (chosen["http"], chosen["grpc"]) == ("127.0.0.5:4000", "[fd00::1]:4317")


def test_every_address_is_bound_only_by_an_option(head):
    """With ``--host 0.0.0.0`` trainings read the address of the route, which they can reach."""
    words = {"cluster": True, "address": "127.0.0.1:6379", "tls_cert": None, "tls_key": None, "tls_ca": None}
    assert stack.prepare_cluster(SimpleNamespace(**words, host=None)).host == "127.0.0.1"
    service = stack.prepare_cluster(SimpleNamespace(**words, host="0.0.0.0"))
    assert service.host == "0.0.0.0"
    assert service._advertise("0.0.0.0") == "127.0.0.1"
    assert "--host" in service.describe()["bound"]


def test_a_token_is_made_once_and_is_private(tmp_path):
    """A stack that starts again has the token that running trainings use; one that others can read is refused."""
    path = stack.make_token(tmp_path)
    token = path.read_text()
    assert cluster_endpoint.decode(OURS._replace(token=token).encode())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stack.make_token(tmp_path).read_text() == token
    path.chmod(0o644)
    with pytest.raises(VerlOtelError, match="other users can read"):
        stack.make_token(tmp_path)


def test_the_programs_are_configured_for_the_cluster(tmp_path):
    """The Collector asks for the token, by TLS if there is a certificate; Prometheus asks for the engines, can be reloaded, and keeps exemplars."""
    certificates = {"certificate": tmp_path / "c.pem", "key": tmp_path / "c.key"}
    for more in ({}, certificates):
        plan = Plan(
            stack_components.choose_addresses({}),
            tmp_path,
            tmp_path,
            tempo=False,
            cluster=ClusterPlan(tmp_path / "token", **more),
        )
        collector = stack_components.make_collector(tmp_path / "otelcol", plan)
        files = [word.rpartition("/")[2] for word in collector._command[1:]]
        assert files == ["local.yaml", "traces-to-file.yaml", "token.yaml", *(["tls.yaml"] if more else [])]
        assert collector._environ["OTELCOL_TOKEN_FILE"] == str(tmp_path / "token")
        assert not more or collector._environ["OTELCOL_TLS_KEY"] == str(tmp_path / "c.key")
    prometheus = stack_components.make_prometheus(tmp_path / "prometheus", plan)
    assert "--web.enable-lifecycle" in prometheus._command
    assert "--web.enable-otlp-receiver" in prometheus._command
    (features,) = [word for word in prometheus._command if word.startswith("--enable-feature=")]
    assert "exemplar-storage" in features.partition("=")[2].split(",")
    text = (tmp_path / "prometheus.yml").read_text()
    assert 'http_sd_configs: [{url: "http://127.0.0.1:9465/"' in text
    assert "targets/*.json" not in text


def test_the_endpoint_is_published_and_withdrawn(head, publish):
    """Trainings find it while the stack runs, and none that starts afterwards."""
    made = publish()
    assert head.endpoint == OURS
    made.stop()
    assert head.endpoint is None


def test_a_restarted_cluster_gets_it_again(head, publish, monkeypatch, wait_for, capsys):
    """An empty store, and a head that was away meanwhile: the endpoint is written again, and each is printed once."""
    monkeypatch.setattr(stack, "PUBLISH_SECONDS", 0.02)
    publish()
    head.away = True
    head.values.clear()
    printed = []

    def has_printed(words):
        printed.append(capsys.readouterr().err)
        return words in "".join(printed)

    wait_for(lambda: has_printed("Connection refused; trying again"))
    head.away = False
    wait_for(lambda: head.endpoint == OURS)
    wait_for(lambda: has_printed("the cluster has restarted"))
    assert "".join(printed).count("trying again") == 1


def test_a_second_stack_is_refused_while_the_first_one_answers(head, publish):
    """Trainings can send to one place: the second stack names the address of the first one; it replaces one that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as first:
        url = f"http://127.0.0.1:{first.getsockname()[1]}"
        publish(OURS._replace(http=url))
        with pytest.raises(VerlOtelError, match=url):
            Publication(None, OURS).start()
        assert head.endpoint.http == url
    publish()
    assert head.endpoint == OURS


def test_the_entry_of_another_stack_stays(head, publish):
    """A stack that was replaced does not take away the endpoint of its successor."""
    made = publish()
    other = OURS._replace(token="t0ken-of-the-other")
    head.internal_kv_put(cluster_endpoint.KEY, other.encode(), True, NAMESPACE, 1)
    made.refresh()
    made.stop()
    assert head.endpoint == other
