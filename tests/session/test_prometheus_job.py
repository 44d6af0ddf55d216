# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The line in a user's ``prometheus.yml``: everything else is kept byte for byte, adding twice is adding once, removing gives the original back."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.session import prometheus_job as job
from verl_otel.session.prometheus_job import NotEditableError

NAME = "prometheus.verl-otel.yml"
SOURCE = "/home/a user/runs/targets/*.json"
URL = "http://127.0.0.1:9465/"


def check(text):
    """Check the promises for one text."""
    added = job.add_line(text, NAME)
    assert added != text
    assert job.add_line(added, NAME) == added
    assert job.remove_line(added) == text
    assert added.startswith(text)
    document = yaml.safe_load(added)
    assert document.pop("scrape_config_files") == [NAME]
    assert repr(document) == repr(yaml.safe_load(text))


@pytest.mark.parametrize(
    "text",
    [
        "global: {}\n",
        "# mine\nglobal:\n  scrape_interval: 15s # a comment\n\n# end",
        "\ufeffglobal: {}\r\nscrape_configs:\r\n- job_name: a\r\n",
        "scrape_configs:\n  - job_name: mine\n    static_configs: [{targets: ['a:1']}]\n\n\n",
        "rule_files:\n  # - first.yml\nscrape_configs:",
        "x: &rules [{source_labels: [a]}]\nscrape_configs:\n- {job_name: j, relabel_configs: *rules}\n",
        "scrape_configs:\n- job_name: a\n  relabel_configs:\n  - regex: |\n      scrape_config_files: [a]\n",
        "global: {}\na0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 4)),
    ],
)
def test_a_file_gets_one_more_line_and_nothing_else(text):
    check(text)


JOB_NAMES = st.text("abcxyz-_ äü#:'{}[]", min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.just("- job_name: x\nscrape_config_files:\n"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    names=st.lists(JOB_NAMES, max_size=4),
    extra=VALUES,
    others=st.sampled_from([(), ("global",), ("remote_write", "global")]),
    style=st.sampled_from([None, False]),
    indent=st.integers(2, 6),
    ending=st.sampled_from(["\n", "", "\n\n", "\n# end", "\n\n  # end\n"]),
    line_break=st.sampled_from(["\n", "\r\n"]),
    start=st.booleans(),
)
def test_any_file_that_a_program_writes(names, extra, others, style, indent, ending, line_break, start):
    """Whatever a YAML library writes with its top level on lines: the promises hold."""
    document = {**dict.fromkeys(others, extra), "scrape_configs": [{"job_name": name, "x": extra} for name in names]}
    text = yaml.safe_dump(
        document, default_flow_style=style, indent=indent, allow_unicode=True, explicit_start=start, sort_keys=False
    )
    check((text.rstrip("\n") + ending).replace("\n", line_break))


@given(st.text("abc:-[]{}#\n \r\t'\"&*!|>%@`,?~é\u2028\x85", max_size=60))
def test_any_text_is_kept_or_refused(text):
    """Text of any kind: it is refused, or removing gives it back."""
    text = f"global: {{}}\n{text}"
    try:
        added = job.add_line(text, NAME)
    except NotEditableError:
        return
    assert job.add_line(added, NAME) == added
    assert job.remove_line(added) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("global: [", "not YAML (line"),
        ("global: {}\n---\nglobal: {}\n", "several YAML documents"),
        ("", "not a configuration of Prometheus"),
        ("- a\n", "not a configuration of Prometheus"),
        ("apiVersion: v1\nkind: Config\n", "not a configuration of Prometheus"),
        ("a: {global: 1}\n? [scrape_configs]\n: 1\n", "not a configuration of Prometheus"),
        ("scrape_config_files: [a.yml]\n", f"has scrape_config_files already: add {NAME} to this list"),
        ("scrape_configs: {% jobs %}\n", "not YAML"),
        ("global:\n  x: 1\n...\n", f'add this line by hand: scrape_config_files: ["{NAME}"]'),
        ("{global: {}}\n", "by hand"),
        ("  global: {}\n", "by hand"),
        ("global: |+\n  x", "by hand"),
        ("global: " + "[" * 300 + "]" * 300, "nested more than"),
    ],
)
def test_what_cannot_be_edited_is_refused_with_the_reason(text, why):
    with pytest.raises(NotEditableError) as caught:
        job.add_line(text, NAME)
    assert why in str(caught.value)


def test_a_list_that_the_user_has_edited_is_enough():
    """The name was added by hand, as the refusal says."""
    text = f"scrape_config_files: [a.yml, {NAME}]\n"
    assert job.add_line(text, NAME) == text


def test_aliases_without_an_end_are_not_expanded():
    """The file may be one of another user, and the trainer reads it."""
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 20))
    for text in (bomb + "global: {}\n", "b: &b [*b]\nglobal: {}\n"):
        assert job.remove_line(job.add_line(text, NAME)) == text


def test_the_job_has_all_sources_and_a_name_of_its_own():
    """Prometheus refuses two jobs of one name; what is damaged is written again."""
    text = job.make_job([SOURCE, URL], frozenset({"verl-otel"}))
    (made,) = yaml.safe_load(text)["scrape_configs"]
    assert made["job_name"] == job.read_name(text) == "verl-otel-2"
    assert made["file_sd_configs"] == [{"files": [SOURCE], "refresh_interval": "15s"}]
    assert made["http_sd_configs"] == [{"url": URL, "refresh_interval": "15s"}]
    assert job.read_sources(text) == [SOURCE, URL]
    assert job.read_sources(text[:-9]) == job.read_sources("") == []


def go_matches(pattern, path):
    """Whether Go's ``filepath.Glob``, by which Prometheus finds ``file_sd`` files, matches a path: with escapes, ``*`` and ``?``."""
    parts = {"*": "[^/]*", "?": "[^/]"}
    words = re.findall(r"\\.|.", pattern, re.DOTALL)
    text = "".join(re.escape(word[1]) if len(word) == 2 else parts.get(word) or re.escape(word) for word in words)
    assert "[" not in [word for word in words if len(word) == 1]  # it would begin a class
    return re.fullmatch(text, path) is not None


@pytest.mark.parametrize(
    "folder", ["/runs/plain", "/runs/a[1]", "/runs/why?", "/runs/a*b/c", "/runs/back\\slash", "/runs/[*?]"]
)
def test_a_folder_with_characters_of_patterns_is_found(folder):
    """Prometheus accepts the pattern (its own check: one star, in the last part, before the ending), and it matches the files of the folder."""
    pattern = job.make_pattern(folder)
    assert re.fullmatch(r"[^*]*(\*[^/]*)?\.(json|yml|yaml|JSON|YML|YAML)", pattern)
    assert go_matches(pattern, f"{folder}/r1.json")
    assert not go_matches(pattern, f"{folder}/deeper/r1.json")
    assert job.read_sources(job.make_job([pattern], frozenset())) == [pattern]
