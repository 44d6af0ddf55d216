# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read the files of a run's folder, with nothing but JSON; and a disk that becomes full."""

import errno
import json
import os


def read_lines(folder, kind):
    """Return the objects of all files of a kind, the rotated ones first, and how many lines are broken."""
    found, broken = [], 0
    paths = folder.glob(f"{kind}-*.jsonl")
    for path in sorted(paths, key=lambda each: (each.name.count("."), each.name), reverse=True):
        for line in path.read_bytes().split(b"\n"):
            try:
                found += [json.loads(line)] if line else []
            except ValueError:
                broken += 1
    return found, broken


def spans(folder, kind="traces"):
    """Return the span objects in the order of their lines; of those that are open, what is left of all lines."""
    lines, _ = read_lines(folder, kind)
    found = []
    for line in lines:
        found += [span for group in line["resourceSpans"] for scope in group["scopeSpans"] for span in scope["spans"]]
        if kind == "open":
            found = [
                span
                for span in {span["spanId"]: span for span in found}.values()
                if span["spanId"] not in line["ended"]
            ]
    return found


def span_ids(folder, kind="traces"):
    return [int(span["spanId"], 16) for span in spans(folder, kind)]


def attributes(span):
    """Return the attributes of a span object; every value as text."""
    return {pair["key"]: str(next(iter(pair["value"].values()))) for pair in span["attributes"]}


def values(folder):
    """Return name and value of every gauge point in the order of the lines."""
    lines, _ = read_lines(folder, "metrics")
    metrics = [metric for line in lines for metric in line["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]]
    return [
        (each["name"], point["asDouble"])
        for each in metrics
        if "gauge" in each
        for point in each["gauge"]["dataPoints"]
    ]


class FullDisk:
    """Stands for `os.write` on one file: takes ``room`` bytes, at most ``piece`` at a time, and fails after that."""

    def __init__(self, monkeypatch, room=1 << 30, piece=1 << 30):
        self.room, self.piece, self.error = room, piece, errno.ENOSPC
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, handle, data):
        if not self.room:
            raise OSError(self.error, os.strerror(self.error))
        written = self._write(handle, data[: min(self.room, self.piece)])
        self.room -= written
        return written
