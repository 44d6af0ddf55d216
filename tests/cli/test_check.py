# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel check`` against a good set-up, broken ones, and the world around: what it says, what it advises, its exit code."""

import contextlib
import errno
import importlib.metadata
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from tests.fakes.http_server import HttpServer
from verl_otel import config
from verl_otel.cli.check import check_exporters
from verl_otel.config import EXPORTERS
from verl_otel.integrations import source_inspection

PLUGIN = "[verl.plugins]\nverl_otel = broken_plugin\n"


@pytest.fixture
def check(shell, good_site):
    """Check the stand-in environment, with these variables."""

    def run(*arguments, site=good_site, **variables):
        path = os.pathsep.join(filter(None, [str(site.folder), os.environ.get("PYTHONPATH", "")]))
        return shell("check", *arguments, PYTHONPATH=path, **variables)

    return run


def failed(result):
    """The lines of failures and their advice."""
    lines = result.out.splitlines()
    return [
        (line.removeprefix("FAIL "), lines[number + 1].strip() if lines[number + 1].startswith("       ->") else "")
        for number, line in enumerate(lines)
        if line.startswith("FAIL ")
    ]


def notes(result):
    return [line.removeprefix("note ") for line in result.out.splitlines() if line.startswith("note ")]


@pytest.mark.smoke
def test_a_good_set_up(check, tmp_path):
    """Where everything is as it should be every line is ok and the exit code 0; nothing is left behind."""
    result = check(VERL_OTEL_EXPORTERS="file,prometheus")
    assert result.code == 0, result.out + result.err
    *lines, empty, last, following = result.out.splitlines()
    assert [line[:5] for line in lines if not line.startswith(("note switch", "note runs", "       ->"))] == [
        "ok   "
    ] * 8
    count = sum(not line.startswith(" ") for line in lines)
    but = ", but no training of verl would be recorded from here: VERL_OTEL_ENABLED is not set"
    assert last == f"All {count} checks passed{but}."
    assert following == "Next: VERL_OTEL_ENABLED=1 python -m verl.trainer.main_ppo ..."
    last, following = check(VERL_OTEL_ENABLED="1").out.splitlines()[-2:]
    assert re.fullmatch(r"All \d+ checks passed.", last)
    assert following == "Next: python -m verl.trainer.main_ppo ..."
    assert f"ok   settings: exporters file, prometheus; run folder below {tmp_path / 'runs'}" in lines
    assert "ok   plug-in: found and loaded" in lines
    assert "ok   verl: 0.9.1" in lines
    assert any(line.startswith("ok   hooks: ") and line.endswith("found in verl's source") for line in lines)
    assert (empty, result.err) == ("", "")
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_a_profile_that_cannot_be_used_is_a_failure(check, tmp_path):
    """The file is read: a training would go on with the defaults."""
    path = tmp_path / "own.toml"
    assert failed(check(VERL_OTEL_HEALTH_PROFILE=str(path)))[0][0] == f"profile: {path}: No such file or directory"
    path.write_text("entropy = low\n")
    assert "line 1: 'low' is no number" in failed(check(VERL_OTEL_HEALTH_PROFILE=str(path)))[0][0]
    path.write_text("entropy = 0.1\n")
    assert failed(check(VERL_OTEL_HEALTH_PROFILE=str(path))) == []


@pytest.mark.full
def test_a_guard_is_told_where_it_cannot_stop(check):
    """Only with a guard: the trainer that it cannot stop, a release of verl that was not tried, and what the best checkpoint needs."""
    assert not any(line.startswith("guards") for line in notes(check()))
    result = check(VERL_OTEL_STOP_ON_KL="5", VERL_OTEL_STOP_ON_NAN="1", VERL_OTEL_BEST_CHECKPOINT="min:ppo/kl_div")
    (note,) = (line for line in notes(result) if line.startswith("guards"))
    assert note.startswith("guards: VERL_OTEL_STOP_ON_NAN, VERL_OTEL_STOP_ON_KL: can stop every trainer")
    assert "fully asynchronous" in note
    assert "ok   best checkpoint: min:actor/ppo_kl: of the checkpoints that verl saves" in result.out
    assert result.code == 0


@pytest.mark.full
def test_a_scalar_of_the_best_checkpoint_that_verl_does_not_log_is_not_ok(check):
    result = check(VERL_OTEL_BEST_CHECKPOINT="rollout/reward_maen")
    (note,) = (line for line in notes(result) if line.startswith("best checkpoint"))
    assert "no scalar that verl is known to log; did you mean rollout/reward_mean" in note
    assert "ok   best checkpoint" not in result.out


@pytest.mark.full
def test_the_switch_is_told(check, tmp_path):
    """Whether the switch is on in this shell is said, and what turns it off."""
    assert any(line.startswith("switch: VERL_OTEL_ENABLED is not set here") for line in notes(check()))
    assert "ok   switch: VERL_OTEL_ENABLED is on" in check(VERL_OTEL_ENABLED="1").out
    assert not (tmp_path / "runs").exists()  # it makes no run
    disabled = check(VERL_OTEL_ENABLED="1", OTEL_SDK_DISABLED="true")
    assert "switch: OTEL_SDK_DISABLED=true turns everything off" in notes(disabled)
    assert disabled.code == 0
    assert any("OTEL_CONFIG_FILE" in line for line in notes(check(OTEL_CONFIG_FILE="/etc/otel.yaml")))


@pytest.mark.full
def test_the_newest_run_is_named(check, tmp_path):
    """Without a run it says which programs are recorded; with runs, how many there are and which is the newest."""
    assert f"runs: none in {tmp_path / 'runs'} yet" in notes(check())
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "run.json").write_text("{}")
    assert f"ok   runs: 1 run in {tmp_path / 'runs'}, newest one" in check().out.splitlines()


WRONG = {
    "a setting": (
        {"VERL_OTEL_EXPORTERS": "kafka"},
        "settings: VERL_OTEL_EXPORTERS='kafka': use a comma-separated list of otlp, prometheus",
        "correct it, or `unset VERL_OTEL_EXPORTERS`, which gives it its default; https://github.com/verl-otel/",
    ),
    "a mistyped setting": (
        {"VERL_OTEL_ENABELD": "1"},
        "variable: VERL_OTEL_ENABELD is no setting; did you mean VERL_OTEL_ENABLED?",
        "rename it: `export VERL_OTEL_ENABLED=$VERL_OTEL_ENABELD; unset VERL_OTEL_ENABELD`",
    ),
    "a variable of OpenTelemetry with a prefix": (
        {"VERL_OTEL_METRIC_EXPORT_INTERVAL": "1"},
        "variable: VERL_OTEL_METRIC_EXPORT_INTERVAL is no setting; did you mean OTEL_METRIC_EXPORT_INTERVAL?",
        "rename it: `export OTEL_METRIC_EXPORT_INTERVAL=$VERL_OTEL_METRIC_EXPORT_INTERVAL; unset ",
    ),
    "a token file": (
        {"VERL_OTEL_TOKEN_FILE": "{tmp}/token"},
        "token file: {tmp}/token cannot be read",
        "write the token into it as the training's user, then `chmod 600 {tmp}/token`",
    ),
    "a run folder below a file": (
        {"VERL_OTEL_RUN_DIR": "{tmp}/file/runs"},
        "files: {tmp}/file/runs cannot be written",
        "set VERL_OTEL_RUN_DIR=DIR, a folder of the training's user",
    ),
    "an address of another machine": (
        {"VERL_OTEL_EXPORTERS": "prometheus", "VERL_OTEL_PROMETHEUS_HOST": "192.0.2.1"},
        f"Prometheus: 192.0.2.1:0 cannot be bound: {os.strerror(99)}",
        "VERL_OTEL_PROMETHEUS_HOST",
    ),
    **{
        f"the policy {policy!r}": (
            {"VERL_USE_EXTERNAL_PLUGINS": policy},
            f"plug-in policy: VERL_USE_EXTERNAL_PLUGINS={policy.strip().lower()!r} keeps verl from loading it",
            "`unset VERL_USE_EXTERNAL_PLUGINS`, or add verl_otel to the list",
        )
        for policy in ("none", "other,more", " NONE ")
    },
}
"""Variables, the failure, and what to do; ``{tmp}`` is a folder with an empty ``file``."""


@pytest.mark.full
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_what_to_do(check, tmp_path, case):
    """One failure, whose advice a shell can follow, and exit code 1."""
    variables, line, advice = WRONG[case]
    (tmp_path / "file").write_text("")
    result = check(**{name: value.format(tmp=tmp_path) for name, value in variables.items()})
    ((found, what_to_do),) = failed(result)
    assert result.code == 1
    assert found.startswith(line.format(tmp=tmp_path))
    assert advice.format(tmp=tmp_path) in what_to_do
    assert re.search(r"^1 of \d+ checks failed\.$", result.out, re.MULTILINE)


@pytest.mark.full
def test_what_resembles_something_wrong(check):
    """A policy that names us, and an IPv6 address in brackets, are fine."""
    variables = {"VERL_USE_EXTERNAL_PLUGINS": "other, verl_otel", "VERL_OTEL_PROMETHEUS_HOST": "[::1]"}
    assert check(VERL_OTEL_EXPORTERS="prometheus", **variables).code == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("entry_points", "line", "advice"),
    [
        (
            "",
            "plug-in: no entry point verl_otel in group verl.plugins",
            "run `pip install verl-otel` in the environment",
        ),
        (
            PLUGIN,
            "plug-in: found, but it cannot be loaded: RuntimeError: half installed",
            "--force-reinstall verl-otel",
        ),
    ],
    ids=["none", "broken"],
)
def test_a_plug_in_that_is_not_there_or_broken(check, good_site, entry_points, line, advice):
    """Verl will not load us, which it hides: the advice is to install us."""
    good_site.install("verl-otel", "0.0.1", entry_points=entry_points)
    good_site.write("broken_plugin", "raise RuntimeError('half installed')\n")
    result = check()
    ((found, what_to_do),) = failed(result)
    assert (result.code, found) == (1, line)
    assert advice in what_to_do


@pytest.mark.full
@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("0.6.1", "verl: 0.6.1 is not supported (supported: 0.7 to 0.9)"),
        ("0.10.0", "verl: 0.10.0 is not supported (supported: 0.7 to 0.9)"),
        ("0.8.0", "verl: 0.8.0 has no plug-in entry points"),
    ],
)
def test_another_verl(check, make_site, version, text):
    """A verl that is too old, too new, or older than plug-ins is named with what to do."""
    result = check(site=make_site(verl=version))
    assert result.code == 1
    ((line, advice),) = failed(result)
    assert line == text
    assert advice.startswith(
        "-> set VERL_USE_EXTERNAL_MODULES" if version == "0.8.0" else "-> `pip install 'verl==0.9.*'`"
    )


@pytest.mark.full
def test_a_verl_without_plug_ins_that_loads_us(check, make_site):
    """A verl before 0.9 is fine with VERL_USE_EXTERNAL_MODULES."""
    result = check(site=make_site(verl="0.8.0"), VERL_USE_EXTERNAL_MODULES="mine,verl_otel.plugin")
    assert result.code == 0, result.out
    assert "ok   verl: 0.8.0, which loads verl-otel by VERL_USE_EXTERNAL_MODULES" in result.out


@pytest.mark.full
def test_a_hook_that_is_gone(check, good_site):
    """A function that verl no longer has is named with what is lost; the rest is recorded, so the code is 0."""
    good_site.lose("verl.utils.tracking", "Tracking.log")
    result = check()
    assert result.code == 0
    assert "hook: verl.utils.tracking has no Tracking.log; without it: no training scalars" in notes(result)
    (hooks,) = (line for line in notes(result) if line.startswith("hooks: "))
    found, _, known, *_ = hooks.removeprefix("hooks: ").split()
    assert int(found) == int(known) - 1


@pytest.mark.full
def test_a_package_that_is_not_installed_is_only_named(check, good_site):
    """uni-agent is a package of its own, which few trainings use: its hooks have no line each, and are not counted."""
    shutil.rmtree(good_site.folder / "uni_agent")
    result = check()
    (hooks,) = (line for line in result.out.splitlines() if line.startswith("ok   hooks: "))
    found, _, known, *_ = hooks.removeprefix("ok   hooks: ").split()
    assert found == known
    assert hooks.endswith("; not installed: uni_agent")
    assert not [line for line in notes(result) if line.startswith("hook: ")]


@pytest.mark.parametrize(
    ("call", "words"), [("rename", "replace a file (rename)"), ("utime", "append to a file and set its time")]
)
def test_a_file_system_without_what_a_run_needs(tmp_path, monkeypatch, call, words):
    """A mount of an object store can be written, but neither renames nor sets times: check tries what a run does, and leaves nothing behind."""

    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    settings = config.load_config({"VERL_OTEL_RUN_DIR": str(tmp_path / "runs")})
    assert [finding.state for finding in check_exporters(settings)] == ["ok"]
    monkeypatch.setattr(os, "replace" if call == "rename" else call, refuse)
    monkeypatch.setattr(Path, "replace", refuse if call == "rename" else Path.replace)
    (finding,) = check_exporters(settings)
    assert finding.state == "fail"
    assert words in finding.text
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_fixed_port(check):
    """A port for /metrics that is in use, or free for one process only, is noted with what the processes of a run do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = check(VERL_OTEL_EXPORTERS="prometheus", VERL_OTEL_PROMETHEUS_PORT=str(port))
    assert result.code == 0
    assert f"Prometheus: 127.0.0.1:{port} is in use: all processes of a run take free ports" in notes(result)
    again = check(VERL_OTEL_EXPORTERS="prometheus", VERL_OTEL_PROMETHEUS_PORT=str(port))
    assert again.code == 0
    assert f"Prometheus: 127.0.0.1:{port} is free: one process of a run takes it, all others take free ports" in notes(
        again
    )


@pytest.mark.full
def test_no_exporter(check):
    """With no exporter at all the check says that nothing will be written."""
    result = check(VERL_OTEL_EXPORTERS="none")
    assert result.code == 0
    assert "exporters: none: nothing is written or sent" in notes(result)


@pytest.mark.full
def test_variables_of_others(check):
    """One that resembles no setting, or one that is set, is a note; those that the project uses are none."""
    result = check(VERL_OTEL_XYZZY="1", VERL_OTEL_RUN_DIRS="a", VERL_OTEL_BOARDS="b")
    assert result.code == 0
    assert [line for line in notes(result) if line.startswith("variable")] == [
        "variable: VERL_OTEL_RUN_DIRS is no setting and has no effect",
        "variable: VERL_OTEL_XYZZY is no setting and has no effect",
    ]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_exporter_has_a_check(exporter, tmp_path, monkeypatch):
    """Whatever is configured is checked, and nothing raises."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    settings = config.load_config({}, exporters=exporter, run_dir=str(tmp_path))
    assert all(finding.state in ("ok", "note", "fail") for finding in check_exporters(settings))


SET_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
"""


@contextlib.contextmanager
def collector(status):
    """A Collector that gives every request the same answer; yields its address and what it was asked."""
    asked = []

    def answer(call):
        asked.append((call.path, call.headers.get("authorization")))
        return status

    with HttpServer(answer) as server:
        yield server.url, asked


def lines(result, mark):
    return [line[5:] for line in result.out.splitlines() if line.startswith(mark)]


@pytest.mark.full
def test_a_collector_that_answers(check, tmp_path):
    """A Collector that takes every signal is fine, and is shown the token."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with collector(200) as (address, asked):
        result = check(OTEL_EXPORTER_OTLP_ENDPOINT=address, VERL_OTEL_TOKEN_FILE=str(token))
    assert result.code == 0, result.out
    assert f"OTLP traces: {address}/v1/traces takes requests" in lines(result, "ok")
    assert f"OTLP metrics: {address}/v1/metrics takes requests" in lines(result, "ok")
    assert asked == [(f"/v1/{signal}", "Bearer s3cret") for signal in ("traces", "metrics", "logs")]
    assert "s3cret" not in result.out + result.err


@pytest.mark.full
def test_a_collector_that_is_not_there(check):
    """An endpoint without a listener is named, for each signal, with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    result = check(OTEL_EXPORTER_OTLP_ENDPOINT=address)
    assert result.code == 1
    assert lines(result, "FAIL") == [
        f"OTLP traces: cannot reach {address}/v1/traces: ConnectionError",
        f"OTLP metrics: cannot reach {address}/v1/metrics: ConnectionError",
    ]
    assert result.out.count("-> start the Collector (`verl-otel stack`), or set OTEL_EXPORTER_OTLP_ENDPOINT=URL") == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "correct path, token (VERL_OTEL_TOKEN_FILE) and protocol: `env | grep OTLP`"),
        (404, "correct path, token (VERL_OTEL_TOKEN_FILE) and protocol: `env | grep OTLP`"),
        (503, "start the Collector (`verl-otel stack`), or set OTEL_EXPORTER_OTLP_ENDPOINT=URL"),
    ],
)
def test_a_collector_that_refuses(check, status, advice):
    """A Collector that refuses is named with its answer; the advice fits it."""
    with collector(status) as (address, _):
        result = check(OTEL_EXPORTER_OTLP_ENDPOINT=address)
    assert result.code == 1
    assert f"OTLP traces: {address}/v1/traces answers HTTP {status}" in lines(result, "FAIL")
    assert result.out.count(f"-> {advice}") == 2


@pytest.mark.full
def test_a_collector_of_one_signal(check):
    """Signals are checked apart: one endpoint may be fine while the other is not."""
    with collector(200) as (address, _), collector(401) as (other, _):
        result = check(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=address, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=other)
    assert result.code == 1
    assert f"OTLP traces: {address} takes requests" in lines(result, "ok")
    assert lines(result, "FAIL") == [f"OTLP metrics: {other} answers HTTP 401"]


@pytest.mark.full
def test_values_of_opentelemetry_that_are_ignored(check):
    """OpenTelemetry's own variables may be meant for another SDK: a value that is not understood is named, and is no failure by itself."""
    result = check(
        VERL_OTEL_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_PROTOCOL="http/json", OTEL_TRACES_SAMPLER="xray",
    )  # fmt: skip
    assert not any("http/json" in line or "xray" in line for line in lines(result, "FAIL"))
    assert sorted(line for line in lines(result, "note") if line.startswith("settings")) == [
        "settings: OTEL_EXPORTER_OTLP_PROTOCOL='http/json': use one of http/protobuf, grpc; its default is used",
        "settings: OTEL_TRACES_SAMPLER='xray': use always_on, always_off, traceidratio, or one of them after parentbased_; its default is used",
    ]


@pytest.mark.full
def test_grpc_that_is_not_installed(check, good_site):
    """GRPC without its package says what to install."""
    good_site.write("grpc", "raise ImportError('no grpc here')\n")
    result = check(VERL_OTEL_EXPORTERS="otlp", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert result.code == 1
    text = "OTEL_EXPORTER_OTLP_PROTOCOL='grpc' needs: pip install 'verl-otel[grpc]'"
    assert lines(result, "FAIL") == [f"OTLP traces: {text}", f"OTLP metrics: {text}"]


@pytest.mark.full
def test_a_part_that_is_not_installed(check, good_site):
    """A dependency that is missing ends the check of what needs it, with what to do, and no other."""
    good_site.write("requests", "raise ImportError('no requests here')\n")
    result = check(VERL_OTEL_EXPORTERS="otlp,prometheus")
    assert result.code == 1, result.err
    assert lines(result, "FAIL") == ["OTLP: cannot be loaded: no requests here"]
    assert "-> reinstall verl-otel and its dependencies: `pip install --force-reinstall verl-otel`" in result.out
    assert [line for line in lines(result, "ok") if line.startswith("Prometheus: ")]


@pytest.mark.full
def test_half_an_installation(call, runs, monkeypatch):
    """Where our hooks cannot be loaded, which verl hides, the plug-in is a failure and the rest is still looked at."""
    monkeypatch.setitem(sys.modules, "verl_otel.integrations.verl", None)
    result = call("check")
    assert result.code == 1
    assert "plug-in: found, but it cannot be loaded: ModuleNotFoundError: " in result.out
    assert [line for line in lines(result, "ok") if line.startswith("files: ")]


@pytest.mark.full
def test_a_job_with_a_hook_and_variables_of_its_own(check):
    """What ``ray job submit`` has set stays, and the check says what follows from it."""
    job = {"runtime_env": {"worker_process_setup_hook": "mine.setup", "env_vars": {"OTEL_SERVICE_NAME": "x", "A": "b"}}}
    result = check(RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps(job), OTEL_SERVICE_NAME="y")
    assert result.code == 0, result.out
    notes = lines(result, "note")
    assert "Ray setup hook: this job was submitted with a worker_process_setup_hook of its own, which stays" in notes
    assert "Ray environment: this job sets OTEL_SERVICE_NAME itself; its values stay" in notes


@pytest.mark.full
def test_a_job_that_says_nothing_we_know(check):
    """A job configuration that cannot be read is as good as none."""
    result = check(RAY_JOB_CONFIG_JSON_ENV_VAR='{"runtime_env": null}')
    assert result.code == 0, result.err
    assert not [line for line in lines(result, "note") if line.startswith("Ray setup hook")]


@pytest.mark.full
def test_somebody_elses_provider(check, good_site):
    """A tracer provider that is set first, or named in the environment, is reported and stays."""
    text = "OpenTelemetry provider: opentelemetry.sdk.trace.TracerProvider is set first and stays"
    named = check(OTEL_PYTHON_TRACER_PROVIDER="sdk_tracer_provider")
    good_site.write("sitecustomize", SET_PROVIDER)
    for result in (named, check()):
        assert result.code == 0
        assert text in lines(result, "note")


@pytest.mark.full
@pytest.mark.parametrize(
    ("version", "symbol", "text"),
    [
        ("2.41.0", "_get_opentelemetry", "Ray carrier: Ray 2.41.0: works if verl is imported before ray.init"),
        (
            "2.60.0",
            "_is_tracing_enabled",
            "Ray carrier: Ray 2.60.0 has changed: spans of other processes have no parents",
        ),
    ],
)
def test_another_ray(shell, make_site, version, symbol, text):
    """A Ray that lacks what the carrier needs is reported."""
    site = make_site(ray=version).lose("ray.util.tracing.tracing_helper", symbol)
    result = shell("check", PYTHONPATH=str(site.folder))
    assert result.code == 0, result.out
    assert any(line.startswith(text) for line in lines(result, "note"))


@pytest.mark.full
def test_a_ray_that_was_never_tried(shell, make_site):
    """A Ray outside the range that was tried is noted."""
    result = shell("check", PYTHONPATH=str(make_site(ray="3.0.0").folder))
    assert "Ray: 3.0.0 was not tried (tried: 2.41 to 2.60)" in lines(result, "note")


def test_an_environment_without_verl_and_ray(call, runs, monkeypatch):
    """Where neither is installed both are notes: loops of one's own are recorded without them."""

    def find(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", find)
    monkeypatch.setattr(source_inspection, "find_root", lambda _: None)
    result = call("check")
    assert result.code == 0
    assert "verl: not installed in this environment: code of your own is recorded" in lines(result, "note")
    assert "-> if the training uses verl, run this check in its environment" in result.out
    assert "Ray: not installed: processes are traced one by one" in lines(result, "note")
    last, following = result.out.splitlines()[-2:]
    assert last.endswith(": VERL_OTEL_ENABLED is not set; verl is not installed in this environment.")
    assert following == "Next: verl-otel demo"
    assert not runs.exists()


def test_a_cluster_that_cannot_be_asked(call, runs, monkeypatch):
    """--cluster without Ray is a failure with advice."""
    monkeypatch.setitem(sys.modules, "ray", None)
    result = call("check", "--cluster")
    assert result.code == 1
    assert "cluster: Ray is not installed here" in lines(result, "FAIL")


def test_a_disk_that_is_full(call, runs, monkeypatch):
    """Less than one GiB of room is a failure with the room that is left."""
    usage = shutil.disk_usage("/")._replace(free=5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    result = call("check")
    assert result.code == 1
    assert f"files: {runs}: only 5 MiB free" in lines(result, "FAIL")
