# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A call site: the settings of one place in the code that records, evaluated once and not at each call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Optional, Union

from verl_otel._internal import error_boundary, process_state
from verl_otel._internal.first_use import FirstUse
from verl_otel.model import AttributeValue, SharedAttributes
from verl_otel.recording.attribute_values import MAX_NAME, to_name
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import OTHER, SPANS, SpanSpec

if TYPE_CHECKING:
    from verl_otel.recording.series import Counter, Histogram
    from verl_otel.recording.span import Span

Arguments = Union[Mapping[str, Any], Callable[[], Mapping[str, Any]]]
"""The arguments of a call by parameter name, or a function that returns them."""

Extract = Callable[[Mapping[str, Any], Any], Optional[Mapping[str, Any]]]
"""``extract(arguments, result)`` returns attributes for the span of one call; arguments by their parameter's name."""

NO_ATTRIBUTES: Final[Mapping[str, AttributeValue]] = {}


class CallSite:
    """Settings of the spans of one place, fixed when it is decorated or first used."""

    __slots__ = (
        "attributes", "default_series", "defaults", "extract", "hook", "merges_with_parent", "name", "needs_parent",
        "series", "spec", "superseded", "token_series",
    )  # fmt: skip

    def __init__(
        self,
        verb: str,
        name: str = "",
        *,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        extract: Extract | None = None,
        hook: bool = False,
        merges_with_parent: bool | None = None,
        series: Histogram | None = None,
        defaults: frozenset[str] = frozenset(),
    ) -> None:
        self.spec: SpanSpec = SPANS[verb]
        self.name = to_name(name) or self.spec.name
        self.attributes: Mapping[str, AttributeValue] = SharedAttributes(attributes)
        self.extract = extract
        self.hook = hook
        """Whether an integration opens the spans, not the user."""
        self.merges_with_parent = self.spec.merges_with_parent if merges_with_parent is None else merges_with_parent
        """Whether a span merges with a direct parent of the same verb."""
        self.needs_parent = verb == "phase" and not self.merges_with_parent
        """Whether a span without a parent is only measured."""
        self.defaults = defaults
        """Attributes with default values, which do not replace those of a parent that the span merges with."""
        self.series = series
        """Histogram of the durations, instead of that of the verb."""
        self.default_series: dict[str, Histogram] = {}
        """Histograms of calls without labels of their own, by that of validations; cached by `verl_otel.recording.span_metrics`."""
        self.token_series: dict[tuple[str, str], Counter] = {}
        """Counters of the tokens of LLM calls, by their metric and the label of validations; as `default_series`."""
        self.superseded = False
        """Whether a decorator records the function that the hook had wrapped, so that this site makes no spans."""

    def with_attributes(self, attributes: Mapping[str, AttributeValue] | None) -> CallSite:
        """Return a copy with further static attributes; the site itself if there are none."""
        return self._copy(self.name, {**self.attributes, **attributes}) if attributes else self

    def for_function(self, function: Callable[..., Any]) -> CallSite:
        """Return a copy with the name and attributes that follow from the name of the decorated function."""
        qualified = str(getattr(function, "__qualname__", type(function).__qualname__))
        parts = qualified.replace("<locals>.", "").split(".")
        attributes = dict(self.attributes)
        name = self.name
        verb = self.spec.verb
        if verb == "worker":
            name = self.spec.name + ".".join(parts[-2:])
            attributes[attr.WORKER_METHOD] = parts[-1]
        elif verb == "tool" and attr.GEN_AI_TOOL not in attributes:
            name = self.spec.name + parts[-1]
            attributes[attr.GEN_AI_TOOL] = parts[-1]
        elif verb == "reward":
            attributes.setdefault(attr.REWARD_FUNCTION, qualified)
        elif not name:
            name = qualified
        return self._copy(name, attributes)

    def _copy(self, name: str, attributes: Mapping[str, AttributeValue]) -> CallSite:
        return CallSite(self.spec.verb, name, **{**self._keywords(), "attributes": attributes})

    def _keywords(self) -> dict[str, Any]:
        """Return the arguments of the constructor besides verb and name."""
        return {
            "attributes": dict(self.attributes),
            "extract": self.extract,
            "hook": self.hook,
            "merges_with_parent": self.merges_with_parent,
            "series": self.series,
            "defaults": self.defaults,
        }

    def read(self, span: Span, arguments: Arguments, result: Any) -> None:
        """Set the attributes that the extractor returns for one call. Those of the decorator take precedence. Never raises."""
        if self.extract is None or not (span.start or span.merged_parent):
            return
        try:
            host = span.merged_parent
            target = host or span
            named = arguments() if callable(arguments) else arguments
            for key, value in (self.extract(named, result) or NO_ATTRIBUTES).items():
                if value is None or key in self.attributes or (self.hook and host and key in host.attributes):
                    continue
                target.set_attribute(key, value)
                if key == attr.REWARD_SCORES and type(value) is tuple:
                    target.set_scores(value)
        except Exception as error:
            error_boundary.may_propagate(error)
            message = "verl-otel: the extractor of %s failed and was skipped: %r (logged once)"
            error_boundary.warn_once(f"extract {self.name}", message, self.name, error)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.spec.verb, self.name, self._keywords(), self.superseded)


def _rebuild(verb: str, name: str, keywords: dict[str, Any], superseded: bool) -> CallSite:  # noqa: FBT001 - as pickled
    FirstUse.start()
    site = CallSite(verb, name, **keywords)
    site.superseded = superseded
    return site


# -- Phase keys come from verl's call sites, so they are sanitised and bounded before they become names and labels --

MAX_PHASES: Final = 64
"""Distinct phase keys of one process; further ones become ``other``."""

_KEY: Final = re.compile(r"[a-z0-9_./]{1,64}")
_sites: dict[tuple[str, bool], CallSite] = {}


def phase_site(key: str, *, hook: bool = False) -> CallSite:
    """Return the call site of a phase. Letters become lower case, other characters ``_``.

    Example:
        phase_site("Update Actor").name == "verl.phase.update_actor"
    """
    if type(key) is not str or len(key) > MAX_NAME:
        key = to_name(key)
    site = _sites.get((key, hook))
    if site is not None:
        return site
    valid = key if _KEY.fullmatch(key) else re.sub(r"[^a-z0-9_./]", "_", key.lower())[:64] or OTHER
    # the copy is atomic: other threads add to it
    used = {site.attributes[attr.PHASE] for site in list(_sites.values())}
    if valid not in used and len(used) >= MAX_PHASES:
        valid = OTHER
    site = CallSite("phase", SPANS["phase"].name + valid, attributes={attr.PHASE: valid}, hook=hook)
    if len(_sites) < 2 * MAX_PHASES and valid != OTHER:
        _sites[(key, hook)] = site
    return site


process_state.register(reset=_sites.clear)


def is_used_phase(key: str) -> bool:
    """Return whether a phase of this key was opened in this process."""
    return (key, True) in _sites or (key, False) in _sites
