# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The host from what the kernel prints: of a node with disks and InfiniBand, of a container, of a kernel that says less."""

import os
import resource

import psutil
import pytest

from verl_otel.semconv.metric_names import METRICS
from verl_otel.system.collectors import NodeScope
from verl_otel.system.node import Bound, NodeCollector, ProcessCollector, read_bound

GIB = 1 << 30
STAT = "cpu  1000 200 300 40000 500 10 20 30 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n"
MEMORY = "MemTotal:  1048576 kB\nMemFree:    262144 kB\nMemAvailable: 786432 kB\nHugePages_Total: 0\n"
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
  eth0:1000 7 0 0 0 0 0 0 2000 8 0 0 0 0 0 0
 veth1: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0
"""
DISKS = """\
 259       0 nvme0n1 100 0 800 5 50 0 400 9 0 5 14
 259       1 nvme0n1p1 90 0 700 5 40 0 300 9 0 5 14
   7       0 loop0 1 0 8 0 0 0 0 0 0 0 0
 253       0 dm-0 1 0 8 0 1 0 8 0 0 0 0
"""


COUNTERS = "sys/class/infiniband/mlx5_0/ports/1/counters"


class Root:
    """A kernel that prints what it is told."""

    def __init__(self, path):
        self.path = path
        self.write("proc/stat", STAT)
        self.write("proc/meminfo", MEMORY)
        self.write("proc/diskstats", DISKS)
        self.write("proc/net/dev", NET)
        self.write("proc/self/cgroup", "0::/\n")
        for name in ("class/net/eth0/device", "class/net/veth1", "block/nvme0n1/device", "block/loop0", "block/dm-0"):
            (path / "sys" / name).mkdir(parents=True)

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))

    def bound(self, folder, limit, usage=0, cache=0):
        self.write(f"sys/fs/cgroup/{folder}/memory.max", limit)
        self.write(f"sys/fs/cgroup/{folder}/memory.current", usage)
        self.write(f"sys/fs/cgroup/{folder}/memory.stat", f"anon 1\ninactive_file {cache}\n")


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path)


@pytest.fixture
def source(root):
    return NodeCollector(root.path)


@pytest.fixture
def read(source, tmp_path):
    """Read the node: values by metric and label values."""

    def by_labels():
        values = {}
        for metric, labels, value in source.read(NodeScope(tmp_path, "n")):
            names = [name for name, _ in labels]
            assert names == [name for name in METRICS[metric].labels if name in names]
            assert metric in source.metrics
            values[(metric, *(text for _, text in labels))] = value
        return values

    return by_labels


def test_cpu_time_is_counted_from_the_first_reading(root, read):
    """Modes of the convention, nice time with the user's, interrupts with the system's; seconds, not ticks."""
    assert {value for key, value in read().items() if key[0] == "system.cpu.time"} == {0}
    root.write("proc/stat", "cpu  1100 300 320 40400 500 20 30 80 0 0\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert {key[1]: round(value * ticks) for key, value in read().items() if key[0] == "system.cpu.time"} == {
        "user": 200, "system": 40, "idle": 400, "iowait": 0, "steal": 50,
    }  # fmt: skip


def test_memory_adds_up_to_all_of_it(read):
    """What is used can not be taken back: shared memory, in which Ray keeps objects, is not among the caches."""
    values = {key[1]: value for key, value in read().items() if key[0] == "system.memory.usage"}
    assert values == {"used": GIB // 4, "cached": GIB // 2, "free": GIB // 4}


def test_devices_are_read_and_what_is_made_of_them_is_not(root, read):
    """Bytes of the disk and not of its partition, of the interface and not of a container's; sectors have 512 bytes."""
    read()
    root.write("proc/diskstats", DISKS.replace(" 800 ", " 802 ").replace(" 400 ", " 404 "))
    root.write("proc/net/dev", NET.replace("eth0:1000", "eth0:1500"))
    values = read()
    assert {key[1:]: value for key, value in values.items() if key[0] == "system.disk.io"} == {
        ("nvme0n1", "read"): 1024,
        ("nvme0n1", "write"): 2048,
    }
    assert {key[1:]: value for key, value in values.items() if key[0] == "system.network.io"} == {
        ("eth0", "receive"): 500,
        ("eth0", "transmit"): 0,
    }


def test_a_container_has_its_interface(root, read):
    """Where no interface is a device, all but the loopback are read."""
    (root.path / "sys/class/net/eth0/device").rmdir()
    assert {key[1] for key in read() if key[0] == "system.network.io"} == {"eth0", "veth1"}


def test_ports_of_the_fabric(root, read):
    """Four bytes for each word, errors added up by kind, and what the driver does not count left out."""
    for name in ("port_rcv_data", "port_xmit_data", "link_downed", "symbol_error", "port_rcv_errors"):
        root.write(f"{COUNTERS}/{name}", 10)
    root.write(f"{COUNTERS}/port_xmit_discards", "N/A (no PMA)")
    read()
    root.write(f"{COUNTERS}/port_rcv_data", 260)
    root.write(f"{COUNTERS}/link_downed", 11)
    root.write(f"{COUNTERS}/symbol_error", 12)
    root.write(f"{COUNTERS}/port_rcv_errors", 13)
    assert {key[1:]: value for key, value in read().items() if key[0].startswith("hw.")} == {
        ("mlx5_0/1", "network", "receive"): 1000,
        ("mlx5_0/1", "network", "transmit"): 0,
        ("mlx5_0/1", "network", "link_downed"): 1,
        ("mlx5_0/1", "network", "port"): 5,
    }


def test_what_is_left_of_the_memory_is_the_hosts(root, read):
    """Without a bound it is what the kernel calls available."""
    root.bound("", "max", GIB)
    values = read()
    assert (values["verl.host.memory.limit",], values["verl.host.memory.available",]) == (GIB, 3 * GIB // 4)


@pytest.mark.parametrize(
    ("usage", "cache", "available"),
    [(GIB // 4, 0, GIB // 4), (GIB // 2, GIB // 8, GIB // 8), (GIB // 2, 0, 0), (GIB, 0, 0)],
)
def test_what_is_left_of_the_memory_is_the_containers(root, read, usage, cache, available):
    """In a container it is what its bound leaves, and the caches that the kernel gives up are not used."""
    root.bound("", GIB // 2, usage, cache)
    values = read()
    assert (values["verl.host.memory.limit",], values["verl.host.memory.available",]) == (GIB // 2, available)


def test_the_bound_that_is_nearest_counts(root):
    """Of a group and those that it is in, the one that leaves least."""
    root.write("proc/self/cgroup", "0::/slurm/job_1/step_0\n")
    root.bound("slurm/job_1/step_0", "max", 100)
    root.bound("slurm/job_1", 1000, 900)
    root.bound("slurm", 5000, 4950)
    assert read_bound(root.path) == Bound(5000, 4950)


def test_a_bound_of_the_older_control_groups(root):
    """Version 1 has other names, and a number for no bound."""
    folder = "sys/fs/cgroup/memory/job"
    root.write("proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/job\n1:name=systemd:/y\n")
    for name, value in (("limit_in_bytes", 4096), ("usage_in_bytes", 1024)):
        root.write(f"{folder}/memory.{name}", value)
    root.write(f"{folder}/memory.stat", "total_inactive_file 24\n")
    assert read_bound(root.path) == Bound(4096, 1000)
    root.write(f"{folder}/memory.limit_in_bytes", 9223372036854771712)
    assert read_bound(root.path) is None


@pytest.mark.parametrize("name", ["proc/stat", "proc/meminfo", "proc/net/dev", "proc/diskstats", "proc/self/cgroup"])
@pytest.mark.parametrize("text", ["", "nonsense\n", None])
def test_a_kernel_that_says_less_costs_what_it_does_not_say(root, read, name, text):
    """A file that is missing, empty or something else leaves the rest readable."""
    if text is None:
        (root.path / name).unlink()
    else:
        root.write(name, text)
    assert len({key[0] for key in read()}) >= 3


def test_the_next_reader_starts_at_zero(root, read, source):
    """A source that is closed forgets where the counters were."""
    read()
    root.write("proc/net/dev", NET.replace("eth0:1000", "eth0:1500"))
    source.close()
    assert read()["system.network.io", "eth0", "receive"] == 0


def test_the_real_host_agrees_with_another_reader(tmp_path):
    """Memory and the sum of the network are what psutil says, as near as moments apart can be."""
    values = {}
    for metric, labels, value in NodeCollector().read(NodeScope(tmp_path, "n")):
        values[(metric, *(text for _, text in labels))] = value
    total = sum(value for key, value in values.items() if key[0] == "system.memory.usage")
    assert total == psutil.virtual_memory().total
    used = psutil.virtual_memory().total - psutil.virtual_memory().available
    assert values["system.memory.usage", "used"] == pytest.approx(used, rel=0.1)
    assert {key[1] for key in values if key[0] == "system.network.io"} <= set(psutil.net_io_counters(pernic=True))


@pytest.mark.full
def test_this_process_agrees_with_another_reader(tmp_path):
    """CPU time and resident memory are those that the kernel says elsewhere."""
    values = {
        (metric, *(text for _, text in labels)): value
        for metric, labels, value in ProcessCollector().read(NodeScope(tmp_path, "n"))
    }
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert values["process.cpu.time", "user"] == pytest.approx(usage.ru_utime, abs=0.5)
    assert values["process.cpu.time", "system"] == pytest.approx(usage.ru_stime, abs=0.5)
    assert values["process.memory.usage",] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
