# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The units for systemd: read by systemd itself, hardened, and with the variables that the configurations have."""

import re
import shutil
import subprocess

import pytest

from tests.collector.tiers import COLLECTOR

SYSTEMD = COLLECTOR / "deploy" / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
EXPOSURE = 15
"""Tenths, of 100: below 2.0 systemd says OK. Most services of a distribution have more than 90."""


@pytest.fixture
def install(tmp_path, programs):
    """Return the path of a unit as it is installed: with an instance where it is a template, and a program that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")

    def copy(unit):
        text = unit.read_text("utf-8").replace("/usr/local/bin/otelcol-verl", str(programs.otelcol))
        target = tmp_path / unit.name.replace("@.", "@north.")
        (tmp_path / unit.name).write_text(text)
        target.write_text(text)
        return target

    return copy


def settings(unit):
    """Return the lines ``name=value`` of a unit."""
    return re.findall(r"^(\w+)=(.*)$", unit.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_it(install, unit):
    """``systemd-analyze verify`` has nothing to say."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", install(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_it_is_hardened(install, unit):
    """What systemd reckons that the service is exposed to stays below the limit; it runs as nobody that can do anything."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", install(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    found = dict(settings(unit))
    assert found["User"] == "otelcol"
    assert (found["CapabilityBoundingSet"], found["NoNewPrivileges"]) == ("", "yes")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_it_refers_to_what_is_there(unit):
    """Configurations exist, the queue is in the folder that systemd makes, memory is limited above what the Collector limits itself to."""
    text = unit.read_text("utf-8")
    found = dict(settings(unit))
    for name in re.findall(r"--config=/etc/otelcol/(\S+)", text):
        assert (COLLECTOR / name).exists() or (COLLECTOR / "deploy" / name).exists()
    assert re.search(r"OTELCOL_STATE_DIR=(\S+)", text)[1] == f"/var/lib/{found['StateDirectory']}/queue"
    limit, unit_of = re.fullmatch(r"(\d+)([MG])", found["MemoryMax"]).groups()
    own = int(re.search(r"OTELCOL_MEMORY_MIB=(\d+)", text)[1])
    assert int(re.search(r"GOMEMLIMIT=(\d+)MiB", text)[1]) < own < int(limit) * (1024 if unit_of == "G" else 1)


def test_the_variables_exist():
    """Each variable of a unit or an environment file is one of a configuration: a misspelled one would be ignored."""
    known = {"GOMEMLIMIT"}
    for path in (*COLLECTOR.glob("*.yaml"), COLLECTOR / "deploy" / "tenant.yaml"):
        known |= set(re.findall(r"\$\{env:(\w+)", path.read_text("utf-8")))
    for path in (*UNITS, *SYSTEMD.glob("*.env")):
        lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
        used = set(re.findall(r"\b(OTELCOL_[A-Z_]+|GOMEMLIMIT)=", "\n".join(lines)))
        assert used, path
        assert used <= known, path


def test_the_tenant_is_not_in_a_file_that_tenants_write():
    """The name, the authority and the folder of a tenant come from the name of the unit, after the environment file."""
    command = dict(settings(SYSTEMD / "otelcol-gateway@.service"))["ExecStart"]
    for name in ("OTELCOL_TENANT=%i", "OTELCOL_TLS_CA=/etc/otelcol/tenants/%i.ca.pem", "OTELCOL_STATE_DIR="):
        assert name in command
