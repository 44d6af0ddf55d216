# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel prometheus``: its output and its exit codes."""

import os

import pytest

from tests.fakes.prometheus_server import FakePrometheus
from verl_otel.cli import main
from verl_otel.session import prometheus_file

TEXT = "scrape_configs:\n- job_name: mine\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "prometheus.yml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def server(file):
    made = FakePrometheus(file)
    yield made
    made.close()


@pytest.fixture
def call(file, tmp_path, capsys):
    """Run the command on the file; returns exit code and output."""

    def run(action, *arguments, reload="none"):
        words = ["prometheus", action, "--file", str(file), "--reload", reload, "--run-dir", str(tmp_path / "runs")]
        code = main([*words, *arguments])
        out, err = capsys.readouterr()
        return code, out + err

    return run


def test_add_and_remove(call, file, server, tmp_path):
    """The source is the folder of the targets files; removing it gives the file back."""
    code, output = call("add", reload=server.url)
    assert (code, output) == (0, f"{file} has the job verl-otel; the Prometheus at {server.url} has loaded it\n")
    assert prometheus_file.read_sources(file) == [f"{tmp_path}/runs/targets/*.json"]
    assert call("add", reload=server.url)[0] == 0
    assert server.reloads == 1
    assert call("remove", reload=server.url)[0] == 0
    assert file.read_text() == server.loaded == TEXT


def test_http_discovery_is_a_source_of_its_own(call, file):
    """``remove`` removes the named source only, and prints what is left; ``--all`` removes the job."""
    call("add")
    call("add", "--http-sd", "http://127.0.0.1:9465/")
    code, output = call("remove")
    assert code == 0
    assert output == f"{file} has the job verl-otel, which still discovers http://127.0.0.1:9465/\n"
    assert call("remove", "--all") == (0, f"{file} has no longer the job verl-otel\n")
    assert file.read_text() == TEXT


def test_exit_codes(call, file):
    """1: the file was changed and Prometheus does not have it; 2: the file stays as it was."""
    assert call("add", reload="http://127.0.0.1:1")[0] == 1
    file.write_text("global: [")
    code, output = call("add")
    assert code == 2
    assert "stays as it is: it is not YAML" in output
    file.unlink()
    code, output = call("add")
    assert code == 2
    assert "there is no such file; --file names" in output


@pytest.mark.parametrize("arguments", [["--http-sd", "127.0.0.1:9465"], ["--reload", "9090"]])
def test_an_address_without_a_scheme_is_refused(call, file, arguments):
    code, output = call("add", *arguments)
    assert code == 2
    assert "give a URL" in output
    assert file.read_text() == TEXT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_prometheus_of_another_user_is_named(call, file, tmp_path):
    """Its user may not read the targets: the line says so. With HTTP service discovery no file is read."""
    (tmp_path / "runs" / "targets").mkdir(parents=True, mode=0o700)
    os.chown(file, 65534, -1)
    code, output = call("add")
    assert code == 0
    assert f"may not read the targets in {tmp_path}/runs/targets" in output
    assert len(output.splitlines()) == 1
    assert "may not read" not in call("add", "--http-sd", "http://127.0.0.1:9465/")[1]
