# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``opentelemetry-instrument``: verl as one of OpenTelemetry's instrumentors, reversible.

Example:
    opentelemetry-instrument python -m verl.trainer.main_ppo ...
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from verl_otel import integrations, plugin, session

_PROVIDERS: Final = ("tracer_provider", "meter_provider")


class VerlInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # older versions have no type hints
    """Instruments verl in this process and in every Ray worker of its jobs.

    Providers that are given to ``instrument`` get spans and metrics by the exporter ``sdk``; in workers the global ones do.
    """

    _switched_on = False
    """Whether the switch in the environment was set here and has to be removed."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that are instrumented."""
        return ("verl >= 0.7",)

    def _instrument(self, **kwargs: Any) -> None:
        if "VERL_OTEL_ENABLED" not in os.environ:
            os.environ["VERL_OTEL_ENABLED"] = "1"  # the workers read it
            self._switched_on = True
        given = {name: kwargs[name] for name in _PROVIDERS if kwargs.get(name) is not None}
        if given:
            plugin.init(**given)
        else:
            plugin.load()

    def _uninstrument(self, **kwargs: Any) -> None:  # noqa: ARG002 - the base class's signature
        session.shutdown()
        integrations.uninstall()
        plugin.unload()
        if self._switched_on:
            os.environ.pop("VERL_OTEL_ENABLED", None)
            self._switched_on = False
