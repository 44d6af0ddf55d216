# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a query asks for, and whether that makes sense: read by a parser of PromQL, not by patterns.

The grammar is promql-parser's (the Rust port of Prometheus's own); what a name is comes from the vocabulary.
"""

import re
from dataclasses import dataclass

import promql_parser as prom

COUNTING = {"rate", "increase", "irate", "resets"}
GAUGES_ONLY = {"delta", "deriv", "idelta", "predict_linear", "avg_over_time", "quantile_over_time", "stddev_over_time"}
CUMULATIVE = {"counter", "bucket", "sum", "count"}
MACROS = {"$__rate_interval": "1m", "$__range": "1h", "$__interval": "15s", "$window": "15m"}


@dataclass(frozen=True)
class Use:
    """One selector of a query."""

    names: tuple[str, ...]
    """Names that it finds, of the vocabulary."""
    matchers: tuple[tuple[str, str], ...]
    around: tuple[str, ...]
    """Functions and operators around it, the nearest last."""


def parse(text):
    """Return the syntax tree of a query of a board; raises ValueError for what is no PromQL."""
    for macro, value in MACROS.items():
        text = text.replace(macro, value)
    return prom.parse(text)


def uses(tree, vocabulary, around=()):
    """Yield every selector of a query. Raises KeyError for a name that nobody exports."""
    if isinstance(tree, prom.MatrixSelector):
        tree = tree.vector_selector
    if isinstance(tree, prom.VectorSelector):
        matchers = tuple((each.name, each.value) for each in tree.matchers.matchers)
        found = find(tree, vocabulary)
        if not found:
            raise KeyError(f"nobody exports {tree.prettify()}")
        yield Use(found, tuple(each for each in matchers if each[0] != "__name__"), around)
        return
    own = (str(tree.op),) if isinstance(tree, prom.AggregateExpr) else ()
    own = (tree.func.name,) if isinstance(tree, prom.Call) else own
    for child in children(tree):
        yield from uses(child, vocabulary, (*around, *own))


def find(selector, vocabulary):
    """Return the names that a selector finds: one, or all that its matchers let through."""
    if selector.name:
        return tuple(name for name in [selector.name] if name in vocabulary)
    tests = [(str(each.op), each.value) for each in selector.matchers.matchers if each.name == "__name__"]
    exact = [value for op, value in tests if op == "MatchOp.Equal"]
    shapes = [value for op, value in tests if op == "MatchOp.Re" and "$" not in value]
    return tuple(
        name
        for name in vocabulary
        if all(name == value for value in exact) and all(re.fullmatch(shape, name) for shape in shapes)
    )


def children(tree):
    """Return the parts of an expression that are expressions."""
    if isinstance(tree, prom.BinaryExpr):
        return [tree.lhs, tree.rhs]
    if isinstance(tree, prom.Call):
        return list(tree.args)
    if isinstance(tree, (prom.AggregateExpr, prom.ParenExpr, prom.UnaryExpr, prom.SubqueryExpr)):
        return [tree.expr]
    return []


def labels(tree, vocabulary):
    """Return the labels that the answer of a query can have."""
    if isinstance(tree, (prom.NumberLiteral, prom.StringLiteral)):
        return frozenset()
    if isinstance(tree, prom.MatrixSelector):
        return labels(tree.vector_selector, vocabulary)
    if isinstance(tree, prom.VectorSelector):
        return frozenset().union(*(vocabulary[name].labels for name in find(tree, vocabulary)))
    inner = [labels(child, vocabulary) for child in children(tree)]
    if isinstance(tree, prom.AggregateExpr):
        return _aggregated(tree, inner[0])
    if isinstance(tree, prom.BinaryExpr):
        return _combined(tree, *inner)
    if isinstance(tree, prom.Call) and tree.func.name in ("label_replace", "label_join"):
        return inner[0] | {tree.args[1].val}
    if isinstance(tree, prom.Call) and tree.func.name == "histogram_quantile":
        return inner[1] - {"le"}
    return frozenset().union(*inner)


def _aggregated(tree, inside):
    if tree.modifier is None:
        return frozenset()
    named = frozenset(tree.modifier.labels)
    return inside - named if str(tree.modifier.type).endswith("Without") else named


def _combined(tree, left, right):
    if str(tree.op) == "or" or not left:
        return left | right
    if str(tree.op) in ("and", "unless") or not right:
        return left
    side = str(tree.modifier.card) if tree.modifier else ""
    if side.endswith(("ManyToOne", "OneToMany")):
        many = left if side.endswith("ManyToOne") else right
        return many | frozenset(tree.modifier.group_labels or ())
    matching = tree.modifier.matching if tree.modifier else None
    if matching is None:
        return left
    named = frozenset(matching.labels)
    return left & named if str(matching.type).endswith("Include") else left - named


def faults(text, vocabulary):
    """Return what is wrong with a query, in words; nothing for a good one."""
    try:
        tree = parse(text)
        asked = list(uses(tree, vocabulary))
    except (ValueError, KeyError) as error:
        return [str(error)]
    return [*_faults_of_uses(asked, vocabulary), *_faults_of_labels(tree, vocabulary)]


def _faults_of_uses(asked, vocabulary):
    for use in asked:
        kinds = {vocabulary[name].kind for name in use.names}
        functions = set(use.around)
        if functions & COUNTING and not kinds <= CUMULATIVE:
            yield f"{use.names} is a gauge, and {functions & COUNTING} needs what only grows"
        if functions & GAUGES_ONLY and kinds & CUMULATIVE:
            yield f"{use.names} only grows, and {functions & GAUGES_ONLY} needs a gauge"
        if "histogram_quantile" in functions and kinds != {"bucket"}:
            yield f"histogram_quantile of {use.names}, which are no buckets"
        if "bucket" in kinds and not functions & {"rate", "increase"}:
            yield f"buckets of {use.names} are asked for since the start of the process"
        if kinds & {"sum", "count"} and not functions & {"rate", "increase", "changes", "resets"}:
            yield f"{use.names} is asked for since the start of the process"
        known = frozenset().union(*(vocabulary[name].labels for name in use.names))
        yield from (f"{use.names} has no label {name}" for name, _ in use.matchers if name not in known)


def _faults_of_labels(tree, vocabulary):
    """Yield labels in by, on and group_left that what is inside them does not have."""
    inner = [labels(child, vocabulary) for child in children(tree)]
    if isinstance(tree, prom.AggregateExpr) and tree.modifier is not None:
        yield from (f"by ({name}), and no series has it" for name in tree.modifier.labels if name not in inner[0])
    if isinstance(tree, prom.Call) and tree.func.name == "histogram_quantile" and "le" not in inner[1]:
        yield "histogram_quantile without le"
    if isinstance(tree, prom.BinaryExpr) and tree.modifier and tree.modifier.matching:
        for name in tree.modifier.matching.labels:
            if not all(name in side for side in inner):
                yield f"on ({name}), and one side has it not"
        both = frozenset().union(*inner)
        yield from (
            f"group ({name}), and no series has it" for name in tree.modifier.group_labels or () if name not in both
        )
    for child in children(tree):
        yield from _faults_of_labels(child, vocabulary)
