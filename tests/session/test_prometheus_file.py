# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's ``prometheus.yml`` gets a line and a file beside it, or stays as it was with one line that says why."""

import json
import os
import threading

import pytest

from tests.fakes.prometheus_server import FakePrometheus
from verl_otel.session import prometheus_file, prometheus_job

TEXT = "scrape_configs:\n  # mine\n  - job_name: mine\n"
SOURCE = "/runs/targets/*.json"
OTHER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "prometheus.yml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def start():
    """Start a Prometheus that reads a file: ``start(path, **faults)``."""
    made = []

    def begin(path, **faults):
        made.append(FakePrometheus(path, **faults))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def names(file):
    return sorted(each.name for each in file.parent.iterdir())


JOB_FILE = "prometheus.verl-otel.yml"


@pytest.mark.parametrize("mode", [0o640, 0o664])
def test_the_job_is_added_and_removed(file, mode):
    """The file keeps owner, group, mode and links, and is the original after the removal; the job beside it can be read by any Prometheus."""
    file.chmod(mode)
    os.link(file, file.with_name("other"))
    before = file.stat()
    outcome = prometheus_file.add_job(file, [SOURCE])
    assert outcome.state == "changed"
    assert prometheus_file.read_sources(file) == [SOURCE]
    assert file.read_text().startswith(TEXT)
    assert names(file) == ["other", JOB_FILE, "prometheus.yml"]
    assert (file.parent / JOB_FILE).stat().st_mode & 0o777 == 0o644
    assert prometheus_file.add_job(file, [SOURCE]).state == "same"
    assert prometheus_file.remove_job(file, [SOURCE]).state == "changed"
    assert file.read_text() == TEXT
    assert file.stat()[:6] == before[:6]  # mode, inode, device, links, owner and group
    assert names(file) == ["other", "prometheus.yml"]
    assert prometheus_file.remove_job(file).text.endswith("is unchanged")


def test_what_the_user_adds_below_the_line_stays(file):
    prometheus_file.add_job(file, [SOURCE])
    file.write_text(file.read_text() + "global: {}\n")
    prometheus_file.remove_job(file)
    assert file.read_text() == TEXT + "global: {}\n"


def test_a_job_of_the_user_that_has_the_source_is_enough(file):
    """A job that was added by hand is not scraped twice."""
    file.write_text(f'scrape_configs:\n- job_name: verl\n  file_sd_configs: [{{files: ["{SOURCE}"]}}]\n')
    outcome = prometheus_file.add_job(file, [SOURCE])
    assert (outcome.state, outcome.text) == ("same", f"{file} is unchanged")


def test_a_link_stays_a_link(file, tmp_path):
    """The file behind a link is changed, as in Ray's folder ``session_latest``."""
    link = tmp_path / "link.yml"
    link.symlink_to(file)
    assert prometheus_file.add_job(link, [SOURCE]).state == "changed"
    assert link.is_symlink()
    assert prometheus_file.read_sources(file) == [SOURCE]


def no_yaml(file):
    file.write_text("global: [")


def no_text(file):
    file.write_bytes(b"global: \xff\xfe")


def too_large(file):
    file.write_text(TEXT + "#" * prometheus_file.MAX_BYTES)


def folder(file):
    file.unlink()
    file.mkdir()


def fifo(file):
    file.unlink()
    os.mkfifo(file)


def missing(file):
    file.unlink()


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (no_yaml, "not YAML"),
        (no_text, "not UTF-8"),
        (too_large, "more than"),
        (folder, "not a regular file"),
        (fifo, "not a regular file"),
        (missing, "no such file"),
    ],
)
def test_what_cannot_be_changed_stays(file, break_it, why):
    """One line with the reason, nothing written, nothing left behind."""
    break_it(file)
    before, content = names(file), file.read_bytes() if file.is_file() else None
    for outcome in (prometheus_file.add_job(file, [SOURCE]), prometheus_file.add_job(file, [SOURCE])):
        assert outcome.state == "refused"
        assert f"{file} stays as it is: " in outcome.text
        assert why in outcome.text
        assert "\n" not in outcome.text
    assert names(file) == before
    assert content is None or file.read_bytes() == content


def test_a_change_by_another_program_is_not_lost(file, monkeypatch):
    """An editor that saves between our reading and our writing wins."""
    edit = prometheus_job.add_line

    def late(text, name):
        file.write_text(TEXT + "  - job_name: late\n")
        return edit(text, name)

    monkeypatch.setattr(prometheus_job, "add_line", late)
    assert "has just changed it" in prometheus_file.add_job(file, [SOURCE]).text
    assert file.read_text() == TEXT + "  - job_name: late\n"
    assert names(file) == ["prometheus.yml"]


def test_a_full_disk_leaves_the_file(file, monkeypatch):
    """The disk takes a part of the line: the old content is back, and no file is left."""
    write = prometheus_file._write_from

    def fail(handle, offset, content):
        if content.decode() == TEXT:
            write(handle, offset, content)
        else:
            handle.seek(offset)
            handle.write(content[offset : offset + 9])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(prometheus_file, "_write_from", fail)
    assert "no space left" in prometheus_file.add_job(file, [SOURCE]).text
    assert file.read_text() == TEXT
    assert names(file) == ["prometheus.yml"]


OTHER_USER = """
import json, os, sys
from pathlib import Path
from verl_otel.session import prometheus_file
from verl_otel.session.prometheus_file import prometheus_job
prometheus_job.add_line("global: {}", "a")  # modules that another user may not read are loaded here
prometheus_file.describe_reader(Path("/"), Path("/"), [])
folder, other = Path(sys.argv[1]), 65534
os.setgroups([]); os.setgid(other); os.setuid(other)
print(json.dumps({path.name: prometheus_file.add_job(path / "prometheus.yml", ["/r/*.json"]).text for path in folder.iterdir()}))
"""


@as_root
@pytest.mark.smoke
def test_another_user_changes_what_may_be_changed(clean_python, public_path):
    """A file and a folder that this user may not write stay, with one line that says so; a file that the group may write stays root's."""
    base = public_path / "etc"
    for name, folder_mode, file_mode in (("file", 0o777, 0o644), ("folder", 0o755, 0o666), ("group", 0o775, 0o664)):
        path = base / name / "prometheus.yml"
        path.parent.mkdir(parents=True)
        path.write_text(TEXT)
        for each, mode in ((path, file_mode), (path.parent, folder_mode)):
            os.chown(each, 0, OTHER)
            each.chmod(mode)
    lines = json.loads(clean_python("-c", OTHER_USER, base).stdout)
    assert lines["file"].endswith("stays as it is: you may not write it")
    assert lines["folder"].endswith("stays as it is: you may not write its folder")
    assert lines["group"].endswith("has the job verl-otel")
    for name in ("file", "folder"):
        assert (base / name / "prometheus.yml").read_text() == TEXT
        assert names(base / name / "prometheus.yml") == ["prometheus.yml"]
    changed = base / "group" / "prometheus.yml"
    assert prometheus_file.read_sources(changed) == ["/r/*.json"]
    assert (changed.stat().st_uid, changed.stat().st_gid, changed.stat().st_mode & 0o777) == (0, OTHER, 0o664)


@pytest.fixture
def targets(public_path):
    """A folder with the targets of a run, readable by its user alone."""
    folder = public_path / "targets"
    folder.mkdir(mode=0o755)
    (folder / "r.json").write_text("[]")
    (folder / "r.json").chmod(0o600)
    return folder


@as_root
def test_a_prometheus_that_may_not_read_the_targets_is_named(file, targets):
    """Without an answer its user is the owner of the file; with a group, or to its own user, nothing is closed."""
    assert prometheus_file.describe_reader(file, targets, []) == ""
    os.chown(file, OTHER, -1)
    line = prometheus_file.describe_reader(file, targets, [])
    assert f"the user nobody, to whom this Prometheus belongs, may not read the targets in {targets}" in line
    assert "VERL_OTEL_FILES_GROUP" in line
    (targets / "r.json").chmod(0o640)
    targets.chmod(0o755)
    assert prometheus_file.describe_reader(file, targets, []) == ""
    targets.chmod(0o700)
    assert "may not read" in prometheus_file.describe_reader(file, targets, [])
    assert prometheus_file.describe_reader(file, targets / "none", []) == ""


@as_root
def test_the_user_of_a_prometheus_is_that_of_its_port(file, targets, start):
    """A Prometheus of this user may read the targets, whatever user owns its file; a URL without a port names none."""
    os.chown(file, OTHER, -1)
    assert prometheus_file.describe_reader(file, targets, [start(file).url]) == ""
    assert "may not read" in prometheus_file.describe_reader(file, targets, ["http://prometheus"])
    assert prometheus_file.describe_reader(file, targets, ["http://prometheus:x"]) == ""


def test_runs_that_start_together_share_the_job(file):
    """Eight runs of two users: one job, every source once, no source lost."""
    sources = [f"/runs-{number % 4}/targets/*.json" for number in range(8)]
    threads = [threading.Thread(target=prometheus_file.add_job, args=(file, [source])) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(prometheus_file.read_sources(file)) == sorted(set(sources))
    prometheus_file.remove_job(file)
    assert file.read_text() == TEXT


def test_prometheus_loads_it(file, start):
    """One reload; none when it has the job already."""
    server = start(file)
    outcome = prometheus_file.add_job(file, [SOURCE], ["http://127.0.0.1:1", server.url])
    assert outcome.answer.state == "loaded"
    assert outcome.text.endswith(f"has the job verl-otel; the Prometheus at {server.url} has loaded it")
    prometheus_file.add_job(file, [SOURCE], [server.url])
    assert server.reloads == 1
    assert prometheus_file.remove_job(file, [SOURCE], [server.url]).answer.state == "loaded"
    assert server.reloads == 2
    assert "verl-otel" not in server.loaded


@pytest.mark.parametrize(
    ("faults", "state", "words"),
    [
        ({"reload": (403, "Lifecycle API is not enabled.")}, "no lifecycle", "--web.enable-lifecycle"),
        ({"reload": (401, "Unauthorized")}, "error", "answers 401 Unauthorized"),
        ({"reload": (302, "")}, "error", "answers 302"),
        ({"other": True}, "other file", "reads another file"),
    ],
)
def test_what_prometheus_does_not_do_is_reported(file, start, monkeypatch, faults, state, words):
    """The job is in the file, and the line says what is missing."""
    monkeypatch.setattr(prometheus_file, "SETTLE_SECONDS", 0.0)
    outcome = prometheus_file.add_job(file, [SOURCE], [start(file, **faults).url])
    assert (outcome.state, outcome.answer.state) == ("changed", state)
    assert words in outcome.text
    assert "\n" not in outcome.text
    assert prometheus_file.read_sources(file) == [SOURCE]


def test_without_an_api_the_reload_counts(file, start):
    """Another program with the same reload, which does not list its jobs."""
    assert prometheus_file.add_job(file, [SOURCE], [start(file, pools=False).url]).answer.state == "loaded"


def test_what_prometheus_refuses_is_undone(file, start):
    """The old file is back and loaded again."""
    server = start(file, refuses="verl-otel")
    outcome = prometheus_file.add_job(file, [SOURCE], [server.url])
    assert outcome.state == "refused"
    assert "stays as it is: the Prometheus at" in outcome.text
    assert "invalid job" in outcome.text
    assert file.read_text() == TEXT
    assert server.reloads == 2
    assert server.loaded == TEXT


def test_without_a_prometheus_the_file_is_changed(file):
    """The job waits in the file."""
    outcome = prometheus_file.add_job(file, [SOURCE], ["http://127.0.0.1:1"])
    assert outcome.answer.state == "silent"
    assert "reads the file when it starts" in outcome.text
