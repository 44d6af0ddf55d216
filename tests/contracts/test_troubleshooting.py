# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Each check that can fail or has a remark has an entry on the page on troubleshooting, and each failure names a command or a variable."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.sources

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "how-to" / "troubleshooting.md").read_text("utf-8")
ACTION = re.compile(r"`[^`]+`|\bset \w+=")
"""A command, or a variable with its value."""
FROM_ELSEWHERE = {
    "advice": "of `explain`, whose texts are checked by themselves",
    "error.advice": "of `explain`, too",
    "answer.text.partition(': ')[2]": "of `discover`: set <setting of verl>",
}
"""Advice that the source of a finding does not contain, and where it is from."""
ENTRIES = re.findall(r"^\| `([^`]+)` \|", PAGE.partition("## Checks")[2], re.MULTILINE)


def parse_sources():
    return [ast.parse(path.read_text("utf-8")) for path in sorted((TOP / "verl_otel" / "cli").glob("check*.py"))]


def find_texts(expression, names):
    """Yield the texts that an expression can have, with a placeholder for each value in it; None for one that is not in the source."""
    match expression:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(fill_in(part, names) for part in parts)
        case ast.IfExp(body=one, orelse=other):
            yield from find_texts(one, names)
            yield from find_texts(other, names)
        case ast.BoolOp(values=[*_, last]):
            yield from find_texts(last, names)
        case ast.Name(id=name) if name in names:
            for assigned in names[name]:
                yield from find_texts(assigned, names)
        case _:
            if ast.unparse(expression) not in FROM_ELSEWHERE:
                yield None


def fill_in(part, names):
    """Return the text of a part of an f-string: a placeholder for a value that is not in the source."""
    if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and part.value.id in names:
        return next(find_texts(part.value, names)) or "X"
    return part.value if isinstance(part, ast.Constant) else "X"


def find_assigned(tree):
    """Return the values that a function or a module assigns to each of its names."""
    names = {}
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                names.setdefault(target.id, []).append(node.value)
    return names


def find_advice():
    """Yield the source of each failed finding, and each text that its advice can have; of `explain` what it returns."""
    for tree in parse_sources():
        everywhere = find_assigned(
            ast.Module([each for each in tree.body if not isinstance(each, (ast.FunctionDef, ast.ClassDef))], [])
        )
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            names = everywhere | find_assigned(function)
            for node in ast.walk(function):
                advice = None
                if function.name == "explain" and isinstance(node, ast.Return):
                    advice = node.value.elts[1]
                elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                    if getattr(node.args[0], "value", "") != "fail":
                        continue
                    advice = node.args[3] if len(node.args) > 3 else ast.Constant("")
                if advice is not None:
                    for text in find_texts(advice, names):
                        yield ast.unparse(node), text


def test_each_failure_names_a_command_or_a_variable():
    """Its advice has a command in back-ticks, or a variable to set."""
    found = list(find_advice())
    assert len(found) > 30
    bad = [source for source, text in found if text is None or not ACTION.search(text)]
    assert not bad, "\n".join(bad)


def subjects():
    """Return the subjects of all findings in the source that are not only ok; of an f-string its beginning."""
    found = set()
    for tree in parse_sources():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding" and len(call.args) > 1:
                state, subject = call.args[:2]
                if isinstance(state, ast.Constant) and state.value == "ok":
                    continue
                if isinstance(subject, ast.JoinedStr):
                    subject = subject.values[0]
                if isinstance(subject, ast.Constant):
                    found.add(subject.value.strip())
    return found | {"node"}  # its subject is a variable


def test_each_check_has_an_entry():
    """The subject of each finding is on the page; no entry is about a check that was removed."""
    assert sorted(ENTRIES) == sorted(subjects())
