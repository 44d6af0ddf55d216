# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A whole process leaves private files only, and writes nothing where another user has prepared the place."""

import os
import stat
from pathlib import Path

import pytest

WORK = """
import verl_otel
from verl_otel import session
verl_otel.init(exporters="file,prometheus")
session.current_session().run.begin()
session.record_run({"verl.project": "p"})
with verl_otel.step(1), verl_otel.span("inner"):
    pass
session.current_session().flush(5.0)
import time, pathlib
end = time.monotonic() + 20
while not list(pathlib.Path(session.current_session().config.run_dir).glob("targets/*.json")) and time.monotonic() < end * WAIT:
    time.sleep(0.02)
import os
seen = {}
for root, folders, files in os.walk(session.current_session().config.run_dir):
    for name in (*folders, *files, ""):
        try:
            status = os.lstat(os.path.join(root, name))
        except OSError:
            continue
        seen[os.path.join(root, name)] = (status.st_mode, status.st_gid)
print(seen)
verl_otel.shutdown()
"""


def modes(out):
    """Return mode and group of everything that the process saw while it ran."""
    return {path: (stat.S_IMODE(mode), stat.S_ISDIR(mode), group) for path, (mode, group) in eval(out).items()}


@pytest.mark.smoke
def test_everything_that_a_process_writes_is_private(run, tmp_path):
    """Traces, metrics, the run's record, targets, signs of life, stacks and locks: 0600 in 0700, whatever the umask is."""
    result = run("import os\nos.umask(0)\nWAIT = 1\n" + WORK)
    entries = modes(result.out)
    assert {(folder, oct(mode)) for mode, folder, _ in entries.values()} == {(True, "0o700"), (False, "0o600")}
    names = " ".join(Path(path).name for path in entries)
    for word in ("traces-", "metrics-", "run.json", "r1@", ".lock", "beat-", "process-", "stacks-", "targets"):
        assert word in names


@pytest.mark.full
def test_a_group_by_setting_may_read_everything(run):
    """With VERL_OTEL_FILES_GROUP the members of that group read the files of runs and the targets."""
    group = 65534 if os.geteuid() == 0 else os.getgid()
    result = run("WAIT = 1\n" + WORK, VERL_OTEL_FILES_GROUP=str(group))
    entries = modes(result.out)
    assert {(folder, oct(mode), group) for mode, folder, group in entries.values()} == {
        (True, "0o750", group),
        (False, "0o640", group),
    }


@pytest.mark.full
def test_an_unknown_group_costs_one_line(run):
    """Files stay private, and the run goes on."""
    result = run("WAIT = 1\n" + WORK, VERL_OTEL_FILES_GROUP="no-such-group-here")
    assert result.code == 0
    assert result.err.count("no group 'no-such-group-here'; files stay private") == 1
    assert {mode for mode, _, _ in modes(result.out).values()} == {0o700, 0o600}


@pytest.fixture
def home(tmp_path):
    """The default folder of a user without a home folder, in a folder such as /tmp."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    return shared / f"verl-otel-{os.getuid()}"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["another owner", "symbolic link", "writable by others"])
def test_a_prepared_default_folder_is_not_written_to(run, home, tmp_path, kind):
    """Another user was first: nothing is written there, the log says what is wrong and what to do, and the work is done."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "symbolic link":
        home.symlink_to(elsewhere)
    else:
        home.mkdir()
        home.chmod(0o777 if kind == "writable by others" else 0o755)
        if kind == "another owner":
            if os.geteuid() != 0:
                pytest.skip("only root can give a folder to another user")
            os.chown(home, 65534, 65534)
    result = run("WAIT = 0\n" + WORK, VERL_OTEL_RUN_DIR=str(home / "runs"))
    assert result.code == 0, result.err
    assert not [path for folder in (home, elsewhere) for path in folder.rglob("*") if path.is_file()]
    assert "set VERL_OTEL_RUN_DIR to a folder of your own" in result.err
    assert all(line.startswith("verl-otel: ") for line in result.err.splitlines())
    assert len(result.err.splitlines()) == len(set(result.err.splitlines())) <= 6
