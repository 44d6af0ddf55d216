# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Settings: keyword over environment over default, each checked, each wrong value named."""

import dataclasses
import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel import config
from verl_otel.config import SETTINGS, Config, is_service_link
from verl_otel.errors import ConfigError, VerlOtelError

# One setting for each parser. Field: text in the environment, what it means, text of the keyword, what that means
GOOD = {
    "exporters": ("otlp, Prometheus", ("otlp", "prometheus"), "console,none", ("console",)),
    "run_dir": ("/a/b", Path("/a/b"), "/c", Path("/c")),
    "run_id": ("exp-1.a_b:c", "exp-1.a_b:c", "other", "other"),
    "run_attempt": ("3", 3, "4", 4),
    "prometheus_host": ("0.0.0.0", "0.0.0.0", "::1", "::1"),
    "prometheus_advertise": ("[::1]", "::1", "node-7.cluster", "node-7.cluster"),
    "keep_prometheus_yml": ("Keep", "keep", "verl", "verl"),
    "capture_content": ("yes", True, "off", False),
    "drain_interval": ("0.25", 0.25, "2", 2.0),
    "metric_interval": ("2500", 2.5, "1000", 1.0),
    "sampler": ("parentbased_traceidratio", "traceidratio", "always_off", "always_off"),
    "sampler_ratio": ("0.25", 0.25, "0.5", 0.5),
    "token_file": ("/etc/token", Path("/etc/token"), "/etc/other", Path("/etc/other")),
    "semconv_opt_in": ("gen_ai_latest_experimental",) * 2
    + ("http, gen_ai_latest_experimental", "gen_ai_latest_experimental"),
    "files_group": ("ml-team", "ml-team", "4711", "4711"),
    "health_profile": ("Math", "math", "/a/own.toml", "/a/own.toml"),
}
# Field: texts that must be refused, and words of the message that say what is allowed
BAD = {
    "enabled": (["maybe", "2"], ["1 or 0"]),
    "exporters": (["kafka", "file,kafka", ",", " "], ["otlp", "prometheus", "file", "console", "none"]),
    "run_id": (["../x", "a/b", ".hidden", "-x", "a b", "x" * 129, "a\nb"], ["128", "'-'"]),
    "run_attempt": (["0", "-1", "1.5", "x"], ["1", "1000000"]),
    "prometheus_advertise": (["a b", "node:9000", "http://node", "[::1]:80"], ["host", "without a port"]),
    "keep_prometheus_yml": (["never", "1", "0"], ["merge", "keep", "verl"]),
    "drain_interval": (["0", "0.01", "61", "nan", "inf", "x"], ["0.05", "60"]),
    "metric_interval": (["0", "-5", "nan", "10s"], ["1", "3.6e+06"]),
    "sampler": (["sometimes", "parentbased_", "parentbased_parentbased_always_on"], ["always_on", "traceidratio"]),
    "files_group": (["a b", "a:b", "x" * 129], ["group"]),
    "health_profile": (["never-heard-of"], ["default", "math", "path"]),
}
VARIABLES = {setting.field: setting.variable for setting in SETTINGS}


def load(field=None, text=None, **keywords):
    """Load with the switch on, and the sampler that lets its ratio be seen."""
    environ = {"VERL_OTEL_ENABLED": "1"}
    if field == "sampler_ratio" or "sampler_ratio" in keywords:
        environ["OTEL_TRACES_SAMPLER"] = "traceidratio"
    if field is not None:
        environ[VARIABLES[field]] = text
    return config.load_config(environ, **keywords)


def test_the_list_of_settings_and_the_class_agree():
    """Every field of the configuration has one setting with a variable and a text."""
    assert [setting.field for setting in SETTINGS] == [field.name for field in dataclasses.fields(Config)]
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.variable.startswith(("VERL_OTEL_", "OTEL_")) and setting.text for setting in SETTINGS)


def test_defaults():
    """An empty environment gives the defaults of the list, with everything off; the reference page has them."""
    loaded = dataclasses.asdict(config.load_config({}))
    assert loaded["enabled"] is False
    assert loaded == {
        **dataclasses.asdict(config.load_config({}, **{each.field: each.default for each in SETTINGS if each.default})),
        "enabled": False,
    }
    assert (loaded["exporters"], loaded["capture_content"], loaded["prometheus_host"]) == (
        ("file",),
        False,
        "127.0.0.1",
    )


@pytest.mark.parametrize("field", GOOD)
def test_environment_wins_over_default_and_keyword_over_environment(field):
    """A variable replaces the default and a keyword replaces both, for a setting of every kind."""
    text, meaning, keyword, keyword_meaning = GOOD[field]
    assert getattr(load(field, text), field) == meaning
    assert getattr(load(field, text, **{field: keyword}), field) == keyword_meaning
    assert getattr(load(**{field: keyword}), field) == keyword_meaning


@pytest.mark.parametrize(("field", "text"), [(field, text) for field, (texts, _) in BAD.items() for text in texts])
def test_a_wrong_value_is_named_with_what_is_allowed(field, text):
    """A value that cannot be used raises ConfigError with our variable or the keyword, the value and the allowed ones."""
    variable = VARIABLES[field]
    calls = [(field, lambda: load(**{field: text}))]
    if variable.startswith("VERL_OTEL_"):
        calls.append((variable, lambda: load(field, text)))
    for name, call in calls:
        with pytest.raises(ConfigError) as caught:
            call()
        message = str(caught.value)
        assert message.startswith(f"{name}={text!r}: ")
        assert all(word in message.partition(": ")[2] for word in BAD[field][1])


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "parentbased_jaeger_remote"),
        ("OTEL_TRACES_SAMPLER", "xray"),
        ("OTEL_TRACES_SAMPLER_ARG", "endpoint=http://jaeger:14250"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "60s"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "with_sampled_trace"),
    ],
)
def test_a_value_that_only_another_sdk_understands_is_ignored(variable, value, caplog):
    """Variables of OpenTelemetry are set for a whole pod or machine: ours uses its default and says so, once."""
    environ = {"VERL_OTEL_ENABLED": "1"}
    for _ in range(2):
        assert config.load_config({**environ, variable: value}) == config.load_config(environ)
    (line,) = caplog.messages
    assert line.startswith(f"verl-otel: {variable}={value!r}: use ")
    assert [problem.partition("=")[0] for problem in config.list_ignored()] == [variable]


def test_an_unknown_keyword_is_named_with_the_known_ones():
    """A keyword that is no setting raises ConfigError, which is a VerlOtelError and a ValueError."""
    with pytest.raises(ConfigError, match=r"'exporter' is no setting: use .*exporters.*token_file") as caught:
        config.load_config({}, exporter="file")
    assert isinstance(caught.value, VerlOtelError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("keyword", "value", "meaning"),
    [
        ("exporters", ("file", "otlp"), ("file", "otlp")),
        ("exporters", ["file", "file", "none"], ("file",)),
        ("enabled", True, True),
        ("ray_carrier", False, False),
        ("run_dir", Path("/x"), Path("/x")),
        ("drain_interval", 0.5, 0.5),
        ("file_count", 2, 2),
    ],
)
def test_keywords_may_be_objects(keyword, value, meaning):
    """Keywords take lists, booleans, numbers and paths as well as text."""
    assert getattr(config.load_config({}, **{keyword: value}), keyword) == meaning


@pytest.mark.parametrize("keyword", ["token_file", "run_id", "run_dir"])
def test_a_keyword_of_none_is_as_if_it_were_not_given(keyword):
    """None, which is what `os.environ.get` gives for what is not set, leaves the default as it is."""
    assert getattr(config.load_config({}, **{keyword: None}), keyword) == getattr(config.load_config({}), keyword)


@pytest.mark.parametrize(
    ("variables", "on"),
    [
        ({}, False),
        ({"VERL_OTEL_ENABLED": "0"}, False),
        ({"VERL_OTEL_ENABLED": ""}, False),
        ({"VERL_OTEL_ENABLED": "1"}, True),
        ({"VERL_OTEL_ENABLED": " On "}, True),
        ({"VERL_OTEL_ENABLED": "true", "OTEL_SDK_DISABLED": "false"}, True),
        ({"VERL_OTEL_ENABLED": "1", "OTEL_SDK_DISABLED": "true"}, False),
        ({"VERL_OTEL_ENABLED": "1", "OTEL_SDK_DISABLED": " TRUE "}, False),
        ({"VERL_OTEL_ENABLED": "1", "OTEL_SDK_DISABLED": "1"}, True),  # OpenTelemetry knows no other word than "true"
    ],
)
def test_the_switch(monkeypatch, variables, on):
    """Telemetry is on when VERL_OTEL_ENABLED says so and OTEL_SDK_DISABLED does not say ``true``."""
    assert config.is_enabled(variables) is on
    assert config.load_config(variables).enabled is on
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert config.is_enabled() is on
    assert config.load_config().enabled is on


def test_a_word_that_is_no_switch_counts_as_off_until_settings_are_read():
    """An unknown word leaves the switch off, and is refused where settings are read."""
    assert not config.is_enabled({"VERL_OTEL_ENABLED": "maybe"})
    with pytest.raises(ConfigError, match="VERL_OTEL_ENABLED='maybe'"):
        config.load_config({"VERL_OTEL_ENABLED": "maybe"})


@pytest.mark.parametrize("signal", ["", "_TRACES", "_METRICS"])
def test_an_endpoint_adds_otlp_to_the_files(signal):
    """An endpoint variable adds OTLP to the default, so that a run can be explained later; VERL_OTEL_EXPORTERS and a keyword overrule it."""
    environ = {f"OTEL_EXPORTER_OTLP{signal}_ENDPOINT": "http://collector:4318"}
    assert config.load_config(environ).exporters == ("file", "otlp")
    assert config.load_config({**environ, "VERL_OTEL_EXPORTERS": "file"}).exporters == ("file",)
    assert config.load_config({**environ, "VERL_OTEL_EXPORTERS": "none"}).exporters == ()
    assert config.load_config(environ, exporters="console").exporters == ("console",)
    assert config.load_config({**environ, "VERL_OTEL_EXPORTERS": ""}).exporters == ("file", "otlp")


@pytest.mark.parametrize(
    ("word", "argument", "sampler", "ratio"),
    [
        ("", "", "always_on", 1.0),
        ("always_on", "0.5", "always_on", 1.0),
        ("always_off", "0.5", "always_off", 0.0),
        ("traceidratio", "0.5", "traceidratio", 0.5),
        ("traceidratio", "", "traceidratio", 1.0),
        ("parentbased_always_on", "", "always_on", 1.0),
        ("parentbased_always_off", "", "always_off", 0.0),
        ("ParentBased_TraceIdRatio", "0", "traceidratio", 0.0),
    ],
)
def test_sampler_words(word, argument, sampler, ratio):
    """OpenTelemetry's sampler words give the share of trajectories that is kept."""
    loaded = config.load_config({"OTEL_TRACES_SAMPLER": word, "OTEL_TRACES_SAMPLER_ARG": argument})
    assert (loaded.sampler, loaded.sampler_ratio) == (sampler, ratio)


def test_a_configuration_does_not_change():
    """Settings are frozen; the run's identity is filled into a copy."""
    loaded = config.load_config({}, run_dir="/runs")
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.run_id = "x"
    other = config.with_run(loaded, "r1", 2)
    assert (loaded.run_id, other.run_id, other.run_attempt) == ("", "r1", 2)
    assert other.run_path == Path("/runs/r1")


def test_a_folder_means_the_same_everywhere(monkeypatch, tmp_path):
    """A relative path means the working directory of now, also for workers and after a change of it."""
    monkeypatch.chdir(tmp_path)
    loaded = config.load_config({"VERL_OTEL_TOKEN_FILE": "token"}, run_dir="runs")
    assert (loaded.run_dir, loaded.token_file) == (tmp_path / "runs", tmp_path / "token")


def test_an_unknown_home_folder_is_a_wrong_setting():
    """A home folder of nobody is refused like any other wrong value."""
    with pytest.raises(ConfigError, match="VERL_OTEL_RUN_DIR='~nobody-of-this-name/x'"):
        config.load_config({"VERL_OTEL_RUN_DIR": "~nobody-of-this-name/x"})


@pytest.mark.parametrize(
    "text", ["$HOME/runs", '"/data/runs"', "'/data/runs'", "s3://bucket/runs", "file:///data/runs"]
)
def test_a_path_that_no_shell_has_read_is_a_wrong_setting(text):
    """An env file of Docker keeps quotes and variables. The folder would be made below the working directory."""
    with pytest.raises(ConfigError, match="no shell expands variables"):
        config.load_config({"VERL_OTEL_RUN_DIR": text})


def test_a_container_without_home_folder_can_use_other_exporters(monkeypatch):
    """A user id without an entry in the password file and without HOME keeps nobody from OTLP."""

    def no_entry(_number):
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    assert config.load_config({"VERL_OTEL_EXPORTERS": "otlp"}).exporters == ("otlp",)
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert config.load_config({}).run_dir == Path(f"/scratch/verl-otel-{os.getuid()}/runs")
    with pytest.raises(ConfigError, match="VERL_OTEL_RUN_DIR='~/mine': use a path that does not begin with '~'"):
        config.load_config({"VERL_OTEL_RUN_DIR": "~/mine"})


@pytest.mark.full
@given(st.sampled_from([*GOOD, *BAD]), st.text(max_size=40))
def test_any_text_is_a_value_or_a_config_error(field, text):
    """No text in a variable raises anything but ConfigError."""
    try:
        loaded = load(field, text)
    except ConfigError as error:
        message = str(error)
    else:
        message = VARIABLES[field]
        if field == "run_id" and text:
            assert os.sep not in loaded.run_id
            assert not loaded.run_id.startswith((".", "-"))
    assert VARIABLES[field] in message


LINKS = {
    "VERL_OTEL_SERVICE_HOST": "10.96.0.17",
    "VERL_OTEL_SERVICE_PORT": "9465",
    "VERL_OTEL_SERVICE_PORT_METRICS": "9465",
    "VERL_OTEL_PORT": "tcp://10.96.0.17:9465",
    "VERL_OTEL_PORT_9465_TCP": "tcp://10.96.0.17:9465",
    "VERL_OTEL_PORT_9465_TCP_PROTO": "tcp",
    "VERL_OTEL_PROMETHEUS_SERVICE_HOST": "10.96.0.18",
    "VERL_OTEL_PROMETHEUS_PORT": "tcp://10.96.0.18:9090",
    "VERL_OTEL_PROMETHEUS_PORT_9090_UDP_ADDR": "10.96.0.18",
}


def test_links_of_kubernetes_are_no_settings():
    """Kubernetes names variables after Services; one called verl-otel-prometheus does not switch telemetry off."""
    assert config.load_config({"VERL_OTEL_ENABLED": "1", **LINKS}) == config.load_config({"VERL_OTEL_ENABLED": "1"})
    assert all(is_service_link(*link) for link in LINKS.items())
    assert not any(is_service_link(setting.variable, setting.default) for setting in SETTINGS)
    assert not is_service_link("VERL_OTEL_PROMETHEUS_PORT", "9464")


def test_one_setting_is_read_whatever_the_others_are(monkeypatch):
    """A command that reads runs needs their folder only."""
    monkeypatch.setenv("VERL_OTEL_MEMORY_MIB", "much")
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", "/runs")
    assert config.read("run_dir") == Path("/runs")
    assert config.read("run_dir", "/others") == Path("/others")
    with pytest.raises(ConfigError, match="VERL_OTEL_MEMORY_MIB='much'"):
        config.read("memory_mib")


@pytest.mark.parametrize("field", sorted(GOOD))
def test_line_ends_of_windows_are_no_part_of_a_value(field):
    """A file of settings with CRLF that a shell reads leaves a carriage return at the end of each value."""
    text, meaning, *_ = GOOD[field]
    variables = {"OTEL_TRACES_SAMPLER": "traceidratio"} if field == "sampler_ratio" else {}
    (variable,) = (setting.variable for setting in SETTINGS if setting.field == field)
    assert getattr(config.load_config({**variables, variable: f"{text}\r"}), field) == meaning


def test_a_path_with_control_characters_is_refused():
    """Such a folder could not be named in a shell."""
    with pytest.raises(ConfigError, match="control characters"):
        config.load_config({"VERL_OTEL_RUN_DIR": "/a\rb"})


@pytest.mark.parametrize(("word", "level"), [("WARN", "warning"), ("Warning", "warning"), ("CRITICAL", "error")])
def test_levels_have_their_other_names(word, level):
    """Those of Python's logging and of other programs: a run must not be without telemetry for such a word."""
    assert config.load_config({"VERL_OTEL_LOG_LEVEL": word}).log_level == level


def test_a_home_folder_that_cannot_be_written_is_as_none(monkeypatch):
    """A container with a random user id and HOME=/: files are in the temporary folder. A folder that was given is not replaced."""
    monkeypatch.setenv("HOME", "/proc/self")
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert config.load_config({}).run_dir == Path(f"/scratch/verl-otel-{os.getuid()}/runs")
    assert config.load_config({"VERL_OTEL_RUN_DIR": "~/runs"}).run_dir == Path("/proc/self/runs")


def test_variables_that_are_no_settings_are_found():
    """With the setting that is meant, if that is not set itself."""
    environ = {
        "VERL_OTEL_EXPORTER": "file", "VERL_OTEL_RUN_IDS": "a", "VERL_OTEL_RUN_ID": "b", "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_PORT": "tcp://10.0.0.1:4317", "OTHER": "x",
    }  # fmt: skip
    assert config.find_unknown(environ) == {"VERL_OTEL_EXPORTER": "VERL_OTEL_EXPORTERS", "VERL_OTEL_RUN_IDS": ""}
