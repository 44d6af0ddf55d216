# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write what Kubernetes needs a second time: ``python generate.py [--dashboards DIR] [--out DIR]``.

Kustomize reads no file outside its folder, so the Collector's configurations are copied into the base; rules become PrometheusRules, boards
ConfigMaps for Grafana's sidecar. All of it is committed, so that ``kubectl apply -k`` works without this; a test compares. It needs
nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
COLLECTOR: Final = HERE.parent
PLACES: Final = (COLLECTOR.parent / "dashboards", COLLECTOR / "dashboards")
"""Where boards and rules are: in a checkout, and beside ``verl-otel boards export otel/dashboards``."""
CONFIGURATIONS: Final = (
    COLLECTOR / "agent.yaml",
    COLLECTOR / "gateway.yaml",
    COLLECTOR / "metrics-by-otlp.yaml",
    HERE / "agent-kubernetes.yaml",
    HERE / "tenant.yaml",
)
NOTE: Final = (
    "# SPDX-FileCopyrightText: The verl-otel authors\n# SPDX-License-Identifier: Apache-2.0\n"
    "# Made by generate.py of collector/deploy: change what it is made from.\n"
)


def copy_configurations() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each configuration in the base."""
    for path in CONFIGURATIONS:
        yield f"kubernetes/base/configuration/{path.name}", path.read_text("utf-8")


def wrap_rules(folder: Path) -> str:
    """Return a PrometheusRule for each file of rules.

    The rules are moved to the right, as they are: nothing of them is read, so nothing can be read in another way.

    Args:
        folder: The folder ``rules`` of the dashboards.
    """
    documents = []
    for path in sorted(folder.glob("*.rules.yml")):
        _, _, groups = path.read_text("utf-8").partition("\ngroups:\n")
        head = f"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {{name: {name_of('verl', path)}}}\nspec:\n"
        lines = (f"  {line}" if line else "" for line in f"groups:\n{groups}".splitlines())
        documents.append(head + "\n".join(lines) + "\n")
    return NOTE + "---\n".join(documents)


def wrap_boards(folder: Path) -> str:
    """Return a ConfigMap for each board, its JSON without blanks: one object of Kubernetes holds 1 MiB, and half of it is blanks.

    Args:
        folder: The folder ``generated`` of the dashboards.
    """
    documents = []
    for path in sorted(folder.glob("*.json")):
        board = json.dumps(json.loads(path.read_text("utf-8")), sort_keys=True, separators=(",", ":"))
        documents.append(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n"
            f"  name: {name_of('verl-board', path)}\n"
            '  labels: {grafana_dashboard: "1"}\n'
            "  annotations: {grafana_folder: verl}\n"
            f"data:\n  verl-{path.name}: |-\n    {board}\n"
        )
    return NOTE + "---\n".join(documents)


def name_of(kind: str, path: Path) -> str:
    """Return the name of the object that is made from a file: ``verl-board-steps``."""
    return f"{kind}-{path.name.partition('.')[0].replace('_', '-')}"


def make(dashboards: Path) -> dict[str, str]:
    """Return the text of each file, by its path below collector/deploy.

    Args:
        dashboards: The folder with ``rules`` and ``generated``.
    """
    return {
        **dict(copy_configurations()),
        "kubernetes/monitoring/rules.yaml": wrap_rules(dashboards / "rules"),
        "kubernetes/grafana/boards.yaml": wrap_boards(dashboards / "generated"),
    }


def main(arguments: Sequence[str]) -> int:
    """Write the files. Returns 0, or 2 if there are no boards and rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dashboards", type=Path, metavar="DIR", help="the folder of `verl-otel boards export`")
    parser.add_argument(
        "--out", type=Path, default=HERE, metavar="DIR", help="folder to write to, in place of this one"
    )
    options = parser.parse_args(arguments)
    dashboards = options.dashboards or next((place for place in PLACES if (place / "rules").is_dir()), None)
    if dashboards is None or not (dashboards / "rules").is_dir():
        print("no boards and rules: verl-otel boards export DIR, then --dashboards DIR", file=sys.stderr)
        return 2
    files = make(dashboards)
    for name, text in files.items():
        (options.out / name).parent.mkdir(parents=True, exist_ok=True)
        (options.out / name).write_text(text, "utf-8")
    print(f"{len(files)} files in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
