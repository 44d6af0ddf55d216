# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A web server on a free port of the loopback, whose answers a test gives as a function."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Call(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class HttpServer:
    """Serves while it is used as a context manager, or from `start` to `close`.

    Args:
        answer: Takes a `Call`; returns a status, or status and body: bytes, text, or what becomes JSON. None: the client gets nothing.
    """

    def __init__(self, answer):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answered = answer(Call(self.command, self.path, headers, body))
                if answered is None:
                    return
                status, content, *extra = answered if isinstance(answered, tuple) else (answered, b"")
                if not isinstance(content, bytes):
                    content = (content if isinstance(content, str) else json.dumps(content)).encode()
                with contextlib.suppress(OSError):  # the client has gone
                    self.send_response(status)
                    for name, value in dict(*extra).items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def do_POST(self):
                self.do_GET()

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.address}"

    def start(self):
        self._thread.start()
        return self

    __enter__ = start

    def close(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    __exit__ = close
