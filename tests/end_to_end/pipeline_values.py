# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What Prometheus has to have of a run, worked out from the files that the run wrote beside, and what it has."""

import json
import math
import re
from pathlib import Path

from tests.builders import otlp_json

GOLDEN = Path(__file__).resolve().parents[1] / "contracts" / "golden_names.txt"
MEASURED_AT_COLLECTION = ("process.", "system.", "hw.", "verl.host.", "verl.otel.", "verl.event_loop.lag")
"""Metrics that are read when they are asked for: the files, OTLP and a scrape ask at different moments."""
OF_PROMETHEUS = re.compile(r"up|scrape_\w+|ALERTS\w*|target_info|\w*:.*|vllm:.*")
"""Series that Prometheus itself or a rule makes, and those of the engine, which nobody but a scrape asks."""


def golden():
    """Return the golden table: OTel name to (Prometheus name, kind)."""
    rows = (re.fullmatch(r"(\S+) (\S+) (\S+) \{.*\}", line) for line in GOLDEN.read_text().splitlines())
    return {row[1]: (row[3], row[2]) for row in rows}


def older_names():
    """Return the names that rules record for older guides: they have no colon."""
    from tests.end_to_end import compressed_rules

    groups = compressed_rules.yaml.safe_load((compressed_rules.RULES / "older_names.rules.yml").read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def read_last(folder):
    """Return the last point of every series in the files of metrics: (OTel name, labels of Prometheus) to a number, or (count, sum)."""
    found, times = {}, {}
    for path in sorted(folder.glob("metrics-*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            for key, at, value in _points(json.loads(line)):
                if at >= times.get(key, 0):
                    found[key], times[key] = value, at
    return found


def _points(message):
    for resource, _, metric in otlp_json.each_metric(message):
        base = {
            "job": resource["service.name"],
            "instance": resource["service.instance.id"],
            "verl_role": resource["verl.role"],
            "verl_run_id": resource["verl.run.id"],
        }
        for point in otlp_json.each_point(metric):
            attributes = otlp_json.read_attributes(point["attributes"])
            labels = {re.sub(r"\W", "_", key): str(text) for key, text in attributes.items()}
            number = otlp_json.read_number(point)
            value = (number, float(point["sum"])) if "count" in point else float(number)
            yield (metric["name"], frozenset({**base, **labels}.items())), int(point["timeUnixNano"]), value


def expect(folder):
    """Return what Prometheus has to have, of the catalogue and of verl's scalars: (name, labels) to the value."""
    table, wanted = golden(), {}
    for (name, labels), value in read_last(folder).items():
        if name.startswith(MEASURED_AT_COLLECTION) or not (name in table or name.startswith("verl.")):
            continue
        known = table[name][0] if name in table else scalar_name(name)
        if isinstance(value, tuple):
            wanted[known + "_count", labels], wanted[known + "_sum", labels] = value
        else:
            wanted[known, labels] = value
    return wanted


def scalar_name(key):
    """Return the name of a scalar in Prometheus, made anew here.

    Example:
        scalar_name("verl.actor.pg_loss") == "verl_actor_pg_loss"
    """
    return "_".join(re.findall(r"[A-Za-z0-9:]+", key))


def last_values(prometheus, run_id):
    """Return the last value of every series of a run, gone or not: (name, labels) to the value."""
    found = {}
    for labels, value in prometheus.query(f'last_over_time({{verl_run_id="{run_id}"}}[1h])'):
        name = labels.pop("__name__")
        found[name, frozenset(labels.items())] = value
    return found


def find_wrong(wanted, found):
    """Return what is missing or different: key to (found, wanted)."""
    return {key: (found.get(key), value) for key, value in wanted.items() if not _same(found.get(key), value)}


def _same(found, wanted):
    return found is not None and (math.isclose(found, wanted, rel_tol=1e-12) or (found != found and wanted != wanted))


def all_series(prometheus, run_id, begin, end):
    """Return every series that a run has had: (name, labels); ``le`` is a number."""
    match = f'{{verl_run_id="{run_id}"}}'
    found = set()
    for labels in prometheus.ask("series", **{"match[]": match, "start": begin, "end": end}):
        name = labels.pop("__name__")
        if "le" in labels:
            labels["le"] = str(float(labels["le"]))
        found.add((name, frozenset(labels.items())))
    return found


def own_series(series):
    """Return those that processes of the run have sent, or shown."""
    older = older_names()
    return {each for each in series if not OF_PROMETHEUS.fullmatch(each[0]) and each[0] not in older}
