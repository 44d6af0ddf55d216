# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is put into the job's own ``ray.init``: a hook and the settings, around what the user has set; Ray is made up here."""

import json
import pickle
import sys
import types

import pytest

from verl_otel.integrations.ray import start


@pytest.fixture
def ray(monkeypatch):
    """A module that remembers how it was initialised."""
    made = types.ModuleType("ray")
    made.calls = []
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
        worker=types.SimpleNamespace(WORKER_MODE=1, global_worker=types.SimpleNamespace(mode=0))
    )
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.delenv(start.JOB_CONFIG, raising=False)
    monkeypatch.delenv(start.HOOK_VARIABLE, raising=False)
    start.patch_init(made)
    return made


def sent(ray):
    """The runtime environment of the only call."""
    ((_, kwargs),) = ray.calls
    return kwargs["runtime_env"]


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


def test_secrets_are_not_forwarded(ray, monkeypatch):
    """Headers, which hold tokens, never stand in a runtime environment that Ray's dashboard shows."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=s3cret")
    ray.init()
    assert "s3cret" not in str(sent(ray))


def test_the_users_hook_runs_first(ray):
    """A setup hook of the user, as function or by its name, runs before ours."""
    order = []
    ray.init(runtime_env={start.HOOK: lambda: order.append("his")})
    sent(ray)[start.HOOK]()
    assert order == ["his"]
    start.make_setup_hook("gc.collect")()
    with pytest.raises(ModuleNotFoundError):
        start.make_setup_hook("no_such_module.function")()


def test_what_the_job_has_set_is_left_out(ray, monkeypatch):
    """Keys that ``ray job submit`` has set are not set again, which Ray would refuse."""
    monkeypatch.setenv("VERL_OTEL_ENABLED", "1")
    job = {"runtime_env": {start.HOOK: "mine.hook", "env_vars": {"VERL_OTEL_ENABLED": "1"}}}
    monkeypatch.setenv(start.JOB_CONFIG, json.dumps(job))
    ray.init()
    assert start.HOOK not in sent(ray)
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


def test_a_ray_without_its_private_names_can_be_shut_down(ray, monkeypatch, swallow):
    """A later Ray, whose inside has other names, is shut down all the same."""
    monkeypatch.setattr(start.session, "current", lambda: types.SimpleNamespace(config=None))
    del ray._private
    ray.shutdown()
    assert ray.calls == ["shutdown"]


def test_the_hook_runs_where_we_are_not_installed(clean_python, tmp_path):
    """Pickled by value the hook runs in a process without verl-otel, says one line there and raises nothing."""
    cloudpickle = pytest.importorskip("cloudpickle")
    (tmp_path / "hook").write_bytes(cloudpickle.dumps(start.make_setup_hook(None)))
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
