# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes on one machine: each a network namespace with a loopback and a name of its own, and a cable to this machine."""

import ctypes
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("ip", "unshare", "sh", "sleep", "hostname")
SECONDS: Final = 3600
"""A node is gone after that, whatever became of the test."""


def find_hindrance():
    """Return why there can be no nodes here; empty if there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid():
        return "network namespaces with a cable between them need root"
    name = f"vt{os.getpid()}"
    for command in (["unshare", "--net", "--uts", "true"], ["ip", "link", "add", name, "type", "veth"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{' '.join(command)}: {done.stderr.strip()}"
    subprocess.run(["ip", "link", "del", name], check=True)
    return ""


class Node:
    """A node.

    Args:
        name: Its host name.
        number: Which of the nodes of this process it is, from 0.
    """

    def __init__(self, name, number):
        # 198.18/15 is for tests of networks, so nobody has a route to it.
        base = f"198.18.{os.getpid() % 250}"
        self.outside, self.inside = (f"{base}.{4 * number + end}" for end in (1, 2))
        self.cable = f"vt{os.getpid()}n{number}"
        words = f"hostname {name} && ip link set lo up && echo up && exec sleep {SECONDS}"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", words], stdout=subprocess.PIPE, text=True
        )
        try:
            self._connect(self.cable, self.inside)
        except BaseException:
            self.close()
            raise

    def _connect(self, cable, inside):
        assert self._holder.stdout.readline() == "up\n"
        pid = str(self._holder.pid)
        call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
        call("ip", "address", "add", f"{self.outside}/30", "dev", cable)
        call("ip", "link", "set", cable, "up")
        # The nodes reach each other over this machine.
        Path(f"/proc/sys/net/ipv4/conf/{cable}/forwarding").write_text("1")
        self.run(call, "ip", "address", "add", f"{inside}/30", "dev", "eth0")
        self.run(call, "ip", "link", "set", "eth0", "up")
        self.run(call, "ip", "route", "add", "default", "via", self.outside)

    def run(self, function, *arguments, **keywords):
        """Call a function on this node: what it connects to and what it starts is there. Returns what it returns."""
        outcome = {}

        def work():
            try:
                for kind in ("net", "uts"):
                    enter(f"/proc/{self._holder.pid}/ns/{kind}")
                outcome["value"] = function(*arguments, **keywords)
            except BaseException as error:
                outcome["error"] = error

        # Namespaces are a thread's own; this one has no other use, so nobody has to come back.
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if "error" in outcome:
            raise outcome["error"]
        return outcome["value"]

    def close(self):
        """Take it away, with its cable; end first what runs there."""
        self._holder.kill()
        self._holder.communicate()
        # The kernel removes it some time after the last process of the node has ended.
        subprocess.run(["ip", "link", "del", self.cable], capture_output=True, check=False)


def enter(path):
    """Put this thread into a namespace."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if library.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(descriptor)


def call(*words):
    subprocess.run(words, check=True, capture_output=True)
