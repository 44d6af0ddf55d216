# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Creates the exporters that ``VERL_OTEL_EXPORTERS`` names, with their readers of the user's own instruments.

The module of an exporter is imported only if it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_otel._internal import error_boundary
from verl_otel.recording import collection
from verl_otel.recording.state import RECORDER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from verl_otel.config import Config
    from verl_otel.exporting.base import Exporter


def open_all(
    config: Config,
    open_exporter: Callable[[Exporter], None],
    refresh: Callable[[], None],
    announce: Callable[[int], None],
) -> list[tuple[Exporter, Any]]:
    """Create and open every configured exporter; one that cannot be opened is left out and logged.

    Args:
        config: The settings.
        open_exporter: Opens one exporter.
        refresh: Brings the metric state up to date, for a scrape.
        announce: Receives the port that is scraped.

    Returns:
        Each exporter with its reader of the user's own instruments, or None.
    """
    opened = []
    for name in config.exporters:
        try:
            exporter = _make(name, config, refresh, announce)
            open_exporter(exporter)
        except Exception as error:
            error_boundary.may_propagate(error)
            error_boundary.warn_once(
                f"open {name}", "verl-otel: exporter %s cannot start and is left out: %s", name, error
            )
            continue
        opened.append((exporter, _make_user_reader(exporter)))
    return opened


def close_unused(opened: list[tuple[Exporter, Any]], used: Collection[Any]) -> None:
    """Close the readers that no provider uses: the user has providers of their own, and at a scrape the readers would only warn."""
    for exporter, reader in opened:
        if reader is not None and reader not in used:
            reader.shutdown()
            exporter.detach_reader()


def _make(name: str, config: Config, refresh: Callable[[], None], announce: Callable[[int], None]) -> Exporter:
    if name == "file":
        from verl_otel.exporting.files import FileExporter

        return FileExporter(config.run_path, config.file_mib << 20, config.file_count, RECORDER.capacity)
    if name == "otlp":
        from verl_otel.exporting.otlp.exporter import OtlpExporter

        return OtlpExporter(config.memory_mib << 19, config.metric_interval, config.token_file, collection.observed())
    if name == "prometheus":
        from verl_otel.exporting.prometheus import PrometheusExporter

        return PrometheusExporter(config.prometheus_host, config.prometheus_port, refresh, announce)
    if name == "tensorboard":
        from verl_otel.exporting.tensorboard.exporter import TensorBoardExporter

        return TensorBoardExporter(config.run_path)
    from verl_otel.exporting.console import ConsoleExporter

    return ConsoleExporter()


def _make_user_reader(exporter: Any) -> Any:
    """Return a reader of the user's instruments for one exporter alone, or None if it needs none."""
    try:
        if exporter.name == "prometheus":
            from verl_otel.exporting.prometheus import make_reader

            return make_reader(exporter.registry)
        if exporter.name == "otlp" and exporter.needs_reader:
            from verl_otel.exporting.providers import OtlpReader

            exponential = exporter.wants_exponential_histograms
            return OtlpReader(exporter.temporality, exporter.consume_read, exponential=exponential)
    except Exception as error:
        error_boundary.record_internal_error(f"{exporter.name} reader", error)
    return None
