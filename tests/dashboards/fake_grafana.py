# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run by tests as ``bin/grafana``: what Grafana's HTTP API answers, and a page for each board with the marks of Grafana's own pages.

``fake.json`` in its home says what goes wrong; what was asked goes to ``asked.jsonl``, what it was started with to ``started.json``.
"""

import html
import json
import os
import signal
import sys
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOME = Path(sys.argv[sys.argv.index("--homepath") + 1])
PLAN = json.loads((HOME / "fake.json").read_text())
BOARDS = {}
for path in sorted(Path(os.environ["VERL_OTEL_BOARDS"]).glob("*.json")):
    made = json.loads(path.read_text("utf-8"))
    BOARDS[made["uid"]] = made
PAGE = """<!doctype html><title>board</title><body>{sections}<script>
const ask = async (section) => {{
  const answer = await fetch("/api/ds/query?ds_type=prometheus", {{
    method: "POST",
    headers: {{"x-panel-id": section.dataset.number, "content-type": "application/json"}},
    body: JSON.stringify({{queries: [{{refId: "A", expr: "count(verl_run_info)"}}]}}),
  }});
  const said = (await answer.json()).results.A;
  section.querySelector("[aria-label='Panel loading bar']").remove();
  if (said.error) section.querySelector("header").innerHTML += "<button data-testid='data-testid Panel status error'>!</button>";
  else if (!said.frames.length) section.innerHTML += "<div data-testid='data-testid Panel data error message'>No data</div>";
}};
setTimeout(() => document.querySelectorAll("section").forEach(ask), 50);
</script>"""
SECTION = (
    '<section data-testid="data-testid Panel header {title}" data-number="{id}" style="height: 60px; border: 1px solid">'
    '<header>{title}</header><div aria-label="Panel loading bar"></div></section>'
)


def show(board):
    """Return the page of a board: panels of folded rows are not on it."""
    panels = [panel for panel in board["panels"] if panel["type"] != "row" and panel["title"] != PLAN.get("lost")]
    return PAGE.format(
        sections="".join(SECTION.format(title=html.escape(each["title"]), id=each["id"]) for each in panels)
    )


def find_panel(page, number):
    """Return the title of the panel that asks."""
    board = BOARDS[urllib.parse.urlsplit(page).path.removeprefix("/d/")]
    return next(panel["title"] for panel in board["panels"] if str(panel["id"]) == number)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.note()
        path, _, query = self.path.partition("?")
        uid = path.rpartition("/")[2]
        if path == "/api/health":
            self.say({"database": "ok", "version": "12.4.0", "commit": "fake"})
        elif os.environ.get("GF_AUTH_ANONYMOUS_ENABLED") != "true":
            self.say({"message": "Unauthorized"}, 401)
        elif path == "/api/search":
            assert urllib.parse.parse_qs(query)["type"] == ["dash-db"]
            self.say([self.list(*each) for each in enumerate(BOARDS.values()) if each[1]["uid"] != PLAN.get("missing")])
        elif path.startswith("/api/dashboards/uid/") and uid in BOARDS:
            meta = {"type": "db", "slug": uid, "url": f"/d/{uid}/{uid}", "canSave": False, "version": 1}
            meta |= {"folderTitle": "verl", "provisioned": True, "provisionedExternalId": f"{uid}.json"}
            self.say({"dashboard": {**BOARDS[uid], "id": 1, "version": 1, "schemaVersion": 42}, "meta": meta})
        elif path.startswith("/d/") and uid in BOARDS:
            self.say(show(BOARDS[uid]))
        else:
            self.say({"message": "Dashboard not found", "messageId": "", "statusCode": 404, "traceID": ""}, 404)

    def do_POST(self):
        self.note()
        (query,) = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
        title = find_panel(self.headers["referer"], self.headers["x-panel-id"])
        if PLAN.get("refused") == title:
            refused = {"error": "bad_data: planted", "errorSource": "downstream", "status": 400, "frames": []}
            self.say({"results": {"A": refused}}, 400)
            return
        address = f"{os.environ['PROMETHEUS_URL']}/api/v1/query"
        form = {"query": query["expr"], "time": PLAN["time"]}
        with urllib.request.urlopen(f"{address}?{urllib.parse.urlencode(form)}") as answer:
            found = json.load(answer)["data"]["result"]
        frames = (
            [] if PLAN.get("empty") == title else [{"schema": {}, "data": {"values": each["value"]}} for each in found]
        )
        self.say({"results": {"A": {"status": 200, "frames": frames}}})

    def list(self, number, board):
        return {
            "id": number,
            "uid": board["uid"],
            "title": board["title"],
            "url": f"/d/{board['uid']}/{board['uid']}",
            "type": "dash-db",
            "tags": board["tags"],
            "isStarred": False,
            "folderTitle": "verl",
        }

    def say(self, what, status=200):
        body = (what if isinstance(what, str) else json.dumps(what)).encode()
        self.send_response(status)
        self.send_header("content-type", "text/html" if isinstance(what, str) else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def note(self):
        with (HOME / "asked.jsonl").open("a") as out:
            out.write(json.dumps(self.path) + "\n")

    def log_message(self, *_):
        pass


if PLAN.get("dies"):
    sys.exit("logger=server level=error msg=planted")
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
(HOME / "started.json").write_text(json.dumps({"pid": os.getpid(), "words": sys.argv[1:], "environ": dict(os.environ)}))
ThreadingHTTPServer(
    (os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])), Handler
).serve_forever()
