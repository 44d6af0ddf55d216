# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The exporters of a session: made of the words of ``VERL_OTEL_EXPORTERS``, with what reads the user's instruments for them.

Their modules are loaded only when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_otel import _guard
from verl_otel.recording import recorder
from verl_otel.recording.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from verl_otel.config import Config
    from verl_otel.exporting.exporter import Exporter


def open_all(
    config: Config,
    begin: Callable[[Exporter], None],
    refresh: Callable[[], None],
    announce: Callable[[int], None],
) -> list[tuple[Exporter, Any]]:
    """Make and open every exporter that is asked for; one that cannot be opened is left out and said.

    Args:
        config: Which, and their settings.
        begin: Opens one.
        refresh: Brings the measurements up to the moment, for a scrape.
        announce: Takes the port that is scraped.

    Returns:
        Each with the reader that it has of the user's own instruments, or None.
    """
    made = []
    for name in config.exporters:
        try:
            exporter = _make(name, config, refresh, announce)
            begin(exporter)
        except Exception as error:
            _guard.say(f"open {name}", "verl-otel: exporter %s cannot start and is left out: %s", name, error)
            continue
        made.append((exporter, _make_reader(exporter)))
    return made


def close_unused(made: list[tuple[Exporter, Any]], used: Collection[Any]) -> None:
    """Close the readers that no provider has: the user's instruments go elsewhere, asked at a scrape they would only warn."""
    for exporter, reader in made:
        if reader is not None and reader not in used:
            reader.shutdown()
            exporter.lose_reader()


def _make(name: str, config: Config, refresh: Callable[[], None], announce: Callable[[int], None]) -> Exporter:
    if name == "file":
        from verl_otel.exporting.files import FileExporter

        return FileExporter(config.run_path, config.file_mib << 20, config.file_count, Store.capacity)
    if name == "otlp":
        from verl_otel.exporting.otlp import OtlpExporter

        return OtlpExporter(config.memory_mib << 19, config.metric_interval, config.token_file, recorder.observed())
    if name == "prometheus":
        from verl_otel.exporting.prometheus import PrometheusExporter

        return PrometheusExporter(config.prometheus_host, config.prometheus_port, refresh, announce)
    from verl_otel.exporting.console import ConsoleExporter

    return ConsoleExporter()


def _make_reader(exporter: Any) -> Any:
    """Return the reader of the user's instruments that an exporter has for itself, or None."""
    try:
        if exporter.name == "prometheus":
            from verl_otel.exporting.prometheus import make_reader

            return make_reader(exporter.registry)
        if exporter.name == "otlp" and exporter.temporality != "cumulative":
            from verl_otel.exporting.providers import DifferenceReader

            return DifferenceReader(exporter.temporality, exporter.put_differences)
    except Exception as error:
        _guard.report(f"{exporter.name} reader", error)
    return None
