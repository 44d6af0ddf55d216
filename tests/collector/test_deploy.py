# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What goes into Kubernetes: whole after kustomize, accepted by the schemas, without rights that it does not need."""

import json
import re
import shutil
import subprocess

import kubernetes_validate
import pytest

from tests.collector.tiers import COLLECTOR, variables_of

yaml = pytest.importorskip("yaml")

DEPLOY = COLLECTOR / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = ("base", "monitoring", "grafana", "kuberay")
COMPONENTS = ("host-port", "keep-queues", "cert-manager", "tenant")
RESTRICTED = ("base", "cert-manager", "tenant")
"""What fits into a namespace with Pod Security `restricted`; the other components say that they do not."""
VERSIONS = ("1.30", "1.37")


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Return the objects of a folder of kubernetes/, or of the base with a component, as ``kubectl apply -k`` would send them."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which builds what Kubernetes gets, is not installed")
    copy = tmp_path_factory.mktemp("deploy") / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    built = {}

    def call(name):
        if name not in built:
            folder = copy / name
            if name in COMPONENTS:
                folder = copy / f"with-{name}"
                folder.mkdir()
                overlay = {"resources": ["../base"], "components": [f"../components/{name}"], "namespace": "verl-otel"}
                (folder / "kustomization.yaml").write_text(json.dumps(overlay))
            done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            built[name] = [each for each in yaml.safe_load_all(done.stdout) if each]
        return built[name]

    return call


def find(objects, kind, name=None):
    """Return the objects of a kind, or the one of a name."""
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return found if name is None else found[0]


def pods(objects):
    """Return the name and the template of everything that makes pods."""
    return [
        (each["metadata"]["name"], each["spec"]["template"])
        for each in objects
        if each["kind"] in ("DaemonSet", "StatefulSet")
    ]


def squeeze(value):
    """Return a document with one blank for each run of them."""
    return json.loads(re.sub(r"(?:\\n|\s)+", " ", json.dumps(value, sort_keys=True)))


def test_rules_and_boards_are_all_there_and_unchanged(build):
    """Each file of rules is a PrometheusRule with the same groups, each board a ConfigMap with the same JSON."""
    dashboards = COLLECTOR.parent / "dashboards"
    files = {path.name.partition(".")[0].replace("_", "-"): path for path in (dashboards / "rules").glob("*.rules.yml")}
    wanted = {f"verl-{name}": yaml.safe_load(path.read_text("utf-8")) for name, path in files.items()}
    made = [*yaml.safe_load_all((KUBERNETES / "monitoring" / "rules.yaml").read_text("utf-8"))]
    assert {each["metadata"]["name"]: each["spec"] for each in made} == wanted
    sent = {each["metadata"]["name"]: each["spec"] for each in find(build("monitoring"), "PrometheusRule")}
    assert squeeze(sent) == squeeze(wanted), "kustomize breaks lines anew, and changes nothing else"
    boards = find(build("grafana"), "ConfigMap")
    shown = {name: json.loads(text) for each in boards for name, text in each["data"].items()}
    assert shown == {
        f"verl-{path.name}": json.loads(path.read_text("utf-8")) for path in (dashboards / "generated").glob("*.json")
    }
    for each in boards:
        assert each["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert len(json.dumps(each)) < 262144, "kubectl apply writes the whole object into one annotation"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*FOLDERS, *COMPONENTS])
def test_kubernetes_accepts_it(build, name, version):
    """Each object of Kubernetes itself is valid, without a field that the schema does not know."""
    checked = 0
    for each in build(name):
        if "." not in each["apiVersion"].partition("/")[0] or each["apiVersion"].partition("/")[0].endswith(".k8s.io"):
            kubernetes_validate.validate(each, version, strict=True)
            checked += 1
    assert checked or name in ("monitoring", "kuberay")


@pytest.mark.parametrize("name", ["base", *COMPONENTS])
def test_every_reference_leads_somewhere(build, name):
    """ConfigMaps, accounts, ports, volumes, services and files that an object names are there; only Secrets are the user's."""
    objects = build(name)
    maps = {each["metadata"]["name"]: each["data"] for each in find(objects, "ConfigMap")}
    accounts = {each["metadata"]["name"] for each in find(objects, "ServiceAccount")}
    services = {each["metadata"]["name"]: each["spec"] for each in find(objects, "Service")}
    for _, template in pods(objects):
        spec = template["spec"]
        assert spec["serviceAccountName"] in accounts
        container = spec["containers"][0]
        volumes = {each["name"]: each for each in spec["volumes"]} | {"queue": None}
        assert {each["name"] for each in container["volumeMounts"]} == set(volumes)
        files = maps[volumes["files"]["configMap"]["name"]]
        for argument in container["args"]:
            assert argument.removeprefix("--config=/etc/otelcol-files/") in files
        ports = {each["name"] for each in container["ports"]}
        assert {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} <= ports
        (service,) = [
            each for each in services.values() if each["selector"].items() <= template["metadata"]["labels"].items()
        ]
        assert {each["targetPort"] for each in service["ports"]} <= ports
    gateway = find(objects, "StatefulSet")[0]
    assert gateway["spec"]["serviceName"] in services
    variables = {
        each["name"]: each.get("value", "")
        for each in find(objects, "DaemonSet")[0]["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert variables["OTELCOL_METRICS_GATEWAY"].startswith(
        f"{gateway['metadata']['name']}-0.{gateway['spec']['serviceName']}."
    )
    assert variables["OTELCOL_GATEWAY_SERVICE"].partition(".")[0] == gateway["spec"]["serviceName"]


@pytest.mark.parametrize("name", ["base", *COMPONENTS])
def test_a_collector_has_no_right_that_it_does_not_need(build, name):
    """Not root, no capability, no writable file system but its queue, bounded memory; only agents may ask Kubernetes, for one thing."""
    objects = build(name)
    for _, template in pods(objects):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec.get("hostNetwork")
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            limit = re.fullmatch(r"(\d+)(Mi|Gi)", container["resources"]["limits"]["memory"])
            values = {each["name"]: each.get("value", "") for each in container["env"]}
            bytes_of = int(limit[1]) * (1024 if limit[2] == "Gi" else 1)
            assert int(values["GOMEMLIMIT"].removesuffix("MiB")) < int(values["OTELCOL_MEMORY_MIB"]) < bytes_of
            assert all("0.0.0.0" not in value for value in values.values())
    assert find(objects, "ServiceAccount", "otelcol-gateway")["automountServiceAccountToken"] is False
    (role,) = find(objects, "Role")
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    ]
    level = find(objects, "Namespace")[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert level == ("restricted" if name in RESTRICTED else "privileged")


def test_nothing_reaches_the_pods_that_is_not_written(build):
    """One policy closes the namespace; the gateway takes OTLP from agents alone; a host port is on the loopback."""
    policies = {each["metadata"]["name"]: each["spec"] for each in find(build("base"), "NetworkPolicy")}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    senders = [
        rule["from"] for rule in policies["otelcol-gateway"]["ingress"] if {"port": "otlp-grpc"} in rule["ports"]
    ]
    assert senders == [[{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "otelcol-agent"}}}]]
    for name in ("otelcol-agent", "otelcol-gateway"):
        assert all(rule.get("from") for rule in policies[name]["ingress"])
    for name in ("base", *COMPONENTS):
        for _, template in pods(build(name)):
            for port in template["spec"]["containers"][0]["ports"]:
                assert ("hostPort" not in port) or port["hostIP"] == "127.0.0.1"
                assert name == "host-port" or "hostPort" not in port


def test_ray_sends_to_one_name_on_every_node(build):
    """The patch reaches head and workers, with the Service of the agents: a node's own address would be forwarded to other nodes."""
    (cluster,) = find(build("kuberay"), "RayCluster")
    (service,) = [
        each for each in find(build("base"), "Service") if each["spec"].get("internalTrafficPolicy") == "Local"
    ]
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        values = {each["name"]: each["value"] for each in group["template"]["spec"]["containers"][0]["env"]}
        meta = service["metadata"]
        assert values == {
            "VERL_OTEL_ENABLED": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{meta['name']}.{meta['namespace']}.svc:4318",
        }


def test_the_monitors_find_what_is_there(build):
    """Each PodMonitor selects pods of the base, by a port that they have; what was sent keeps its own job and instance."""
    templates = pods(build("base"))
    for monitor in find(build("monitoring"), "PodMonitor"):
        wanted = monitor["spec"]["selector"].get("matchLabels", {}).get("app.kubernetes.io/name")
        names = {wanted} if wanted else set(monitor["spec"]["selector"]["matchExpressions"][0]["values"])
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            for name in names:
                ports = dict(templates)[name]["spec"]["containers"][0]["ports"]
                assert endpoint["port"] in {port["name"] for port in ports}
            assert endpoint.get("honorLabels", False) == (endpoint["port"] == "metrics")


def test_the_agents_configuration_is_valid(programs, credentials, tmp_path):
    """``otelcol-verl validate`` accepts agent.yaml with what Kubernetes adds; it asks where Kubernetes is, and is told."""
    (tmp_path / "kubeconfig").write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c"}}],
                "current-context": "c",
            }
        )
    )
    variables = variables_of(credentials(), "agent") | {
        "KUBECONFIG": tmp_path / "kubeconfig",
        "OTELCOL_STATE_DIR": tmp_path,
    }
    files = [
        f"--config={KUBERNETES / 'base' / 'configuration' / name}" for name in ("agent.yaml", "agent-kubernetes.yaml")
    ]
    done = subprocess.run(
        [programs.otelcol, "validate", *files],
        env={name: str(value) for name, value in variables.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
