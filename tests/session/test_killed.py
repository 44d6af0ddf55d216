# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a process leaves that is killed, which cannot write anything any more."""

import os
import signal

import pytest

pytestmark = pytest.mark.full

LEFT_SECONDS = 10
"""Age in seconds that the open spans in the files may have, as docs/explanation/guarantees.md promises it."""

BUSY = """
import sys, time
import verl_otel

held = []

def begin(name):
    held.append(verl_otel.tool(name))
    held[-1].__enter__()

for number in range({number}):
    begin(f"t{{number}}")
for line in sys.stdin:
    begin(line.strip())
    held[0].set_attribute("word", line.strip())
    print(line.strip(), flush=True)
"""


@pytest.mark.parametrize("number", [3, 400], ids=["few", "many"])
def test_what_a_killed_process_leaves_is_at_most_ten_seconds_old(spawn, files, tmp_path, wait_for, number):
    """Of few and of many open spans, a new one and a new attribute are in the file within ten seconds, and a kill leaves it whole."""
    process = spawn(BUSY.format(number=number), VERL_OTEL_DRAIN_INTERVAL="1")
    run = files(tmp_path / "runs" / "r1")
    wait_for(lambda: len(run.names("open")) == number)
    for word in ("first", "second"):
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{word}\n"
        wait_for(lambda word=word: f"execute_tool {word}" in run.names("open"), at_most=LEFT_SECONDS)
        wait_for(lambda word=word: run.spans("open")[0].attributes.get("word") == word, at_most=LEFT_SECONDS)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = run.spans("open")
    assert len(left) == number + 2
    assert {span.attributes["verl.open.last_child"] for span in left} == {""} | {
        f"execute_tool {name}" for name in [*(f"t{index}" for index in range(1, number)), "first", "second"]
    }
