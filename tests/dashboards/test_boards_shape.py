# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The committed boards: what Grafana takes, what a reader can use, and what the code writes."""

import itertools
import json
import re
from pathlib import Path

import pytest

from dashboards.loader import walk

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not in this environment")
yaml = pytest.importorskip("yaml", reason="PyYAML is not in this environment")

pytestmark = pytest.mark.sources

HERE = Path(__file__).resolve().parent
DASHBOARDS = HERE.parents[1] / "dashboards"
PATHS = sorted((DASHBOARDS / "generated").glob("*.json"))
UIDS = {
    "overview": "verl-run-overview",
    "steps": "verl-step-anatomy",
    "rollouts": "verl-rollouts",
    "engines": "verl-engines",
    "training": "verl-training",
    "gpus": "verl-gpus",
    "pipeline": "verl-pipeline",
    "monitor": "verl-rl-training-monitor",
}
"""In people's bookmarks: written down once more, so that none changes unseen."""
PANELS = {
    "timeseries": "timeseries",
    "stat": "stat",
    "heatmap": "heatmap",
    "state-timeline": "statetimeline",
    "table": "table",
}
UNITS = {"short", "none", "s", "bytes", "gbytes", "Bps", "percent", "percentunit", "watt", "celsius", "hertz", "sci"}
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
TEMPO = {"type": "tempo", "uid": "${traces}"}


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def board(request):
    """Each committed board."""
    return json.loads(request.param.read_text())


def shown(board):
    return [panel for panel in walk(board["panels"]) if panel["type"] != "row"]


def schema(name, definition=""):
    found = json.loads((HERE / "schemas" / f"{name}.json").read_text())
    if name == "dashboard":  # the schema says "object" where Grafana's own says "any value"
        found["definitions"]["DynamicConfigValue"]["properties"]["value"] = {}
        found["definitions"]["MatcherConfig"]["properties"]["options"] = {}
    return jsonschema.Draft7Validator({**found, **({"$ref": f"#/definitions/{definition}"} if definition else {})})


def test_the_eight_boards_have_their_addresses():
    """Names of files and uids stay: bookmarks and links lead to them."""
    assert {path.stem: json.loads(path.read_text())["uid"] for path in PATHS} == UIDS


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_committed_boards_are_what_the_code_writes(tmp_path):
    """Regenerating gives the same bytes."""
    pytest.importorskip("grafana_foundation_sdk", reason="the generator's SDK is not in this environment")
    from dashboards import build

    build.main([str(tmp_path)])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in PATHS
    }


def test_grafanas_schema_holds(board):
    """The board, each query and each panel's own options are what Grafana's schema says."""
    schema("dashboard").validate(board)
    for panel in shown(board):
        kind = PANELS[panel["type"]]
        schema(kind, "Options").validate(panel.get("options", {}))
        if "custom" in panel["fieldConfig"]["defaults"]:
            schema(kind, "FieldConfig").validate(panel["fieldConfig"]["defaults"]["custom"])
        for target in panel["targets"]:
            schema(target["datasource"]["type"], "Dataquery").validate(target)


def test_every_version_of_grafana_can_read_it(board):
    """The schema version is one that Grafana 10 knows; newer ones migrate it. Nothing needs a plugin that is not in it."""
    assert board["schemaVersion"] == 39
    assert board["editable"] is False
    assert {panel["type"] for panel in shown(board)} <= set(PANELS)


def test_panels_do_not_overlap(board):
    """Panels lie in the 24 columns, beside and below each other, without a hole at the end of a line, and so do those of folded rows."""
    folded = [panel for panel in board["panels"] if panel["type"] == "row" and panel.get("collapsed")]
    for panels in (board["panels"], *(row["panels"] for row in folded)):
        taken = {}
        for panel in panels:
            place = panel["gridPos"]
            assert 0 <= place["x"] < place["x"] + place["w"] <= 24
            for cell in itertools.product(
                range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
            ):
                assert taken.setdefault(cell, panel["title"]) == panel["title"]
        for line in {panel["gridPos"]["y"] for panel in panels}:
            assert sum(panel["gridPos"]["w"] for panel in panels if panel["gridPos"]["y"] == line) == 24
    ids = [panel["id"] for panel in walk(board["panels"])]
    assert len(set(ids)) == len(ids)
    assert all(ids)


def is_stacked(panel):
    return panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"


def test_repeated_panels_have_a_line_of_their_own(board):
    """A panel that is repeated for each run takes the whole width: its copies push nothing aside."""
    for panel in shown(board):
        if "repeat" in panel:
            assert (panel["repeat"], panel["repeatDirection"], panel["gridPos"]["w"]) == ("run", "h", 24)
        elif panel["type"] == "state-timeline" or is_stacked(panel):
            assert "all chosen runs together" in panel["description"], panel["title"]


def test_panels_say_what_they_show(board):
    """A title, a text of some length, a unit that Grafana knows, and queries with letters of their own."""
    titles = [panel["title"] for panel in shown(board)]
    assert len(set(titles)) == len(titles)
    for panel in shown(board):
        assert len(panel["description"]) > 50, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))
        assert letters


def test_data_comes_from_the_chosen_sources(board):
    """No panel names a data source of somebody's machine; what needs traces stands in a folded row that says so."""
    for panel in shown(board):
        assert panel["datasource"] in (PROMETHEUS, TEMPO)
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    open_panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert all(panel["datasource"] == PROMETHEUS for panel in open_panels), "it would be broken without a trace store"
    for row in board["panels"]:
        if row["type"] == "row" and row.get("collapsed"):
            assert all((panel["datasource"] == TEMPO) == ("Tempo" in row["title"]) for panel in row["panels"])


def test_variables_are_used_and_known(board):
    """Every variable of a text exists, and none is shown that changes nothing."""
    text = json.dumps({**board, "templating": None})
    listed = board["templating"]["list"]
    names = [variable["name"] for variable in listed]
    everything = text + json.dumps([variable.get("query", "") for variable in listed])
    used = {name or other for name, other in re.findall(r"\$\{(\w+)|\$([A-Za-z]\w*)", everything)} - {""}
    assert {name for name in used if not name.startswith("__")} <= set(names)
    assert set(names) - used <= {"filters"}
    assert names[0] == "datasource"
    assert {"project", "experiment", "run"} <= set(names)
    for variable in listed:
        if variable["type"] == "query":
            assert (variable["refresh"], variable["multi"], variable["includeAll"]) == (2, True, True)
            assert variable["datasource"] == PROMETHEUS
            assert re.search(r"[$]run|[$]project|verl_run_info", variable["query"])


def test_links_carry_time_and_run(board):
    """Whoever follows a link looks at the same time and the same run."""
    (to_boards,) = board["links"]
    assert (to_boards["type"], to_boards["keepTime"], to_boards["includeVars"]) == ("dashboards", True, True)
    assert to_boards["tags"] == ["verl-otel"]
    assert "verl-otel" in board["tags"]
    links = [link for panel in shown(board) for link in panel["fieldConfig"]["defaults"].get("links", ())]
    links += [
        link
        for panel in shown(board)
        for override in panel["fieldConfig"].get("overrides", ())
        for setting in override["properties"]
        if setting["id"] == "links"
        for link in setting["value"]
    ]
    for link in links:
        uid, parameters = re.fullmatch(r"/d/([\w-]+)\?(.*)", link["url"]).groups()
        assert uid in UIDS.values()
        assert {"${__url_time_range}", "${datasource:queryparam}"} <= set(parameters.split("&"))
        assert "var-run=${" in parameters


def test_links_use_labels_that_the_curves_have():
    """A link that takes the run from a curve stands only where each curve has it."""
    pytest.importorskip("promql_parser", reason="promql-parser is not in this environment")
    from tests.dashboards import promql, vocabulary

    for path in PATHS:
        for panel in shown(json.loads(path.read_text())):
            if panel["fieldConfig"]["defaults"].get("links"):
                for target in panel["targets"]:
                    assert "verl_run_id" in promql.labels(promql.parse(target["expr"]), vocabulary.names()), panel[
                        "title"
                    ]


def test_thresholds_rise(board):
    """Bounds are in order, the first is below everything."""
    for panel in shown(board):
        steps = [step["value"] for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ())]
        assert not steps or (steps[0] is None and steps[1:] == sorted(steps[1:]))


def test_traceql_stands_in_one_file():
    """A change of Tempo's language is one change here."""
    for path in DASHBOARDS.rglob("*.py"):
        if path.name != "traces.py":
            assert not re.search(r"resource\.verl|name = \\?\"verl\.|\| select\(", path.read_text()), path
    found = [
        target["query"]
        for path in PATHS
        for panel in shown(json.loads(path.read_text()))
        for target in panel["targets"]
        if "query" in target
    ]
    assert len(found) == 4
    for query in found:
        assert query.count("{") - query.count("${") == query.count("}") - query.count("${") == 1
        assert 'resource.verl.run.id =~ "${run:pipe}"' in query


def test_traceql_asks_for_what_is_recorded():
    """Names of spans and attributes in TraceQL are in the contract."""
    from verl_otel.semconv import attributes, spans

    known = {value for value in vars(attributes).values() if isinstance(value, str)}
    for path in PATHS:
        for panel in shown(json.loads(path.read_text())):
            for target in panel["targets"]:
                query = target.get("query", "").replace("${run:pipe}", "x").replace("$slow", "1s")
                assert set(re.findall(r"(?:span|resource)\.([a-z_.]+[a-z_])", query)) <= known
                for name in re.findall(r'name = "([\w.]+)"', query):
                    assert name in {row.name for row in spans.SPANS.values()}


def test_nothing_names_a_machine(board):
    """No address, no path of a home, no host."""
    assert not re.search(r"https?://|localhost|127\.0\.0\.1|/home/|/[r]oot/", json.dumps(board))


def test_provisioning_fits_the_boards():
    """Grafana's own files name the data sources that exemplars lead to, and read addresses from the environment."""
    sources = yaml.safe_load((DASHBOARDS / "provisioning" / "datasources" / "verl.yaml").read_text())["datasources"]
    by_type = {source["type"]: source for source in sources}
    assert set(by_type) == {"prometheus", "tempo"}
    exemplars = by_type["prometheus"]["jsonData"]["exemplarTraceIdDestinations"][0]
    assert (exemplars["name"], exemplars["datasourceUid"]) == ("trace_id", by_type["tempo"]["uid"])
    assert {source["url"] for source in sources} == {"${PROMETHEUS_URL}", "${TEMPO_URL}"}
    (provider,) = yaml.safe_load((DASHBOARDS / "provisioning" / "dashboards" / "verl.yaml").read_text())["providers"]
    assert (provider["type"], provider["options"]["path"]) == ("file", "${VERL_OTEL_BOARDS}")
    pytest.importorskip("promql_parser", reason="promql-parser is not in this environment")
    from tests.dashboards import promql, vocabulary

    for query in by_type["tempo"]["jsonData"]["tracesToMetrics"]["queries"]:
        text = query["query"].replace("$$__tags", 'verl_run_id="r"')
        assert promql.faults(text, vocabulary.names()) == []
