# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Machines, containers and processes with the same names have different identities."""

import os

from verl_otel._internal import machine
from verl_otel._internal.safe_files import process_file_name
from verl_otel.system import procfs


def test_two_nodes_with_one_host_name_are_two(monkeypatch, tmp_path):
    """Their kernels were booted apart, though the pid namespace has the same number in both: node, instance and files differ."""
    names = set()
    for node in ("a", "b"):
        (tmp_path / node).write_text(f"boot of {node}\n")
        monkeypatch.setattr(machine, "BOOT_ID", str(tmp_path / node))
        names |= {procfs.read_node_name(), process_file_name("trainer", "localhost")}
        assert process_file_name("trainer", "localhost") == process_file_name("trainer", "localhost")
    assert len(names) == 4


def test_a_system_that_says_nothing_has_names_too(monkeypatch):
    """Without /proc the host and the process id remain."""

    def refuse(path):
        raise OSError

    monkeypatch.setattr(machine, "_read", lambda path: "")
    monkeypatch.setattr(os, "readlink", refuse)
    assert (machine.identify_machine(), machine.identify_process()) == ("0", "0")
