# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The variables of a board: where the data is, which runs, which processes, how wide a window."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import VariableModel, VariableOption, VariableRefresh, VariableSort

from dashboards.parts.queries import SOURCE

Variable = Builder[VariableModel]
WIDTHS: Final = "5m,15m,30m,1h,2h,6h,12h,1d"
GPU_SOURCES: Final = {"NVML, by verl-otel": "hw_.+|verl_.+", "DCGM exporter": "DCGM_FI_.+", "Both": ".+"}


def data_source() -> Variable:
    """Return the choice of a Prometheus."""
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def trace_source() -> Variable:
    """Return the choice of a Tempo. Where there is none, only the rows that say so are empty."""
    return dashboard.DatasourceVariable("traces").label("Traces").type("tempo")


def _values(name: str, label: str, metric: str, value: str) -> dashboard.QueryVariable:
    """Return a choice of the values of a label; every value in the beginning."""
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE)
    made = made.query(f"label_values({metric}, {value})").definition(f"label_values({metric}, {value})")
    made = made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return made.multi(True).include_all(True).all_value(".*").current(VariableOption(text="All", value=["$__all"]))


def project() -> Variable:
    """Return the choice of projects, which narrows that of experiments and runs."""
    return _values("project", "Project", "verl_run_info", "verl_project")


def experiment() -> Variable:
    """Return the choice of experiments of the chosen projects."""
    return _values("experiment", "Experiment", 'verl_run_info{verl_project=~"$project"}', "verl_experiment")


def run() -> Variable:
    """Return the choice of runs; the youngest in the beginning, since an id ends in its time or begins with it."""
    known = '__name__=~"verl_run_info|verl_training_steps_total"'  # somebody's own loop has steps and no more
    chosen = f'{{{known}, verl_project=~"$project", verl_experiment=~"$experiment"}}'
    made = _values("run", "Run", chosen, "verl_run_id").sort(VariableSort.ALPHABETICAL_DESC)
    return made.current(VariableOption(text="", value=""))


def role() -> Variable:
    """Return the choice of roles of the chosen runs: trainer, agent_loop, and so on."""
    return _values("role", "Role", '{verl_run_id=~"$run", verl_role=~".+"}', "verl_role")


def instance() -> Variable:
    """Return the choice of processes: ``<run>/<role>-<rank>``."""
    chosen = '{verl_run_id=~"$run", verl_role=~"$role", instance=~".+/.+"}'
    return _values("instance", "Instance", chosen, "instance")


def engine_role() -> Variable:
    """Return the choice of what engines are there for: llm_server, reward, teacher."""
    return _values(
        "role",
        "Role",
        '{__name__=~"vllm:num_requests_running|sglang:num_running_reqs", verl_run_id=~"$run"}',
        "verl_role",
    )


def engine() -> Variable:
    """Return the choice of engines: ``<run>/<role>-<replica>-<engine>``."""
    chosen = '{__name__=~"vllm:num_requests_running|sglang:num_running_reqs", verl_run_id=~"$run", verl_role=~"$role"}'
    return _values("instance", "Replica", chosen, "instance")


def window() -> Variable:
    """Return the choice of the window for what happens once a step; by itself a twentieth of the time range."""
    made = dashboard.IntervalVariable("window").label("Window").values(WIDTHS)
    made = made.auto(True).step_count(20).min_interval("5m")
    return made.current(VariableOption(text="auto", value="$__auto_interval_window", selected=True))


def gpu_source() -> Variable:
    """Return the choice of who reports GPUs: a name's pattern, so that one query of two finds something."""
    options = [VariableOption(text=text, value=value) for text, value in GPU_SOURCES.items()]
    options[0].selected = True
    made = dashboard.CustomVariable("gpus").label("GPUs by").options(options).current(options[0])
    return made.values(",".join(f"{text} : {value}" for text, value in _listed().items()))


def _listed() -> dict[str, str]:
    return {text.replace(",", "\\,"): value for text, value in GPU_SOURCES.items()}


def slow() -> Variable:
    """Return the duration from which on a trajectory or a tool is listed as slow."""
    made = dashboard.CustomVariable("slow").label("Slow from").values("1s,10s,60s,300s,900s")
    options = [VariableOption(text=text, value=text) for text in ("1s", "10s", "60s", "300s", "900s")]
    options[2].selected = True
    return made.options(options).current(options[2])


def filters() -> Variable:
    """Return free filters, which Grafana adds to queries that have no selector of their own."""
    return dashboard.AdHocVariable("filters").label("Filters").datasource(SOURCE)


RUNS: Final = (project, experiment, run)
"""How runs are chosen, on every board."""
