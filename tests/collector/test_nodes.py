# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Two runs on two nodes: agents at the same address of a loopback of their own, ranks that restart, a run that is resumed."""

from types import SimpleNamespace

import pytest

from tests.collector.nodes import Node, find_hindrance
from tests.collector.steady import await_equal
from tests.collector.test_restarts import JOIN, add_up, read_values
from tests.collector.tiers import variables_of
from verl_otel.cli.stack import addresses

HOSTS = ("node-a", "node-b")
RUNS = ("north", "south")
USUAL = addresses.choose({})
BY_NAME = "{loadbalancing/traces: {protocol: {otlp: {tls: &tls {server_name_override: localhost}}}}, otlp_grpc/metrics: {tls: *tls}}"
"""The gateway's certificate is for localhost, and agents of other nodes dial its address."""


@pytest.fixture
def nodes():
    """Two nodes; skipped where there can be none."""
    hindrance = find_hindrance()
    if hindrance:
        pytest.skip(f"no network namespaces here: {hindrance}")
    made = []
    try:
        for number, host in enumerate(HOSTS):
            made.append(Node(host, number))
        yield made
    finally:
        for node in made:
            node.close()


@pytest.fixture
def cluster(nodes, start_tier, start_prometheus, credentials, tmp_path, hasty):
    """A gateway and a Prometheus on this machine, and an agent on each node, all of them at the usual ports of their loopback."""
    folder = credentials()
    names = tmp_path / "names.yaml"
    names.write_text(f"exporters: {BY_NAME}\n")
    address = nodes[0].outside
    gateway = start_tier("gateway", ["gateway.yaml", "traces-to-file.yaml", hasty.gateway], run=False)
    dialled = f"{address}:{gateway.port('grpc')}"
    gateway.variables = {**variables_of(folder, "gateway"), "OTELCOL_GRPC": dialled}
    gateway.start()
    variables = {
        "OTELCOL_GATEWAYS": f"[{dialled}]",
        "OTELCOL_METRICS_GATEWAY": dialled,
        "NO_PROXY": "*",
        **variables_of(folder, "agent"),
    }
    agents = []
    for node, host in zip(nodes, HOSTS, strict=True):
        agent = start_tier(f"agent-{host}", ["agent.yaml", hasty.agent, names], run=False, **variables)
        agent.addresses, agent.ready_url = USUAL, f"http://{USUAL['health']}/"
        node.run(agent.start)
        agents.append(agent)
    return SimpleNamespace(nodes=nodes, agents=agents, gateway=gateway, prometheus=start_prometheus(tier=gateway))


def read_totals(prometheus):
    """Return what each process says that it has counted."""
    return {labels["instance"]: value for labels, value in prometheus.query("user_things_total")}


def test_runs_on_two_nodes_with_a_restart_and_a_resume(cluster, start_training, wait_for):
    """Nothing counts twice: each process has one series and one target_info, of its own host, and totals are what the SDKs counted.

    Two runs have rank 0 on one node and rank 1 on the other. A rank of the first run comes back under its name; the whole of the second
    run ends and is resumed.
    """
    prometheus, recorded, last = cluster.prometheus, {}, {}

    def start(run, rank, attempt):
        return cluster.nodes[rank].run(
            start_training,
            f"http://{USUAL['http']}",
            name=f"{run}{rank}-{attempt}",
            VERL_OTEL_RUN_ID=run,
            VERL_OTEL_RUN_ATTEMPT=str(attempt),
            RANK=str(rank),
        )

    def end(trainings):
        for (run, rank), training in trainings.items():
            training.await_units(60)
            instance = f"{run}/trainer-{rank}"
            last[instance] = training.end()["recorded"]
            recorded.setdefault(instance, []).append(last[instance])
        await_equal(lambda: read_totals(prometheus), last)

    first = {(run, rank): start(run, rank, 1) for run in RUNS for rank in range(2)}
    for training in first.values():
        training.await_units(150)
    end(first)
    end({("north", 1): start("north", 1, 1)})
    end({("south", rank): start("south", rank, 2) for rank in range(2)})

    assert [len(counts) for _, counts in sorted(recorded.items())] == [1, 2, 2, 2]
    for instance, counts in recorded.items():
        for name in ("user_things_total", "verl_training_steps_total"):
            (values,) = read_values(prometheus, f'{name}{{instance="{instance}"}}')
            assert add_up(values) == sum(counts), (name, instance)
    for name in ("user_things_total", "verl_training_steps_total", "target_info"):
        counts = prometheus.query(f'count by (job, instance) ({name}{{job="verl"}})')
        found = {labels["instance"]: value for labels, value in counts}
        assert found == dict.fromkeys(recorded, 1), name
    joined = {labels["instance"]: (labels["host_name"], value) for labels, value in prometheus.query(JOIN)}
    assert joined == {name: (HOSTS[int(name[-1])], value) for name, value in last.items()}
    for node, agent in zip(cluster.nodes, cluster.agents, strict=True):
        taken = node.run(agent.own, "otelcol_receiver_accepted_spans")
        assert taken == 2 * sum(sum(counts) for name, counts in recorded.items() if HOSTS[int(name[-1])] in agent.name)
    spans = 2 * sum(map(sum, recorded.values()))
    wait_for(lambda: len(cluster.gateway.spans()) >= spans, 30, 0.3)
    assert len(cluster.gateway.spans()) == spans
