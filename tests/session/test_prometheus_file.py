# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's ``prometheus.yml`` is replaced atomically, with a backup, or stays as it was with one line that says why."""

import os
import threading

import pytest

from tests.fakes.prometheus_server import FakePrometheus
from verl_otel.session import prometheus_block, prometheus_file

TEXT = "scrape_configs:\n  # mine\n  - job_name: mine\n"
SOURCE = "/runs/targets/*.json"


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


def test_the_job_is_added_with_a_backup_and_removed(file):
    """The copy beside the file is the file without the job; both are gone after the removal, and the file is the original."""
    file.chmod(0o640)
    outcome = prometheus_file.add(file, [SOURCE])
    assert outcome.state == "changed"
    assert prometheus_block.read_sources(file.read_text()) == [SOURCE]
    assert file.stat().st_mode & 0o777 == 0o640
    assert names(file) == ["prometheus.yml", "prometheus.yml.before-verl-otel"]
    assert (file.parent / "prometheus.yml.before-verl-otel").read_text() == TEXT
    assert prometheus_file.add(file, [SOURCE]).state == "same"
    assert prometheus_file.remove(file, [SOURCE]).state == "changed"
    assert file.read_text() == TEXT
    assert names(file) == ["prometheus.yml"]
    assert prometheus_file.remove(file).text.endswith("is unchanged")


def test_a_backup_that_differs_is_kept(file):
    """A user who has edited the file meanwhile keeps the copy of the file before."""
    prometheus_file.add(file, [SOURCE])
    file.write_text(file.read_text() + "  - job_name: new\n")
    prometheus_file.remove(file)
    assert file.read_text() == TEXT + "  - job_name: new\n"
    assert names(file) == ["prometheus.yml", "prometheus.yml.before-verl-otel"]


def test_a_link_stays_a_link(file, tmp_path):
    """The file behind a link is changed, as in Ray's folder ``session_latest``."""
    link = tmp_path / "link.yml"
    link.symlink_to(file)
    assert prometheus_file.add(link, [SOURCE]).state == "changed"
    assert link.is_symlink()
    assert prometheus_block.read_sources(file.read_text()) == [SOURCE]


def no_yaml(file):
    file.write_text("global: [")


def no_text(file):
    file.write_bytes(b"global: \xff\xfe")


def hard_link(file):
    os.link(file, file.with_name("other"))


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
        (hard_link, "another name"),
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
    for outcome in (prometheus_file.add(file, [SOURCE]), prometheus_file.add(file, [SOURCE])):
        assert outcome.state == "refused"
        assert f"{file} stays as it is: " in outcome.text
        assert why in outcome.text
        assert "\n" not in outcome.text
    assert names(file) == before
    assert content is None or file.read_bytes() == content


def test_a_change_by_another_program_is_not_lost(file, monkeypatch):
    """An editor that saves between our reading and our writing wins."""
    edit = prometheus_block.add_sources

    def late(text, sources):
        file.write_text(TEXT + "  - job_name: late\n")
        return edit(text, sources)

    monkeypatch.setattr(prometheus_block, "add_sources", late)
    assert "has just changed it" in prometheus_file.add(file, [SOURCE]).text
    assert file.read_text() == TEXT + "  - job_name: late\n"


def test_a_full_disk_leaves_the_file(file, monkeypatch):
    """The file is as before, and no part of a new one is left."""

    def fail(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert "no space left" in prometheus_file.add(file, [SOURCE]).text
    assert file.read_text() == TEXT
    assert names(file) == ["prometheus.yml"]


def test_runs_that_start_together_share_the_job(file):
    """Eight runs of two users: one job, every source once, no source lost."""
    sources = [f"/runs-{number % 4}/targets/*.json" for number in range(8)]
    threads = [threading.Thread(target=prometheus_file.add, args=(file, [source])) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(prometheus_block.read_sources(file.read_text())) == sorted(set(sources))
    prometheus_file.remove(file)
    assert file.read_text() == TEXT


def test_prometheus_loads_it(file, start):
    """One reload; none when it has the job already."""
    server = start(file)
    outcome = prometheus_file.add(file, [SOURCE], ["http://127.0.0.1:1", server.url])
    assert outcome.answer.state == "loaded"
    assert outcome.text.endswith(f"has the job verl-otel; the Prometheus at {server.url} has loaded it")
    prometheus_file.add(file, [SOURCE], [server.url])
    assert server.reloads == 1
    assert prometheus_file.remove(file, [SOURCE], [server.url]).answer.state == "loaded"
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
def test_what_prometheus_does_not_do_is_reported(file, start, faults, state, words):
    """The job is in the file, and the line says what is missing."""
    outcome = prometheus_file.add(file, [SOURCE], [start(file, **faults).url])
    assert (outcome.state, outcome.answer.state) == ("changed", state)
    assert words in outcome.text
    assert "\n" not in outcome.text
    assert prometheus_block.read_sources(file.read_text()) == [SOURCE]


def test_without_an_api_the_reload_counts(file, start):
    """Another program with the same reload, which does not show its configuration."""
    assert prometheus_file.add(file, [SOURCE], [start(file, config=False).url]).answer.state == "loaded"


def test_what_prometheus_refuses_is_undone(file, start):
    """The old file is back and loaded again."""
    server = start(file, refuses="verl-otel")
    outcome = prometheus_file.add(file, [SOURCE], [server.url])
    assert outcome.state == "refused"
    assert "stays as it is: the Prometheus at" in outcome.text
    assert "invalid job" in outcome.text
    assert file.read_text() == TEXT
    assert server.reloads == 2
    assert server.loaded == TEXT


def test_without_a_prometheus_the_file_is_changed(file):
    """The job waits in the file."""
    outcome = prometheus_file.add(file, [SOURCE], ["http://127.0.0.1:1"])
    assert outcome.answer.state == "silent"
    assert "reads the file when it starts" in outcome.text
