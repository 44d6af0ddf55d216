# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A real GPU of this machine, where there is one: what NVML says through us, and what it says through ``nvidia-smi``."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from verl_otel.analysis import reader
from verl_otel.integrations.gpu.allocator import AllocatorCollector
from verl_otel.integrations.gpu.collector import GpuCollector
from verl_otel.semconv.metric_names import METRICS

pytestmark = pytest.mark.gpu
FIELDS = "uuid,memory.total,power.draw,temperature.gpu"


@pytest.fixture(scope="module")
def smi():
    """What ``nvidia-smi`` says of each GPU, by its UUID."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    if shutil.which("nvidia-smi") is None:
        pytest.skip("this machine has no NVIDIA driver")
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not done.stdout.strip():
        pytest.skip(f"nvidia-smi finds no GPU: {done.stderr.strip() or done.stdout.strip()}")
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.strip().splitlines()]
    return {row[0]: row[1:] for row in rows}


@pytest.fixture
def source():
    made = GpuCollector()
    yield made
    made.close()


def test_real_gpus_are_those_of_nvidia_smi(smi, source, place, values, wait_for):
    """The same devices, the same memory, and power and temperature as near as moments apart can be; the load is a share."""

    def read():
        found = values(source.read(place))
        return {key[1] for key in found if key[0] == "hw.gpu.memory.limit"} >= set(smi) and found

    found = wait_for(read, 60)
    for identity, (total, power, degrees) in smi.items():
        assert found["hw.gpu.memory.limit", identity] / 2**20 == pytest.approx(float(total), rel=0.02)
        assert 0 <= found.get(("hw.gpu.utilization", identity), 0) <= 1
        for metric, text, tolerance in (
            (("hw.power", identity), power, 100),
            (("hw.temperature", identity, "gpu"), degrees, 15),
        ):
            if text.replace(".", "").isdigit():
                assert found[metric] == pytest.approx(float(text), abs=tolerance), metric
        print(identity, {key[0]: value for key, value in found.items() if key[1] == identity})


def test_reading_a_real_gpu_is_cheap_and_leaves_nothing(smi, source, place, wait_for):
    """A collection of all GPUs takes a small part of the patience that there is with one; threads are gone after it."""
    import threading

    wait_for(lambda: source.read(place), 60)
    before = threading.active_count()
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        source.read(place)
        seconds.append(time.perf_counter() - start)
    print(f"{len(smi)} GPUs: {sorted(seconds)[10] * 1e3:.2f} ms a collection, the longest {max(seconds) * 1e3:.2f} ms")
    assert sorted(seconds)[10] < 0.5 * len(smi)
    assert threading.active_count() == before


LOOP = """
import time, torch, verl_otel

weights = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(20):
            weights @ weights
        torch.cuda.synchronize()

@verl_otel.llm
def generate():
    work(0.6)

@verl_otel.tool("search")
def search():
    time.sleep(0.8)

@verl_otel.update("actor")
def update():
    work(0.4)

for number in range(1, 6):
    with verl_otel.step(number):
        with verl_otel.phase("gen"), verl_otel.trajectory("prompt", number):
            generate()
            search()
        with verl_otel.phase("update_actor"):
            update()
"""


def test_the_gpu_of_a_loop_without_ray_is_found_and_its_time_accounted_for(smi, tmp_path):
    """PyTorch's memory says which GPU it is; LLM calls and updates used it, and it was idle for the tools, as nvidia-smi saw, too."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch cannot use the GPU")
    environ = {**os.environ, "VERL_OTEL_ENABLED": "1", "VERL_OTEL_RUN_DIR": str(tmp_path), "VERL_OTEL_RUN_ID": "loop"}
    watch = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "50"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watcher:
        subprocess.run([sys.executable, "-c", LOOP], check=True, env=environ)
        watcher.terminate()
        seen = [float(line) for line in watcher.stdout.read().split() if line.strip().isdigit()]
    run = reader.read([tmp_path / "loop"])[0]
    (gpu,) = run.devices
    spent = {cause: nanoseconds / 1e9 for cause, nanoseconds in gpu.nanoseconds.items()}
    print(spent, f"nvidia-smi: {sum(value > 0 for value in seen) / max(1, len(seen)):.0%} of {len(seen)} samples busy")
    owners = {dict(series.labels)["hw.id"] for series in run.series if series.name == "verl.gpu.owner"}
    assert run.has_gpu
    assert owners <= set(smi)
    assert owners
    assert spent["tool_wait"] == pytest.approx(5 * 0.8, rel=0.1)
    assert spent["train"] == pytest.approx(5 * 0.4, rel=0.3)
    assert spent["rollout"] == pytest.approx(5 * 0.6, rel=0.5), "the first call loads libraries"


def test_energy_of_a_real_gpu_grows(smi, source, place, values, wait_for):
    """The counter begins at 0 and grows with time, where the model has one."""
    found = wait_for(lambda: values(source.read(place)), 60)
    known = [key for key in found if key[0] == "hw.energy"]
    if not known:
        pytest.skip("this model does not count energy")
    wait_for(lambda: values(source.read(place))[known[0]] > found[known[0]], 30)


def test_every_value_of_a_real_gpu_is_in_the_catalogue(smi, source, place, wait_for):
    """Names and labels are those of the rows, in their order."""
    for metric, labels, _ in wait_for(lambda: source.read(place), 60):
        names = [name for name, _ in labels]
        assert names == [name for name in METRICS[metric].labels if name in names], metric


def test_the_real_allocator_is_asked_without_a_wait(smi, place, values):
    """Bytes that a tensor takes are said, and a device that nobody uses is not begun."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch cannot use the GPU")
    code = (
        "import torch; from verl_otel.integrations.gpu.allocator import AllocatorCollector as A; a = A();"
        "assert a.read(None) == []; assert not torch.cuda.is_initialized();"
        "t = torch.empty(1 << 20, dtype=torch.uint8, device='cuda'); found = dict((m, v) for m, _, v in a.read(None));"
        "assert found['verl.gpu.memory.used'] == torch.cuda.memory_allocated() >= 1 << 20;"
        "assert found['verl.gpu.memory.reserved'] == torch.cuda.memory_reserved()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert AllocatorCollector.once_per_node is False
