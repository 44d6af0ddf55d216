# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The variables of a board: data source, runs, processes, window."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import VariableModel, VariableOption, VariableRefresh, VariableSort

from dashboards.parts.names import label, metric
from dashboards.parts.queries import SOURCE

Variable = Builder[VariableModel]
WIDTHS: Final = "5m,15m,30m,1h,2h,6h,12h,1d"
GPU_SOURCES: Final = {"NVML, by verl-otel": "hw_.+|verl_.+", "DCGM exporter": "DCGM_FI_.+", "Both": ".+"}


def data_source() -> Variable:
    """Return the variable for the Prometheus data source."""
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def trace_source() -> Variable:
    """Return the variable for the Tempo data source. Without a Tempo only the rows that need one are empty."""
    return dashboard.DatasourceVariable("traces").label("Traces").type("tempo")


def _values(name: str, label: str, metric: str, value: str) -> dashboard.QueryVariable:
    """Return a variable for the values of a label; by default all of them."""
    variable = dashboard.QueryVariable(name).label(label).datasource(SOURCE)
    variable = variable.query(f"label_values({metric}, {value})").definition(f"label_values({metric}, {value})")
    variable = variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return variable.multi(True).include_all(True).all_value(".*").current(VariableOption(text="All", value=["$__all"]))


def project() -> Variable:
    """Return the variable for projects, which filters experiments and runs."""
    return _values("project", "Project", metric.RUN_INFO, label.PROJECT)


def experiment() -> Variable:
    """Return the variable for experiments of the chosen projects."""
    return _values("experiment", "Experiment", f'{metric.RUN_INFO}{{{label.PROJECT}=~"$project"}}', label.EXPERIMENT)


def run() -> Variable:
    """Return the variable for runs; by default the latest, because run ids contain their start time."""
    named = f'__name__=~"{metric.RUN_INFO}|{metric.TRAINING_STEPS}"'  # a custom training loop has steps only
    selector = f'{{{named}, {label.PROJECT}=~"$project", {label.EXPERIMENT}=~"$experiment"}}'
    variable = _values("run", "Run", selector, label.RUN_ID).sort(VariableSort.ALPHABETICAL_DESC)
    return variable.current(VariableOption(text="", value=""))


def role() -> Variable:
    """Return the variable for roles of the chosen runs: trainer, agent_loop, and so on."""
    return _values("role", "Role", f'{{{label.RUN_ID}=~"$run", {label.ROLE}=~".+"}}', label.ROLE)


def instance() -> Variable:
    """Return the variable for processes: ``<run>/<role>-<rank>``."""
    selector = f'{{{label.RUN_ID}=~"$run", {label.ROLE}=~"$role", instance=~".+/.+"}}'
    return _values("instance", "Instance", selector, "instance")


def engine_role() -> Variable:
    """Return the variable for the roles of engines: llm_server, reward, teacher."""
    return _values(
        "role",
        "Role",
        f'{{__name__=~"vllm:num_requests_running|sglang:num_running_reqs", {label.RUN_ID}=~"$run"}}',
        label.ROLE,
    )


def engine() -> Variable:
    """Return the variable for engines: ``<run>/<role>-<replica>-<engine>``."""
    selector = f'{{__name__=~"vllm:num_requests_running|sglang:num_running_reqs", {label.RUN_ID}=~"$run", {label.ROLE}=~"$role"}}'
    return _values("instance", "Replica", selector, "instance")


def window() -> Variable:
    """Return the variable for the window of events that happen once a step; by default a twentieth of the time range."""
    variable = dashboard.IntervalVariable("window").label("Window").values(WIDTHS)
    variable = variable.auto(True).step_count(20).min_interval("5m")
    return variable.current(VariableOption(text="auto", value="$__auto_interval_window", selected=True))


def gpu_source() -> Variable:
    """Return the variable for the source of GPU metrics: a name pattern that one of two queries matches."""
    options = [VariableOption(text=text, value=value) for text, value in GPU_SOURCES.items()]
    options[0].selected = True
    variable = dashboard.CustomVariable("gpus").label("GPUs by").options(options).current(options[0])
    return variable.values(",".join(f"{text} : {value}" for text, value in _listed().items()))


def _listed() -> dict[str, str]:
    return {text.replace(",", "\\,"): value for text, value in GPU_SOURCES.items()}


def slow() -> Variable:
    """Return the variable for the minimum duration of trajectories and tool calls in the tables of slow ones."""
    variable = dashboard.CustomVariable("slow").label("Slow from").values("1s,10s,60s,300s,900s")
    options = [VariableOption(text=text, value=text) for text in ("1s", "10s", "60s", "300s", "900s")]
    options[2].selected = True
    return variable.options(options).current(options[2])


def filters() -> Variable:
    """Return ad hoc filters, which Grafana adds to all queries."""
    return dashboard.AdHocVariable("filters").label("Filters").datasource(SOURCE)


RUNS: Final = (project, experiment, run)
"""The variables that select runs, on every board."""
