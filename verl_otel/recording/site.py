# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A site: one place in the code that records. What a verb is told once, so that a call needs to be told nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Optional, Union

from verl_otel import _guard
from verl_otel.model import AttributeValue, SharedAttributes
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS, SpanSpec

if TYPE_CHECKING:
    from verl_otel.recording.series import Histogram
    from verl_otel.recording.span import Span

Arguments = Union[Mapping[str, Any], Callable[[], Mapping[str, Any]]]
"""A call's arguments by their parameter's name, or what returns them."""

Extract = Callable[[Mapping[str, Any], Any], Optional[Mapping[str, Any]]]
"""``extract(arguments, result)`` returns attributes for the span of one call; arguments by their parameter's name."""

NO_ATTRIBUTES: Final[Mapping[str, AttributeValue]] = {}


class Site:
    """What is recorded at one place, fixed when it is decorated or first used."""

    __slots__ = (
        "adopts",
        "attributes",
        "defaults",
        "extract",
        "hook",
        "name",
        "needs_parent",
        "series",
        "spec",
        "special",
        "superseded",
        "usual",
    )

    def __init__(
        self,
        verb: str,
        name: str = "",
        *,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        extract: Extract | None = None,
        hook: bool = False,
        adopts: bool | None = None,
        series: Histogram | None = None,
        defaults: frozenset[str] = frozenset(),
    ) -> None:
        self.spec: SpanSpec = SPANS[verb]
        self.name = name or self.spec.name
        self.attributes: Mapping[str, AttributeValue] = SharedAttributes(attributes)
        self.extract = extract
        self.hook = hook
        """Whether one of our integrations opened it, and not the user."""
        self.adopts = self.spec.adopts if adopts is None else adopts
        """Whether it becomes one with a span of the same verb directly around it."""
        self.needs_parent = verb == "phase" and not self.adopts
        """Whether it is only measured when nothing is open around it."""
        self.defaults = defaults
        """Attributes that nobody said: a span that this one becomes one with keeps its own."""
        self.series = series
        """Where its durations go instead of to the histogram of its verb."""
        self.usual: Histogram | None = None
        """The histogram of calls of which nothing was said that is a label; see `verl_otel.recording.measures`."""
        self.superseded = False
        """Whether a decorator took over the function that a hook had wrapped."""
        self.special = self.spec.root or self.adopts or self.needs_parent
        """Whether opening it needs more than a span of ours around it, or none."""

    def supersede(self) -> None:
        """Make no spans here any more: a decorator took over the function that a hook had wrapped."""
        self.superseded = self.special = True

    def with_attributes(self, attributes: Mapping[str, AttributeValue] | None) -> Site:
        """Return this site with more static attributes; itself if there are none."""
        return self._copy(self.name, {**self.attributes, **attributes}) if attributes else self

    def for_function(self, function: Callable[..., Any]) -> Site:
        """Return this site with what the decorated function's name tells."""
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

    def _copy(self, name: str, attributes: Mapping[str, AttributeValue]) -> Site:
        return Site(self.spec.verb, name, **{**self._keywords(), "attributes": attributes})

    def _keywords(self) -> dict[str, Any]:
        """Return what a site is made of besides verb and name: whoever makes another one like it takes all of it."""
        return {
            "attributes": dict(self.attributes),
            "extract": self.extract,
            "hook": self.hook,
            "adopts": self.adopts,
            "series": self.series,
            "defaults": self.defaults,
        }

    def read(self, span: Span, arguments: Arguments, result: Any) -> None:
        """Put what the extractor finds in one call on its span; what the decorator says wins. Never raises."""
        if self.extract is None or not (span.start or span.host):
            return
        try:
            host = span.host
            target = host or span
            named = arguments() if callable(arguments) else arguments
            for key, value in (self.extract(named, result) or NO_ATTRIBUTES).items():
                if value is None or key in self.attributes or (self.hook and host and key in host.attributes):
                    continue
                target.set_attribute(key, value)
                if key == attr.REWARD_SCORES and isinstance(value, tuple):
                    target.detail.scores = value  # type: ignore[assignment]  # numbers, of whatever kind
        except Exception as error:
            message = "verl-otel: the extractor of %s failed and was skipped: %r (said once)"
            _guard.say(f"extract {self.name}", message, self.name, error)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.spec.verb, self.name, self._keywords(), self.superseded)


def _rebuild(verb: str, name: str, keywords: dict[str, Any], superseded: bool) -> Site:  # noqa: FBT001 - as pickled
    site = Site(verb, name, **keywords)
    if superseded:
        site.supersede()
    return site
