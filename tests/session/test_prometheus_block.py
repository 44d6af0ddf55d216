# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One marked job in a user's ``prometheus.yml``: everything else is kept byte for byte, adding twice is adding once, removing gives the original back."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import prometheus_files
from verl_otel.session import prometheus_block as block
from verl_otel.session.prometheus_block import NotEditableError

FILES = prometheus_files.make_all()
SOURCE = "/home/a user/runs/targets/*.json"
URL = "http://127.0.0.1:9465/"


def check(text):
    """Check the three promises for one text; returns it with the job."""
    added = block.add_sources(text, [SOURCE])
    assert added != text
    assert block.add_sources(added, [SOURCE]) == added
    assert block.remove_sources(added) == text
    before, after = read_outside(added)
    assert (before + after).encode() == text.encode()
    return added


def read_outside(added):
    """Return what is before the lines of the job and after them, without the code that finds them.

    The lines have a line break of their own: the one after them, or the one before them where the text ends without one. In brackets they have
    both, and two blanks before the rest of the line on which the brackets close.
    """
    lines = added.split("\n")
    (begin,) = [number for number, line in enumerate(lines) if line.lstrip(" ").startswith(block.BEGIN)]
    (end,) = [number for number, line in enumerate(lines) if line.lstrip(" ").startswith(block.END)]
    before, after = "\n".join(lines[:begin]), "\n".join(lines[end + 1 :])
    if lines[end].rstrip("\r").endswith("in brackets"):
        assert after.startswith("  ")
        return before.removesuffix("\r"), after[2:]
    at_end = end == len(lines) - 1
    return (before.removesuffix("\r"), after) if at_end or begin == 0 else (before + "\n", after)


@pytest.mark.parametrize("name", FILES)
def test_a_file_gets_one_more_job_and_nothing_else(name):
    """The parsed file is the user's, with one more job in the first place; the text outside of the marks is the user's."""
    text = FILES[name]
    added = check(text)
    before, after = yaml.safe_load(text) or {}, yaml.safe_load(added)
    job, *others = after.pop("scrape_configs")
    assert others == (before.pop("scrape_configs", None) or [])
    assert after == before
    assert job["file_sd_configs"] == [{"files": [SOURCE], "refresh_interval": "15s"}]
    assert job["job_name"] not in [each["job_name"] for each in others]


@pytest.mark.parametrize("name", FILES)
def test_sources_of_others_stay(name):
    """Two users share the job: each adds and removes the own source; the job goes with the last."""
    one = block.add_sources(FILES[name], [SOURCE])
    both = block.add_sources(one, [URL])
    assert block.read_sources(both) == [SOURCE, URL]
    assert block.remove_sources(both, [URL]) == one
    assert block.remove_sources(block.remove_sources(both, [SOURCE]), [URL]) == FILES[name]
    assert block.remove_sources(one, [URL]) == one


JOB_NAMES = st.text("abcxyz-_ äü#:'{}[]", min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.just("- job_name: x\nscrape_configs:\n"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    names=st.lists(JOB_NAMES, max_size=4),
    extra=VALUES,
    others=st.sampled_from([(), ("global",), ("remote_write", "global")]),
    style=st.sampled_from([None, True, False]),
    indent=st.integers(2, 6),
    ending=st.sampled_from(["\n", "", "\n\n", "\n# end", "\n\n  # end\n"]),
    line_break=st.sampled_from(["\n", "\r\n"]),
    start=st.booleans(),
)
def test_any_file_that_a_program_writes(names, extra, others, style, indent, ending, line_break, start):
    """Whatever a YAML library writes, in all of its styles: the three promises hold, or the file is refused and unchanged."""
    document = {**dict.fromkeys(others, extra), "scrape_configs": [{"job_name": name, "x": extra} for name in names]}
    text = yaml.safe_dump(
        document, default_flow_style=style, indent=indent, allow_unicode=True, explicit_start=start, sort_keys=False
    )
    check((text.rstrip("\n") + ending).replace("\n", line_break))


@given(st.text("abc:-[]{}#\n \r\t'\"&*!|>%@`,?~é\u2028\x85", max_size=60))
def test_any_text_is_kept_or_refused(text):
    """Text of any kind: it is refused, or the three promises hold."""
    try:
        check(f"global: {{}}\n{text}")
    except NotEditableError:
        return


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("global: [", "not YAML (line"),
        ("global: {}\n---\nglobal: {}\n", "several YAML documents"),
        ("- a\n", "not a configuration of Prometheus"),
        ("just words\n", "not a configuration of Prometheus"),
        ("apiVersion: v1\nkind: Config\n", "not a configuration of Prometheus"),
        ("scrape_configs: []\nscrape_configs: []\n", "scrape_configs twice"),
        ("scrape_configs: null\n", "by hand"),
        ("global: &a []\nscrape_configs: *a\n", "by hand"),
        ("? scrape_configs\n: - job_name: a\n  - job_name: b\n", "by hand"),
        ("scrape_configs: {{ jobs }}\n", "not YAML (line"),
        ("scrape_configs: {% jobs %}\n", "not YAML"),
        ("global:\n  x: 1\n...\n", "by hand"),
        ("global: {}\rscrape_configs: []\r", "line breaks"),
        ("[" * 300, "nested more than"),
        ("global: " + "[" * 300 + "]" * 300, "nested more than"),
        ("global: {}\n# BEGIN verl-otel\n", "damaged"),
        ("global: {}\n# END verl-otel\n# BEGIN verl-otel\n", "damaged"),
    ],
)
def test_what_cannot_be_edited_is_refused_with_the_reason(text, why):
    with pytest.raises(NotEditableError) as caught:
        block.add_sources(text, [SOURCE])
    assert why in str(caught.value)


def test_a_job_of_the_user_that_has_the_source_is_enough():
    """A job that was added by hand after older instructions is not scraped twice."""
    text = f'scrape_configs:\n- job_name: verl\n  file_sd_configs: [{{files: ["{SOURCE}"]}}]\n'
    assert block.add_sources(text, [SOURCE]) == text


def test_what_a_user_has_changed_in_the_job_is_written_again():
    """Between the marks the text is ours: a damaged job is replaced."""
    added = block.add_sources(FILES["jobs-1"], [SOURCE])
    damaged = added.replace("sample_limit: 50000", "sample_limit: x")
    assert block.add_sources(damaged, [SOURCE]) == added


def test_a_key_that_the_user_adds_later_takes_the_job(tmp_path):
    """In a file without jobs ``scrape_configs`` is in the block; when the user writes the key, the job moves below it."""
    added = block.add_sources(FILES["no-jobs"], [SOURCE])
    later = added + "scrape_configs:\n- job_name: new\n"
    moved = block.add_sources(later, [SOURCE])
    assert [each["job_name"] for each in yaml.safe_load(moved)["scrape_configs"]] == ["verl-otel", "new"]
    assert block.remove_sources(moved) == FILES["no-jobs"] + "scrape_configs:\n- job_name: new\n"


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 11))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 5000))
MERGES = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 11)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [*a]\nscrape_configs: []\n", "contains itself"),
        ("a: &a {b: {c: *a}}\nscrape_configs: []\n", "contains itself"),
        (f"{BOMB}scrape_configs: []\n", "aliases are too many"),
        (f"{CHAIN}scrape_configs: []\n", "aliases are too many"),
        (f"{MERGES}scrape_configs: []\n", "aliases are too many"),
    ],
    ids=["self", "self below", "bomb", "chain", "merges"],
)
def test_aliases_without_an_end_are_refused(text, reason):
    """The file may be one of another user, and the trainer reads it."""
    with pytest.raises(NotEditableError, match=reason):
        block.add_sources(text, [SOURCE])


def test_aliases_that_are_used_as_people_do_are_kept():
    """Anchors of relabelling rules that several jobs share."""
    check(
        "x: &rules [{source_labels: [a], target_label: b}]\nscrape_configs:\n"
        + "".join(f"- {{job_name: j{n}, relabel_configs: *rules}}\n" for n in range(500))
        + "global: {}\n"
    )


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
    pattern = block.make_pattern(folder)
    assert re.fullmatch(r"[^*]*(\*[^/]*)?\.(json|yml|yaml|JSON|YML|YAML)", pattern)
    assert go_matches(pattern, f"{folder}/r1.json")
    assert not go_matches(pattern, f"{folder}/deeper/r1.json")
    text = block.add_sources("scrape_configs: []\n", [pattern])
    assert block.read_sources(text) == [pattern]
    assert block.remove_sources(text, [pattern]) == "scrape_configs: []\n"
