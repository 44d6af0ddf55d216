# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A server with the part of Prometheus' interface that reloads and shows the configuration."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml


class FakePrometheus:
    """Reads a file when a reload is requested.

    Args:
        path: The file.
        reload: Status and text of every answer to a reload.
        refuses: A word that the file must not contain.
        other: Whether it reads another file.
        pools: Whether it lists its jobs.
    """

    def __init__(self, path, *, reload=None, refuses=None, other=False, pools=True):
        self.path, self.answer, self.refuses, self.other, self.pools = path, reload, refuses, other, pools
        self.loaded, self.jobs, self.reloads = path.read_text(), [], 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/api/v1/scrape_pools" and outer.pools:
                    self._send(200, json.dumps({"status": "success", "data": {"scrapePools": outer.jobs}}))
                else:
                    self._send(200 if self.path == "/-/healthy" else 404, "")

            def do_POST(self):
                self._send(*outer.reload())

            def _send(self, status, text):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def reload(self):
        self.reloads += 1
        if self.answer:
            return self.answer
        text = self.path.read_text()
        if self.refuses and self.refuses in text:
            return 500, "failed to reload config: invalid job"
        if not self.other:
            self.loaded = text
            files = [self.path.with_name(name) for name in yaml.safe_load(text).get("scrape_config_files", ())]
            found = [
                job for file in files if file.exists() for job in yaml.safe_load(file.read_text())["scrape_configs"]
            ]
            self.jobs = [job["job_name"] for job in found]
        return 200, ""

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
