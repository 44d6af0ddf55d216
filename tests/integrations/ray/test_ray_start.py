# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is put into the job's own ``ray.init``: a hook and the settings, around what the user has set; Ray is made up here."""

import contextlib
import json
import pickle
import sys
import types

import pytest

from verl_otel._internal import error_boundary
from verl_otel.integrations.ray import init_hook


@pytest.fixture
def ray(monkeypatch):
    """A module that remembers how it was initialised."""
    monkeypatch.delenv(error_boundary.RAISE_INTERNAL_ERRORS, raising=False)  # it would be forwarded
    made = types.ModuleType("ray")
    made.calls, made.published = [], []
    made.refuse = None

    def init(*args, **kwargs):
        made.calls.append((args, kwargs))
        if made.refuse is not None and "runtime_env" in kwargs:
            raise made.refuse
        return "context"

    made.init = init
    made.shutdown = lambda *_: made.calls.append("shutdown")
    made.is_initialized = lambda: True
    made._private = types.SimpleNamespace(
        worker=types.SimpleNamespace(WORKER_MODE=1, global_worker=types.SimpleNamespace(mode=0)),
        state=types.SimpleNamespace(actors=dict),
    )
    made.get_runtime_context = lambda: types.SimpleNamespace(get_job_id=lambda: "01000000")
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.delenv(init_hook.JOB_CONFIG, raising=False)
    monkeypatch.delenv(init_hook.HOOK_VARIABLE, raising=False)
    monkeypatch.setattr(init_hook.cluster, "publish", made.published.append)
    monkeypatch.setattr(init_hook.cluster, "REGISTRY", init_hook.cluster.TargetRegistry())
    init_hook.patch_init(made)
    return made


def sent(ray, number=0):
    """The runtime environment of a call, of the first one."""
    return ray.calls[number][1]["runtime_env"]


def test_the_users_arguments_stay(ray, monkeypatch):
    """Address, options and runtime_env of the user are all there; settings are added, his own values win."""
    monkeypatch.setenv("VERL_OTEL_ENABLED", "1")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    mine = {"env_vars": {"A": "b", "OTEL_SERVICE_NAME": "his"}, "working_dir": "/x"}
    assert ray.init("auto", runtime_env=mine, num_cpus=2) == "context"
    ((args, kwargs),) = ray.calls
    assert (args, kwargs["num_cpus"], sent(ray)["working_dir"]) == (("auto",), 2, "/x")
    assert sent(ray)["env_vars"] == {"VERL_OTEL_ENABLED": "1", "A": "b", "OTEL_SERVICE_NAME": "his"}
    assert mine == {"env_vars": {"A": "b", "OTEL_SERVICE_NAME": "his"}, "working_dir": "/x"}


def test_the_exit_waits_once_however_often_ray_is_initialised(ray, monkeypatch):
    """As by libraries with ``ray.init(ignore_reinit_error=True)``."""
    waiting = []
    fake = types.SimpleNamespace(
        register=waiting.append, unregister=lambda handler: waiting.remove(handler) if handler in waiting else None
    )
    monkeypatch.setattr(init_hook, "atexit", fake)
    for _ in range(3):
        ray.init(ignore_reinit_error=True)
    assert len(waiting) == 1
    ray.shutdown()
    assert waiting == []


def test_the_environment_of_a_job_config_stays(ray):
    """Ray replaces it as a whole by a ``runtime_env``, which therefore contains it."""
    config = types.SimpleNamespace(runtime_env={"env_vars": {"A": "b"}, "pip": ["x"]})
    ray.init(job_config=config)
    assert (sent(ray)["pip"], sent(ray)["env_vars"]["A"]) == (["x"], "b")
    assert config.runtime_env == {"env_vars": {"A": "b"}, "pip": ["x"]}


@pytest.mark.parametrize("how", ["argument", "keyword", "variable"])
def test_ray_client_gets_no_function(ray, monkeypatch, how):
    """It pickles the arguments with `pickle`, which cannot pickle the hook; the settings are sent."""
    monkeypatch.setenv("VERL_OTEL_ENABLED", "1")
    address = "ray://head:10001"
    if how == "variable":
        monkeypatch.setenv("RAY_ADDRESS", address)
    ray.init(*[address] * (how == "argument"), **{"address": address} if how == "keyword" else {})
    assert init_hook.HOOK not in sent(ray)
    assert sent(ray)["env_vars"]["VERL_OTEL_ENABLED"] == "1"
    pickle.dumps(sent(ray))


SECRETS = {
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s3cret",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=s3cret",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:s3cret@gateway:4318",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://s3cret@gateway:4318/v1/metrics",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://gateway/v1/traces?api-key=s3cret",
    "OTEL_EXPORTER_JAEGER_PASSWORD": "s3cret",
    "OTEL_VENDOR_API_KEY": "s3cret",
    "OTEL_VENDOR_ACCESS_TOKEN": "s3cret",
    "OTEL_RESOURCE_ATTRIBUTES": "db=postgres://user:s3cret@db/x",
    "OTEL_VENDOR_AUTH": "Bearer s3cret",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "user:s3cret@gateway:4317",
}
SETTINGS = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "https://gateway:4318/base",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://[fd00::1]:4318/v1/traces",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "gateway:4317",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/etc/tls/client.key",
    "OTEL_RESOURCE_ATTRIBUTES": "at=12:30,team=a,owner=someone@example.com,end=13:00",
    "OTEL_SERVICE_NAME": "verl",
    "VERL_OTEL_TOKEN_FILE": "/etc/otlp/token",
    "VERL_OTEL_RUN_DIR": "/runs",
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_not_forwarded(ray, monkeypatch, caplog, name):
    """What holds a secret never stands in a runtime environment, which Ray's dashboard shows; one line names it and what to do."""
    monkeypatch.setenv(name, SECRETS[name])
    for _ in range(2):
        ray.init()
    assert "s3cret" not in str(ray.calls) + str(ray.published)
    assert name not in sent(ray, -1)["env_vars"]
    (line,) = [each.getMessage() for each in caplog.records]
    assert name in line
    assert "VERL_OTEL_TOKEN_FILE" in line
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("given", "forwarded"),
    [
        (
            "team=a,k8s.pod.name=head-0, host.name=head,k8s.namespace.name=ml,container.id=1",
            "team=a,k8s.namespace.name=ml",
        ),
        ("service.instance.id=ml.head-0.ray,k8s.node.name=n1,process.pid=7", None),
    ],
)
def test_what_names_the_drivers_node_is_not_forwarded(ray, monkeypatch, given, forwarded):
    """A worker on another node is in another pod: resource attributes of the driver's node and pod are not its own."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", given)
    ray.init()
    assert sent(ray).get("env_vars", {}).get("OTEL_RESOURCE_ATTRIBUTES") == forwarded


def test_settings_and_paths_are_forwarded(ray, monkeypatch, caplog):
    """Endpoints without a password, paths of secrets and all other settings are forwarded as they are."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    ray.init()
    assert sent(ray)["env_vars"] == SETTINGS
    assert not caplog.records


def test_a_cluster_that_this_process_started_inherits_its_secrets(ray, monkeypatch, caplog):
    """Workers of such a cluster inherit the environment: nothing is logged, and nothing is forwarded either."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret")
    ray._private.worker._global_node = types.SimpleNamespace(is_head=lambda: True)
    ray.init()
    assert "s3cret" not in str(sent(ray))
    assert not caplog.records


@pytest.mark.full
def test_the_users_hook_runs_first(ray):
    """A setup hook of the user, as function or by its name, runs before ours."""
    order = []
    ray.init(runtime_env={init_hook.HOOK: lambda: order.append("his")})
    sent(ray)[init_hook.HOOK]()
    assert order == ["his"]
    init_hook.make_setup_hook("gc.collect")()
    with pytest.raises(ModuleNotFoundError):
        init_hook.make_setup_hook("no_such_module.function")()


def test_what_the_job_has_set_is_left_out(ray, monkeypatch):
    """Keys that ``ray job submit`` has set are not set again, which Ray would refuse."""
    monkeypatch.setenv("VERL_OTEL_ENABLED", "1")
    job = {"runtime_env": {init_hook.HOOK: "mine.hook", "env_vars": {"VERL_OTEL_ENABLED": "1"}}}
    monkeypatch.setenv(init_hook.JOB_CONFIG, json.dumps(job))
    ray.init()
    assert init_hook.HOOK not in sent(ray)
    assert "VERL_OTEL_ENABLED" not in sent(ray)["env_vars"]


def test_a_refused_environment_is_left_away(ray, monkeypatch, caplog):
    """When Ray refuses what we added, it is asked again as the user did, with one line in the log."""
    ray.refuse = ValueError("Failed to merge the Job's runtime env")
    assert ray.init(num_cpus=1) == "context"
    assert [kwargs.keys() for _, kwargs in ray.calls] == [{"num_cpus", "runtime_env"}, {"num_cpus"}]
    assert len([record for record in caplog.records if "refused our runtime_env" in record.getMessage()]) == 1


def test_other_errors_of_ray_pass(ray):
    """An error of Ray that has nothing to do with us arrives unchanged, after one attempt."""
    ray.refuse = RuntimeError("no cluster")
    with pytest.raises(RuntimeError, match="no cluster"):
        ray.init()
    assert len(ray.calls) == 1


def test_shutdown_is_still_shutdown(ray):
    """``ray.shutdown`` works without a session and can be called twice."""
    ray.shutdown()
    ray.shutdown()
    assert ray.calls == ["shutdown"] * 2


@pytest.mark.parametrize("way", ["shutdown", "disconnect"])
def test_shutdown_ends_the_workers_and_not_the_run(ray, monkeypatch, way):
    """The driver may go on without Ray, or with another cluster; the end of the run is that of its exit."""
    calls = ray.calls

    class Driver:
        last_drain_seconds = 0.0

        @property
        def run(self):
            return self

        def take_last_trajectories(self):
            calls.append("last trajectories")

        @contextlib.contextmanager
        def end_of_workers(self):
            calls.append("workers end")
            yield
            calls.append("run goes on")

        def end(self):
            calls.append("run ends")

    monkeypatch.setattr(init_hook, "current_session", Driver)
    monkeypatch.setattr(init_hook.cluster, "remove", lambda: None)
    client = types.ModuleType("ray.util.client_connect")  # ``with ray.init("ray://...")`` calls no ``ray.shutdown``
    client.disconnect = lambda: calls.append("disconnect")
    init_hook.END_CLIENT.install(client)
    {"shutdown": ray.shutdown, "disconnect": client.disconnect}[way]()
    assert calls == ["last trajectories", "workers end", way, "run goes on"]


def test_a_ray_without_its_private_names_can_be_shut_down(ray, monkeypatch, swallow):
    """A later Ray, whose inside has other names, is shut down all the same."""
    monkeypatch.setattr(init_hook, "current_session", lambda: types.SimpleNamespace(config=None))
    del ray._private
    ray.shutdown()
    assert ray.calls == ["shutdown"]


@pytest.mark.full
def test_the_hook_runs_where_we_are_not_installed(clean_python, tmp_path):
    """Pickled by value the hook runs in a process without verl-otel, says one line there and raises nothing."""
    cloudpickle = pytest.importorskip("cloudpickle")
    (tmp_path / "hook").write_bytes(cloudpickle.dumps(init_hook.make_setup_hook(None)))
    code = """
import importlib.abc, pickle, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "verl_otel":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
hook = pickle.load(open("hook", "rb"))
hook()
hook()
"""
    done = clean_python("-c", code, cwd=tmp_path, TMPDIR=str(tmp_path), VERL_OTEL_RUN_ID="r1")
    (line,) = done.stderr.splitlines()
    assert line.startswith("verl-otel is not on this node: its processes will be missing")
    assert pickle.loads((tmp_path / "hook").read_bytes())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("verl_otel.plugin", None),
        ("verl_otel.plugin,mine", "mine"),
        ("mine,verl_otel_extra", "mine,verl_otel_extra"),
    ],
)
def test_our_module_is_not_forwarded(ray, monkeypatch, value, expected):
    """Where the hook loads us, verl on a node that lacks us is not asked to import us, which would end each worker there."""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", value)
    ray.init()
    assert sent(ray)["env_vars"].get("VERL_USE_EXTERNAL_MODULES") == expected


def test_our_module_is_forwarded_where_no_hook_can_be(ray, monkeypatch):
    """A job that has a hook of its own leaves verl's variable as the only way to load us."""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "verl_otel.plugin,mine")
    monkeypatch.setenv(init_hook.JOB_CONFIG, json.dumps({"runtime_env": {init_hook.HOOK: "mine.hook"}}))
    ray.init()
    assert sent(ray)["env_vars"]["VERL_USE_EXTERNAL_MODULES"] == "verl_otel.plugin,mine"
