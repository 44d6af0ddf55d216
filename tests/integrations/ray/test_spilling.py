# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What Ray's object store wrote to disk and read back, from lines as Ray's raylet logs them."""

from types import SimpleNamespace

import pytest

from verl_otel.integrations import cluster_store
from verl_otel.integrations.ray import spilling

HEAD = """\
[2026-11-28 16:50:19,923 I 27980 27980] (raylet) main.cc:283: Setting cluster ID to: db4e8ba374049f0e2091affc03156c3cce48b68cdf82760d92ac9439
[2026-11-28 16:50:19,944 I 27980 27980] (raylet) main.cc:711: Setting node ID node_id={node}
[2026-11-28 16:50:19,965 I 27980 27980] (raylet) store_runner.cc:50: Allowing the Plasma store to use up to 7.10734GB of memory.
[2026-11-28 16:50:19,966 I 27980 27990] (raylet) store.cc:573: Plasma store debug dump:\x20
Current usage: 0 / 7.10734 GB
- num bytes created total: 0
0 pending objects of total size 0MB
- objects spillable: 0
"""
AT = "[2026-11-28 16:51:0{second},195 I 27980 27980] (raylet) local_object_manager.cc:{line}: "
OWN, OTHER = (
    "3d370c6a357eec1e807682f29bf89ac327a1e35ed7cbc4105ad58791",
    "6e877df4be8bd4c42e8a67ae791ab898df9dd8e7cfb3b4d8",
)
GIB = 1 << 30


def wrote(mebibytes, rate, second=1):
    """As of Ray 2.9 to 2.60: it is repeated in the driver's output because of its mark."""
    advice = " Set RAY_verbose_spill_logs=0 to disable this message." if mebibytes < 4096 else ""
    head = AT.format(second=second, line=245)
    return f"{head}:info_message:Spilled {mebibytes} MiB, 4 objects, write throughput {rate} MiB/s.{advice}\n"


def read(mebibytes, rate, second=1):
    return f"{AT.format(second=second, line=490)}Restored {mebibytes} MiB, 3 objects, read throughput {rate} MiB/s\n"


class Raylet:
    """The log of a raylet, and what reads it."""

    def __init__(self, folder):
        self.log = folder / "raylet.1.out"
        (folder / "raylet.out").write_text(HEAD.format(node=OTHER) + wrote(9000, 100))
        self.log.write_text(HEAD.format(node=OWN))
        self.collector = spilling.SpillCollector()

    def add(self, text):
        with self.log.open("a") as file:
            file.write(text)

    def collect(self):
        assert list(self.collector.read(None)) == []


@pytest.fixture
def raylet(tmp_path, monkeypatch):
    """A node whose log is not the first one of the folder, which raylets on one machine share."""
    node = SimpleNamespace(get_logs_dir_path=lambda: str(tmp_path))
    ray = SimpleNamespace(_private=SimpleNamespace(worker=SimpleNamespace(_global_node=node)))
    monkeypatch.setitem(spilling.sys.modules, "ray", ray)
    monkeypatch.setattr(cluster_store, "is_connected", lambda: True)
    monkeypatch.setattr(cluster_store, "runtime_context", lambda: SimpleNamespace(get_node_id=lambda: OWN))
    return Raylet(tmp_path)


def found(recorded):
    return {
        (point.instrument.name.removeprefix("verl.ray.spill."), dict(point.labels)["disk.io.direction"]): point.value
        for point in recorded.points
    }


def test_what_is_written_and_read_is_counted(raylet, recorded):
    """Sums of the raylet become bytes and seconds; the newest line of a collection counts, and one without its end in the next one."""
    raylet.collect()
    raylet.add(wrote(2048, 512) + read(100, 50))
    raylet.add(read(600, 100, second=2)[:-5])
    raylet.collect()
    assert found(recorded) == {
        ("io", "write"): 2 * GIB, ("time", "write"): 4.0, ("io", "read"): 100 << 20, ("time", "read"): 2.0,
    }  # fmt: skip
    raylet.add(read(600, 100, second=2)[-5:] + wrote(4096, 512, second=3))
    raylet.collect()
    assert found(recorded) == {
        ("io", "write"): 4 * GIB, ("time", "write"): 8.0, ("io", "read"): 600 << 20, ("time", "read"): 6.0,
    }  # fmt: skip


def test_what_was_before_is_not_counted(raylet, recorded, monkeypatch):
    """Neither in the log when this process begins to read it, nor in the part that it does not look at."""
    raylet.add(wrote(2048, 512) + read(100, 50) + HEAD.format(node=OWN))
    raylet.collect()
    raylet.add(read(150, 50))
    raylet.collect()
    assert found(recorded) == {("io", "read"): 50 << 20, ("time", "read"): 1.0}
    monkeypatch.setattr(spilling, "MAX_BYTES", 300)
    raylet.collector.close()
    raylet.collect()
    raylet.add(wrote(8192, 512))
    raylet.collect()
    assert ("io", "write") not in found(recorded), "how much of it was before is not known"


def test_a_log_that_cannot_be_read_costs_nothing(raylet, recorded):
    """The folder of another user's cluster, or of one that was removed."""
    raylet.collect()
    raylet.log.unlink()
    raylet.collect()
    raylet.log.write_text(HEAD.format(node=OWN) + read(100, 50))
    raylet.collect()
    raylet.add(read(150, 50))
    raylet.collect()
    assert found(recorded) == {("io", "read"): 50 << 20, ("time", "read"): 1.0}


def test_a_process_that_is_not_of_a_cluster_reads_nothing(raylet, recorded, monkeypatch):
    monkeypatch.setattr(cluster_store, "is_connected", lambda: False)
    raylet.collect()
    raylet.add(wrote(2048, 512))
    raylet.collect()
    assert not recorded.points
