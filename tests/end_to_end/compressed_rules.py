# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The project's own rules with every time in them divided by one factor: what takes ten minutes takes ten seconds, and nothing else changes.

A time is an interval, a ``for``, a range, an offset, a threshold in seconds, or one of the few numbers of seconds that stand in an expression.
"""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed in this environment")

RULES = Path(__file__).resolve().parents[2] / "dashboards" / "rules"
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
LITERALS = {r"(?<=verl_checkpoint_last_timestamp_seconds\)) < (120)\b": 1, r"predict_linear\(.+\], (14400)\)": 1}
"""Numbers of seconds in expressions, and how often each occurs in all rules."""
DURATION = r"\d+(?:ms|[smhdw])"


def divide(duration, factor):
    """Return a duration divided by a factor, in whole milliseconds.

    Example:
        divide("10m", 60) == "10000ms"
    """
    number, unit = re.fullmatch(r"(\d+)(\D+)", duration).groups()
    return f"{round(int(number) * UNITS[unit] * 1000 / factor)}ms"


def compress_expression(expression, factor):
    """Return an expression and how many of its `LITERALS` were divided."""
    shorter = lambda found: found[0].replace(found[1], divide(found[1], factor))  # noqa: E731 - three times alike
    expression = re.sub(rf"\[({DURATION})\]", shorter, expression)
    expression = re.sub(rf"\boffset ({DURATION})\b", shorter, expression)
    found = {}
    for pattern in LITERALS:
        expression, found[pattern] = re.subn(
            pattern, lambda hit: hit[0].replace(hit[1], f"{int(hit[1]) / factor:g}"), expression, flags=re.DOTALL
        )
    return expression, found


def compress_rule(rule, factor):
    """Return a rule with its times divided, and how many of its `LITERALS` were."""
    expression, found = compress_expression(rule["expr"], factor)
    name = rule.get("labels", {}).get("name", "") if rule.get("record") == "verl:threshold" else ""
    if name.endswith("_seconds"):
        expression = re.sub(r"[\d.]+", lambda hit: f"{float(hit[0]) / factor:g}", expression)
    shorter = {"for": divide(rule["for"], factor)} if "for" in rule else {}
    return {**rule, "expr": expression, **shorter}, found


def write(folder, factor):
    """Write every file of rules into a folder, compressed; fail where one of the `LITERALS` is not where it was."""
    folder.mkdir(parents=True)
    seen = dict.fromkeys(LITERALS, 0)
    for path in sorted(RULES.glob("*.rules.yml")):
        document = yaml.safe_load(path.read_text("utf-8"))
        for group in document["groups"]:
            group["interval"] = divide(group["interval"], factor)
            compressed = [compress_rule(rule, factor) for rule in group["rules"]]
            group["rules"] = [rule for rule, _ in compressed]
            for _, found in compressed:
                seen = {pattern: seen[pattern] + count for pattern, count in found.items()}
        (folder / path.name).write_text(yaml.safe_dump(document, sort_keys=False, width=1000), "utf-8")
    assert seen == LITERALS
    return folder


def write_alertmanager(path, factor, receiver):
    """Write the example for Alertmanager, its waits divided, with another address for its receivers."""
    document = yaml.safe_load((RULES / "alertmanager.example.yml").read_text("utf-8"))
    for route in (document["route"], *document["route"]["routes"]):
        for name in ("group_wait", "group_interval", "repeat_interval"):
            if name in route:
                route[name] = divide(route[name], factor)
    text = yaml.safe_dump(document, sort_keys=False)
    assert text.count("http://127.0.0.1:9099") == text.count("url:")
    path.write_text(text.replace("http://127.0.0.1:9099", receiver), "utf-8")
    return path
