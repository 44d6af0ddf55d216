# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the pages of the guide that are made from the code: settings and telemetry. ``make docs`` runs it, a test compares."""

from pathlib import Path

from verl_otel.config import SETTINGS
from verl_otel.exporting.names import label_name, metric_name
from verl_otel.model import Instrument
from verl_otel.semconv.metrics import METRICS
from verl_otel.semconv.spans import CLIENT, SERVER, SPANS

GUIDE = Path(__file__).resolve().parent / "guide"
NOTE = "<!-- made by docs/generate.py from the code: change it there -->\n"

SETTINGS_HEAD = """# Settings

Every setting is an environment variable, or a keyword of `verl_otel.init()`; keywords win. There is no configuration file. A value that
cannot be used is a `ConfigError` that names the variable, the value and what is allowed; under verl it is one line in the log and
telemetry stays off.

"""
SETTINGS_TAIL = """
OpenTelemetry's own variables are read as OpenTelemetry defines them:

| variable | meaning |
|---|---|
| `OTEL_SDK_DISABLED` | `true` turns everything off. |
| `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` | Where OTLP goes; setting one makes `otlp` the default exporter. |
| `OTEL_EXPORTER_OTLP_PROTOCOL` | `http/protobuf` (default) or `grpc` (`pip install 'verl-otel[grpc]'`). |
| `OTEL_EXPORTER_OTLP_HEADERS` | More headers. They are not forwarded to Ray's workers, whose environment Ray shows on its dashboard: use a token file. |
| `OTEL_EXPORTER_OTLP_TIMEOUT` | Seconds for one request (10). |
| `OTEL_EXPORTER_OTLP_COMPRESSION` | `none` (default), `gzip`, `deflate`. |
| `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE` | `cumulative` (default), `delta` for backends that want the difference since the last export, `lowmemory`. |
| `OTEL_EXPORTER_OTLP_CERTIFICATE`, `..._CLIENT_CERTIFICATE`, `..._CLIENT_KEY` | TLS. |
| `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | Win over what verl-otel finds out by itself. |

Set them where the training is started: verl-otel forwards `VERL_OTEL_*` and `OTEL_*` to every worker of the job.
"""

TELEMETRY_HEAD = """# What is sent

## Spans

A step is a trace, a validation is one, and every trajectory is one of its own, linked to the step or validation that submitted it and
from the step that trained on it. Outside these, weight syncs and worker calls are traces of their own.

"""
METRICS_HEAD = """
## Metrics

Names in Prometheus are derived (`UnderscoreEscapingWithSuffixes`); they are the same on `/metrics` and through a Collector. Scalars of
verl's `Tracking.log` are sent besides, each as a gauge with its value unchanged: `actor/pg_loss` is `verl.actor.pg_loss`,
`verl_actor_pg_loss` in Prometheus.

"""
RESOURCE = """
## Resource

`service.name` (`verl`), `service.namespace` (project/experiment), `service.instance.id` (`<run id>/<role>-<number>`), `verl.run.id`,
`verl.run.attempt`, `verl.project`, `verl.experiment`, `verl.role`, `verl.rank`, `verl.world_size`, `verl.version`, `host.name`,
`process.pid`, `ray.job.id`, `ray.node.id`, `ray.actor.id`, `verl.gpu.ids`, `verl.replica.mode`, `telemetry.*`.

## What is not sent

Prompts, answers and tool arguments: never. Exception messages: only with `VERL_OTEL_CAPTURE_CONTENT=1`, since they may quote them;
the class of the exception always. Step numbers, ids and free text never become labels.
"""


def settings_page():
    rows = ["| variable | keyword | default | meaning |", "|---|---|---|---|"]
    for setting in SETTINGS:
        default = f"`{setting.default}`" if setting.default else "-"
        rows.append(f"| `{setting.variable}` | `{setting.field}` | {default} | {setting.text} |")
    return NOTE + SETTINGS_HEAD + "\n".join(rows) + "\n" + SETTINGS_TAIL


def telemetry_page():
    kinds = {CLIENT: "CLIENT", SERVER: "SERVER"}
    spans = ["| span | kind | trace | histogram |", "|---|---|---|---|"]
    for row in SPANS.values():
        name = {"llm": "chat {model}", "span": "as named", "timed": "none"}.get(row.verb, row.name)
        if row.name.endswith((".", " ")):
            name += {"phase": "{key}", "call": "{method}", "worker": "{Class}.{method}", "tool": "{tool}"}[row.verb]
        duration = f"`{row.duration}`" if row.duration else "-"
        spans.append(
            f"| `{name}` | {kinds.get(row.kind, 'INTERNAL')} | {'its own' if row.root else 'its parent'} | {duration} |"
        )
    rows = ["| metric | kind, unit | labels | in Prometheus |", "|---|---|---|---|"]
    for row in METRICS.values():
        name = metric_name(Instrument(row.name, row.kind, row.unit, ""))
        labels = ", ".join(f"`{label_name(label)}`" for label in row.labels) or "-"
        unit = f" `{row.unit}`" if row.unit else ""
        rows.append(f"| `{row.name}`: {row.description} | {row.kind}{unit} | {labels} | `{name}` |")
    return NOTE + TELEMETRY_HEAD + "\n".join(spans) + "\n" + METRICS_HEAD + "\n".join(rows) + "\n" + RESOURCE


PAGES = {"settings.md": settings_page, "telemetry.md": telemetry_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (GUIDE / name).write_text(make(), "utf-8")
