# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A server in a process of its own that stands for a Collector: it takes everything and counts the bytes."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.processes import TOP


class Sink:
    """A running server.

    Example:
        with Sink() as sink:
            send(sink.url)
            print(sink.count_bytes(folder))
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.sink"]
        self._process = subprocess.Popen(command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __enter__(self) -> Sink:
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.close()

    def count_bytes(self, folder: str) -> int:
        """Return the bytes of spans that have come in, or were written to files below a folder."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url, timeout=10) as answer:
            received = int(answer.read())
        return received + sum(path.stat().st_size for path in Path(folder).rglob("traces-*"))

    def close(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as a Collector keeps them
    received = 0

    def do_POST(self) -> None:
        """Take a request of any kind."""
        length = int(self.headers["Content-Length"])
        self.rfile.read(length)
        _Handler.received += length
        protobuf = "protobuf" in self.headers.get("Content-Type", "")
        self._answer(b"" if protobuf else b"{}", self.headers.get("Content-Type", "application/json"))

    def do_GET(self) -> None:
        """Say how many bytes came in."""
        self._answer(str(self.received).encode(), "text/plain")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that went away."""


def main() -> None:
    """Serve on a free port of the loopback, which is printed, until the other end of the standard input is closed."""
    server = _Server(("127.0.0.1", 0), _Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
