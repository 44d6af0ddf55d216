# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""No query of a board can ask for what does not exist, or treat it as something that it is not."""

import re

import pytest

pytest.importorskip("promql_parser", reason="promql-parser is not in this environment")

from dashboards import loader
from dashboards.loader import walk
from tests.dashboards import promql, scenes, vocabulary

pytestmark = pytest.mark.sources

BOARDS = loader.read()
FOUNDING = {
    "rate(verl_training_steps_total[5m])",
    "histogram_quantile(0.95, sum(rate(verl_sample_generation_seconds_bucket[5m])) by (le))",
    "verl_gpu_memory_used_bytes / 1024 / 1024 / 1024",
    "verl_average_reward",
}
"""Written down from the guide, and not from the board."""
UNNAMED = (
    "otelcol_",
    "prometheus_",
    "DCGM_",
    "hw_",
    "verl_gpu_thrott",
    "verl_gpu_clock",
    "verl_gpu_link",
    "verl_gpu_memory_io",
    "verl:threshold",
)
"""Names that know no run, or are joined with the run's owners of GPUs."""


def queries():
    """Return (board, panel, target) of every PromQL query."""
    for name, board in BOARDS.items():
        for panel in walk(board["panels"]):
            for target in panel.get("targets", ()):
                if "expr" in target:
                    yield pytest.param(panel, target, id=f"{name}-{panel['title']}-{target['refId']}")


def expressions():
    """Return every expression of a board: of panels, annotations and variables."""
    for name, board in BOARDS.items():
        for each in walk(board["panels"]):
            yield from ((name, target["expr"]) for target in each.get("targets", ()) if "expr" in target)
        yield from ((name, each["expr"]) for each in board["annotations"]["list"])


@pytest.mark.parametrize(("panel", "target"), list(queries()))
def test_query_asks_for_what_exists_and_for_the_chosen_runs(panel, target):
    """Every name is in the catalogue or in a recorded sample, with its labels, and is used as what it is.

    Each selector of what knows its run asks for the chosen ones: those of one run never show the values of another.
    """
    query = promql.parse(target["expr"])
    assert promql.faults(target["expr"], vocabulary.names()) == []
    wanted = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
    assert wanted <= promql.labels(query, vocabulary.names()), "a legend of a label that is not there"
    if panel["type"] == "heatmap":
        assert (target["format"], target["legendFormat"]) == ("heatmap", "{{le}}")
    for use in promql.uses(query, vocabulary.names()) if target["expr"] not in FOUNDING else ():
        if all(name.startswith(UNNAMED) for name in use.names):
            continue
        chosen = dict(use.matchers)
        of_projects = chosen.get("verl_project") == "$project" and chosen.get("verl_experiment") == "$experiment"
        if not of_projects and panel["title"] != "Runs":
            assert chosen.get("verl_run_id") == ("$run|" if use.names == ("ALERTS",) else "$run"), use


def test_gpus_without_a_run_are_joined_with_their_owners():
    """The hardware's own series know the process that read them, not the one that uses them."""
    for panel in walk(BOARDS["gpus"]["panels"]):
        for target in panel.get("targets", ()):
            if re.search(r"DCGM_FI|hw_gpu|hw_power|hw_temp|hw_energy|hw_errors|gpu_throttled", target["expr"]):
                assert "verl_gpu_owner{" in target["expr"]


ALTERNATIVES = {
    "verl_actor_kl_loss": "verl_actor_reward_kl_penalty",
    "hw_gpu_utilization_ratio": "DCGM_FI_DEV_GPU_UTIL",
}
"""Two names of one quantity, of which the configuration of a run or of a node decides which one there is."""


@pytest.mark.parametrize(("name", "alternative"), ALTERNATIVES.items())
def test_a_quantity_with_two_names_is_requested_by_both(name, alternative):
    """A panel that reads one of the names reads the other, too: it is empty for no run that has either."""
    asking = {
        panel["title"]: text
        for board in BOARDS.values()
        for panel in walk(board["panels"])
        if name in (text := " ".join(target.get("expr", "") for target in panel.get("targets", ())))
    }
    assert asking
    assert [title for title, text in asking.items() if alternative not in text] == []


def test_windows_fit_what_is_counted():
    """Windows are Grafana's rate interval, the board's window or its range, but for the founding guide's own five minutes."""
    for name, text in expressions():
        found = set(re.findall(r"\[([^\]]+)\]", text))
        assert found <= {"$__rate_interval", "$window", "$__range"} or text in FOUNDING, (name, text)


def test_what_ends_once_a_step_has_a_window_for_steps():
    """Steps, phases, syncs and worker calls may be hours apart: a rate interval of seconds would find nothing between two of them."""
    slow = r"(verl_(step|phase|weight_sync|checkpoint|validation|sample|worker_call)\w*_(sum|count|bucket|total))\{[^}]*\}\[\$__rate_interval\]"
    for name, board in BOARDS.items():
        for panel in walk(board["panels"]):
            for target in panel.get("targets", ()):
                assert not re.search(slow, target.get("expr", "")), (name, panel["title"])


def test_counters_since_the_start_say_so():
    """A counter is shown as it is only where the text says that it counts since the start."""
    for board in BOARDS.values():
        for panel in walk(board["panels"]):
            for target in panel.get("targets", ()):
                for use in promql.uses(promql.parse(target["expr"]), vocabulary.names()) if "expr" in target else ():
                    counters = [name for name in use.names if vocabulary.names()[name].kind == "counter"]
                    if counters and not set(use.around) & {"rate", "increase", "changes", "resets"}:
                        assert "since the start" in panel["description"], (panel["title"], counters)


def test_durations_carry_exemplars():
    """Percentiles of what makes a span ask for exemplars, so that a point opens a trace."""
    spans = r"verl_(step|rollout_trajectory|rollout_turn|tool_call|weight_sync|reward)_duration_seconds_bucket"
    for board in BOARDS.values():
        for panel in walk(board["panels"]):
            high = [target for target in panel.get("targets", ()) if re.search(spans, target.get("expr", ""))]
            assert not high or any(target.get("exemplar") for target in high), panel["title"]


def test_every_metric_of_the_catalogue_is_on_a_board():
    """A metric that nobody can see is not worth its series: a new row of the catalogue needs a panel."""
    seen = {
        re.sub("_(bucket|sum|count)$", "", name)
        for _, text in expressions()
        for use in promql.uses(promql.parse(text), vocabulary.names())
        for name in use.names
    }
    second_names = {
        "gen_ai_execute_tool_duration_seconds",
        "gen_ai_invoke_agent_duration_seconds",
    }  # of series on a board
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in vocabulary.catalogue()} - second_names <= seen


@pytest.mark.parametrize("stem", ["hardware", "seldom"])
def test_samples_of_our_own_are_of_the_catalogue(stem):
    """What stands in for a GPU or a failure has names, kinds and labels that verl-otel would give it."""
    emitted = {**vocabulary.recorded("scalars"), **vocabulary.catalogue()}
    for line in (vocabulary.SAMPLES / f"{stem}.prom").read_text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            ends = {"histogram": ("_count", "count")}.get(kind, ("", kind))
            assert emitted[f"{name}{ends[0]}"].kind == ends[1], name
        elif not line.startswith("#"):
            name, labels = line.split("{")[0], re.findall(r'(\w+)="', line)
            assert set(labels) <= emitted[name].labels, line


def test_annotations_and_variables_ask_for_what_exists():
    """Marks and choices are lint-free, too: a variable of a name that is gone would empty every panel."""
    known = vocabulary.names()
    for board in BOARDS.values():
        assert {each["name"] for each in board["annotations"]["list"]} == {"Weight sync", "Checkpoint", "Resume"}
        for each in board["annotations"]["list"]:
            assert promql.faults(each["expr"], known) == []
            assert each["target"]["expr"] == each["expr"], "Grafanas differ in where they read it"
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
                tree = promql.parse(selector)
                (use,) = promql.uses(tree, known)
                assert {name for name, _ in use.matchers} <= frozenset().union(
                    *(known[name].labels for name in use.names)
                )
                assert label in promql.labels(tree, known)


def test_the_founding_guides_charts_are_in_the_monitor_to_the_letter():
    """Whoever has the guide's board finds its four queries, unchanged, in the first row."""
    first = [panel for panel in BOARDS["monitor"]["panels"] if panel["type"] != "row"][:4]
    assert {panel["targets"][0]["expr"] for panel in first} == FOUNDING


def test_second_guides_rows_are_in_the_monitor_in_order():
    """Rows 1 to 4 of the second guide, each with its panels from left to right, under their names in words."""
    panels = BOARDS["monitor"]["panels"]
    titles = [panel["title"] if panel["type"] == "row" else _name(panel["title"]) for panel in panels]
    order = [
        "reward_mean", "kl_divergence", "entropy", "critic_loss", "actor_loss", "gpu_utilization", "rollout_latency_seconds", "throughput",
        "memory_usage",
    ]  # fmt: skip
    places = [titles.index(title) for title in order]
    assert places == sorted(places)
    rows = [index for index, title in enumerate(titles) if title.startswith("Row ")]
    assert len(rows) == 4
    assert [sum(row < place for row in rows) for place in places] == [1, 1, 1, 2, 2, 3, 3, 4, 4]


def _name(title):
    return title.lower().replace(",", "").replace(" ", "_")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate(verl_average_reward[5m])", "is a gauge"),
        ("sum(verl_nothing_total)", "nobody exports"),
        ("rate(verl_training_steps_total[5m]", "unclosed"),
        ("deriv(verl_training_steps_total[5m])", "only grows"),
        ("histogram_quantile(0.9, sum by (le) (rate(verl_step_duration_seconds_sum[5m])))", "no buckets"),
        ("histogram_quantile(0.9, sum by (verl_phase) (rate(verl_phase_duration_seconds_bucket[5m])))", "without le"),
        ("sum by (le) (verl_step_duration_seconds_bucket)", "since the start"),
        ('verl_phase_active{verl_fase="gen"}', "no label verl_fase"),
        ("sum by (verl_fase) (verl_phase_active)", "no series has it"),
        ("verl_average_reward / on (verl_phase) verl_phase_active", "one side has it not"),
    ],
)
def test_lint_finds(text, said):
    """Each fault that the lint is there for is found, and named."""
    found = promql.faults(text, vocabulary.names())
    assert found
    assert any(said in each for each in found), found


@pytest.mark.parametrize("end", ["", "_total"])
def test_tail_sampling_counts_as_dropped_what_was_never_decided(tmp_path, promtool, end):
    """Of 1000 trajectories 100 were kept, 850 were not, 30 wait: 20 were dropped, whatever the counter of early drops says. At first: none."""
    (panel,) = (each for each in walk(BOARDS["pipeline"]["panels"]) if each["title"] == "Collector: tail sampling")
    (asked,) = (each["expr"] for each in panel["targets"] if "dropped" in each["legendFormat"])
    sampler, at = "otelcol_processor_tail_sampling", 'instance="a",job="otelcol"'
    decided = f"{sampler}_global_count_traces_sampled{end}"
    scene = scenes.Scene(
        "tail sampling",
        {
            f"{sampler}_new_trace_id_received{end}{{{at}}}": [30, 30, 1000, 1000],
            f'{decided}{{{at},decision="sampled",sampled="true"}}': [None, None, 100, 100],
            f'{decided}{{{at},decision="notSampled",sampled="false"}}': [None, None, 850, 850],
            f"{sampler}_sampling_traces_on_memory{{{at}}}": [30, 30, 30, 30],
            f"{sampler}_sampling_trace_dropped_too_early{end}{{{at}}}": [0, 0, 120, 120],
        },
        {},
        values={(0, asked): {'{instance="a"}': 0}, (2, asked): {'{instance="a"}': 20}},
        interval=60,
    )
    wrong = scenes.judge(promtool, [scene], ["pipeline"], tmp_path)["tail sampling"]
    assert not wrong, wrong


def test_work_of_a_role_is_what_the_alert_takes_for_it():
    """The phases of each role on the board are those of the rule behind GPUUnderused."""
    (rule,) = [each["expr"] for *_, each in scenes.read_rules() if each.get("record") == "run_role:verl_working"]
    said = {role: phases for phases, role in re.findall(r'verl_phase=~"([^"]+)"\} > 0, "verl_role", "(\w+)"', rule)}
    panels = loader.walk(BOARDS["gpus"]["panels"])
    (panel,) = (each for each in panels if each["title"] == "GPU utilisation while the role has work")
    pattern = re.compile(r'verl_role=~"(\w+)".*verl_phase=~"([^"]+)"')
    shown = dict(match for target in panel["targets"] for match in pattern.findall(target["expr"]))
    assert said
    assert shown == said
