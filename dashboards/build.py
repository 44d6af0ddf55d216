# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the boards as Grafana's classic JSON, the thresholds as rules, and the alerts for Grafana: ``python -m dashboards.build [FOLDER]``.

They are committed, so that no Python is needed to use them; tests compare them with what this writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import alerting
from dashboards.boards import BOARDS
from dashboards.loader import FOLDER, walk
from dashboards.parts.board import Board
from verl_otel.health import profiles, rules_file

RULES: Final = Path(__file__).resolve().parent / "rules"


def encode(board: Board) -> str:
    """Return the JSON of a board, the same bytes each time."""
    model = json.loads(JSONEncoder().encode(board.build()))
    for part in (*model["annotations"]["list"], *model["links"]):
        part.pop("placement", None)  # the SDK hides them in a menu; they belong at the top
    for variable in model["templating"]["list"]:
        if variable["type"] != "interval":
            for name in ("auto", "auto_min", "auto_count"):
                variable.pop(name, None)
    for panel in walk(model["panels"]):
        if "repeat" not in panel:
            panel.pop("repeatDirection", None)
    return json.dumps(model, sort_keys=True, indent=2) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write every board, and remove what is no board any more."""
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / f"{board.name}.json": encode(board) for board in BOARDS}
    for path in set(folder.glob("*.json")) - set(written):
        path.unlink()
    for path, text in written.items():
        path.write_text(text, "utf-8")
    if not arguments:
        (RULES / rules_file.FILE).write_text(rules_file.render(profiles.load()), "utf-8")
        alerting.FILE.parent.mkdir(exist_ok=True)
        alerting.FILE.write_text(alerting.render(), "utf-8")
    print(f"{len(written)} boards in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
