# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""More than ten thousand damaged lines, seeded: every command reads every run, and prints no traceback."""

import contextlib
import io
import json
import random

import pytest

from tests.builders import stories
from tests.builders.damage import replace_value
from verl_otel import cli

pytestmark = pytest.mark.attack

RUNS, LINES = 100, 130
"""Damaged runs, and damaged lines in each: 12,900."""
VALUES = [
    None, True, False, 0, -1, 1.5, 10**400, 1 << 62, 1 << 64, float("inf"), float("nan"), "", "x", "NaN", "9" * 5000, "\x00", "\ud800",
    [], {}, [[]], [{}], {"a": {}}, "verl.step", "1e400",
]  # fmt: skip
RAW = [
    b"[" * 5000, b"{" * 3000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"9" * 5000, b"\x00" * 100, b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00",
    b"", b"null", b"3", b'"x"', b"[]", b"{}", b"{}\r", b"\r", b'{"resourceSpans":null}', b'{"resourceSpans":[null]}', b"\xed\xa0\x80",
]  # fmt: skip


def mutate(draw, line):
    """Return a line with damage of one of six kinds."""
    kind = draw.choice(["value", "value", "missing", "flip", "cut", "raw"])
    if kind == "raw":
        return draw.choice(RAW)
    if kind in ("value", "missing"):
        document = json.loads(line)
        return replace_value(draw, document, None if kind == "missing" else VALUES)
    data = bytearray(line)
    if kind == "cut":
        return bytes(data[: draw.randrange(len(data))])
    for _ in range(draw.randrange(1, 6)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Lines of each kind of file, as a training writes them."""
    story = stories.training(tmp_path_factory.mktemp("lines") / "r1")
    story.processes[0].still_open("verl.step", 25, 40, verl__step__number=3)
    folder = story.write()
    event = {
        "kind": "stall",
        "time_ns": stories.at(3),
        "text": "it hangs",
        "detail": {"stacks": {"1": "a"}, "key": ["a", "b", "c"]},
    }
    kinds = {
        kind: [line for path in sorted(folder.glob(f"{kind}-*")) for line in path.read_bytes().splitlines()]
        for kind in ("traces", "metrics", "open")
    }
    manifest = folder / "run.json"
    record = (
        manifest.read_bytes()
        if manifest.exists()
        else b'{"run_id": "r1", "attempts": [{"attempt": 1, "started": 1.0}]}'
    )
    return {**kinds, "events": [json.dumps(event).encode()], "run": [record]}


def write(folder, originals, draw):
    """Write a run of whole and damaged lines; return how many are damaged."""
    damaged = 0
    for kind, lines in originals.items():
        if kind == "run":
            (folder / "run.json").write_bytes(mutate(draw, json.dumps(json.loads(lines[0])).encode()))
            damaged += 1
            continue
        name = "events.jsonl" if kind == "events" else f"{kind}-x-y-1.jsonl"
        chosen = list(lines)
        for _ in range(LINES // 4):
            chosen.insert(draw.randrange(len(chosen) + 1), mutate(draw, draw.choice(lines)))
            damaged += 1
        (folder / name).write_bytes(draw.choice([b"\n", b"\n", b"\r\n"]).join(chosen) + draw.choice([b"\n", b""]))
    return damaged


@pytest.mark.parametrize("seed", range(RUNS))
def test_every_command_reads_a_damaged_run(tmp_path, originals, seed):
    """`report`, `explain` and `compare`, as text, JSON and page: they end with code 0 and tell what they could read."""
    draw = random.Random(seed)
    folder = tmp_path / "r1"
    folder.mkdir()
    assert write(folder, originals, draw) >= 4 * (LINES // 4)
    commands = (
        ["report", folder], ["report", folder, "--json"], ["explain", folder], ["explain", folder, "--json"],
        ["report", folder, "--html", tmp_path / "page.html"], ["compare", folder, folder],
    )  # fmt: skip
    for command in commands:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main([str(each) for each in command])
        assert code == 0, (command, err.getvalue()[-2000:])
        assert "Traceback" not in err.getvalue()


@pytest.mark.parametrize("seed", range(RUNS))
def test_discover_reads_damaged_targets(tmp_path, seed):
    """Files of targets with damage of every kind: `discover` lists what is left, with a documented exit code."""
    draw = random.Random(1000 + seed)
    folder = tmp_path / "targets"
    folder.mkdir()
    labels = {"instance": "r/x-0", "verl_run_id": "r", "__meta_verl_otel_pid": "1", "__meta_verl_otel_host": "h"}
    entry = {"targets": ["127.0.0.1:9"], "labels": labels}
    for number in range(5):
        (folder / f"{number}.json").write_bytes(mutate(draw, json.dumps([entry, entry]).encode()))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["discover", "--local", "--run-dir", str(tmp_path), "--timeout", "0.2"])
    assert code == 1
    assert "Traceback" not in err.getvalue()
