# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A real Slurm: a controller, and a daemon on each of two nodes with networks of their own. All files are in one folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.builders.environments import inherit
from tests.collector.nodes import Node, find_hindrance
from tests.end_to_end import bed_run
from tests.ray.ray_job import find_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "munged", "unshare")
GPUS = 8
CONFIGURATION = """
ClusterName=bed
SlurmctldHost={host}({head})
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskProlog={folder}/prolog.sh
SelectType=select/cons_tres
GresTypes=gpu
MpiDefault=none
JobRequeue=1
KillWait=30
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=5
NodeName=node-a NodeHostname={host} NodeAddr={head} Port={port_a} CPUs=16 Gres=gpu:{gpus}
NodeName=node-b NodeHostname=node-b NodeAddr={node} Port={port_b} CPUs=16 Gres=gpu:{gpus}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE
"""
PROLOG = """#!/bin/sh
# What is printed becomes a variable of the task. The nodes share their disk, which those of a cluster do not.
case "$SLURMD_NODENAME" in node-b) name=eth0 ;; *) name={cable} ;; esac
echo export GLOO_SOCKET_IFNAME=$name
mkdir -p {folder}/tmp-$SLURMD_NODENAME
echo export TMPDIR={folder}/tmp-$SLURMD_NODENAME
"""


def find_missing():
    """Return why there can be no Slurm here; empty if there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurmctld, slurmd, slurm-client, munge)"
    return find_hindrance()


def write_files(folder, node):
    """Write the configuration of a cluster of this machine, which is ``node-a``, and ``node-b``."""
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    ports = {name: find_port() for name in ("controller", "port_a", "port_b")}
    values = {"host": socket.gethostname(), "head": node.outside, "node": node.inside, "folder": folder, "gpus": GPUS}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**values, **ports))
    for number in range(GPUS):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"NodeName=node-a,node-b Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "hosts").write_text(
        f"127.0.0.1 localhost\n{node.outside} node-a {socket.gethostname()}\n{node.inside} node-b\n"
    )
    (folder / "prolog.sh").write_text(PROLOG.format(cable=node.cable, folder=folder))
    (folder / "prolog.sh").chmod(0o755)


class Slurm:
    """The running Slurm.

    Args:
        folder: Its folder; short, and not in one that others can write.
        node: The second node.
    """

    def __init__(self, folder, node):
        self.folder, self.node = folder, node
        self.environ = inherit("OTEL", "VERL_", "SLURM", "SBATCH", "PYTEST", "RAY_") | {
            "SLURM_CONF": str(folder / "slurm.conf")
        }
        self._processes = []

    def start(self):
        """Start all daemons, and wait until both nodes are idle."""
        at = self.folder
        files = [f"--{name}={at}/munge.{end}" for name, end in {
            "key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed",
        }.items()]  # fmt: skip
        self._spawn("munged", "--foreground", *files)
        self.await_true((at / "munge.socket").exists, "munged")
        self._spawn("slurmctld", "-D")
        for name, run in {"node-a": lambda function, *words: function(*words), "node-b": self.node.run}.items():
            # With a view of its own of the file that names the nodes.
            start = f"mount --bind {at}/hosts /etc/hosts && exec slurmd -D -N {name}"
            run(self._spawn, "unshare", "--mount", "sh", "-c", start)
        self.await_true(lambda: self.call("sinfo", "--noheader", "--format=%D %t").split() == ["2", "idle"], "nodes")

    def _spawn(self, *words):
        out = (self.folder / f"{words[0]}-{len(self._processes)}.out").open("wb")
        with out:
            self._processes.append(
                subprocess.Popen(words, env=self.environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            )

    def await_true(self, condition, what, seconds=25):
        """Wait for a condition; fail with the logs of the daemons."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = [path.read_text("utf-8", "replace")[-2000:] for path in self.folder.glob("*.log")]
                raise AssertionError(f"{what} not within {seconds} s:\n" + "\n".join(logs))
            time.sleep(0.2)

    def call(self, *words, cwd=None, environ=None):
        """Return what a command of Slurm prints."""
        environ = {**self.environ, **(environ or {})}
        done = subprocess.run(words, env=environ, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, *words, cwd, **environ):
        """Return the id of a job that was submitted from a folder, which has its log ``job.log``."""
        words = ["sbatch", "--parsable", "--output=job.log", *map(str, words)]
        return self.call(*words, cwd=cwd, environ={name: str(value) for name, value in environ.items()})

    def show(self, job):
        """Return the fields of a job."""
        words = self.call("scontrol", "show", "--oneliner", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def stop(self):
        for process in reversed(self._processes):
            bed_run.end(process)


@contextlib.contextmanager
def start(folder):
    """Start Slurm on two nodes; yields it."""
    node = Node("node-b", 0)
    slurm = Slurm(Path(folder), node)
    try:
        slurm.folder.chmod(0o755)  # munged asks for a socket that all can reach
        write_files(slurm.folder, node)
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        node.close()
