# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Entries of files and notes that others have written: what of them reaches Prometheus."""

import json

import pytest

from verl_otel.session import prometheus_targets, target_entries

HOSTILE = {
    "__address__": "10.0.0.1:22",
    "__scheme__": "https",
    "__metrics_path__": "/admin",
    "__param_target": "x",
    "__scrape_interval__": "1ms",
    "__scrape_timeout__": "1ms",
    "__meta_kubernetes_pod_name": "x",
    "__meta_verl_otel_other": "x",
    "___": "x",
    "": "x",
    "a b": "x",
    "a\n": "x",
    "0a": "x",
    "ä": "x",
    "l" * 200: "x",
}
GOOD = {"job": "verl", "instance": "r1/x", "_own": "y", "__meta_verl_otel_pid": "7", "__meta_verl_otel_gone": "9"}


def test_labels_that_configure_a_scrape_are_left_out():
    """Labels that begin with ``__``, but for our own, and names that Prometheus does not have, are left out; the others stay."""
    entry = target_entries.sanitize({"targets": ["a:1"], "labels": {**HOSTILE, **GOOD}})
    assert entry == {"targets": ["a:1"], "labels": GOOD}


def test_values_are_bounded_text():
    """A value is cut to a length that Prometheus takes, and can be written as UTF-8; there are not too many labels."""
    entry = target_entries.sanitize({"targets": ["a:1"], "labels": {"a": "x" * 100_000, "b": "\ud800", "c": "ü\n"}})
    assert entry["labels"] == {"a": "x" * target_entries.MAX_VALUE, "b": "?", "c": "ü\n"}
    many = target_entries.sanitize({"targets": ["a:1"], "labels": {f"l{number}": "" for number in range(1_000)}})
    assert len(many["labels"]) == target_entries.MAX_LABELS


@pytest.mark.parametrize(
    "address", ["a:1", "node_7.example-1.com:9000", "127.0.0.1:65535", "[::1]:80", "[fe80::1%eth0]:80"]
)
def test_an_address_is_kept(address):
    """Names, IPv4 and IPv6 addresses with a port are passed on."""
    assert target_entries.sanitize({"targets": [address]}) == {"targets": [address], "labels": {}}


@pytest.mark.parametrize(
    "address",
    [
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:1/metrics",
        "http://a:1",
        "u:p@a:1",
        "a b:1",
        "a:1\n",
        "::1:80",
        "[a]x:1",
        "a:\uff11",
        "-a:1",
        "a" * 300 + ":1",
        "a\x1b[2J:1",
    ],
)
def test_what_is_no_address_is_left_out(address):
    """A path, a scheme, a user, or what is no port, is no address; other addresses of the entry stay."""
    assert target_entries.sanitize({"targets": [address]}) is None
    assert target_entries.sanitize({"targets": [address, "b:1"]}) == {"targets": ["b:1"], "labels": {}}


@pytest.mark.parametrize(
    "entry",
    [
        None,
        3,
        [],
        "a:1",
        {},
        {"targets": "a:1"},
        {"targets": [1]},
        {"targets": ["a:1"], "labels": None},
        {"targets": ["a:1"], "labels": {"a": 1}},
    ],
)
def test_what_is_no_entry_is_left_out(entry):
    """Of what is no entry nothing is passed on."""
    assert target_entries.sanitize(entry) is None


def test_a_file_of_others_is_cleaned(tmp_path):
    """Who reads a folder of targets gets clean entries."""
    (tmp_path / "r1.json").write_text(json.dumps([{"targets": ["a:1"], "labels": {**HOSTILE, "job": "verl"}}]))
    assert prometheus_targets.read_folder(tmp_path) == [{"targets": ["a:1"], "labels": {"job": "verl"}}]
