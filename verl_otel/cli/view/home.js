// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The table of all runs. Two of them can be chosen for a comparison.

readPalette();
const address = (row) => `${ROOT}run/${encodeURIComponent(row.run)}`;
const when = (value) => (value === null ? "" : clock(value * 1000));
const chosen = new Set();
const link = make("p", { role: "status" });
const body = make("div");
byId("runs").append(body, link);

function showChoice() {
  const [first, second] = [...chosen];
  link.replaceChildren(
    second
      ? make("a", { href: `${ROOT}compare/${encodeURIComponent(first)}/${encodeURIComponent(second)}` }, "Compare the two chosen runs")
      : "Choose two runs to compare them.",
  );
}

function chooser(row) {
  return make("input", {
    type: "checkbox",
    checked: chosen.has(row.run),
    "aria-label": `Compare ${row.run}`,
    id: `choose-${row.run}`,
    onchange: (event) => {
      if (event.target.checked) chosen.add(row.run);
      else chosen.delete(row.run);
      while (chosen.size > 2) chosen.delete([...chosen][0]);
      for (const box of body.querySelectorAll("input")) box.checked = chosen.has(box.id.slice("choose-".length));
      showChoice();
    },
  });
}

const COLUMNS = [
  { title: "run", text: (row) => make("a", { href: address(row), id: `open-${row.run}` }, bdi(row.run)), value: (row) => row.run },
  { title: "state", text: (row) => row.state },
  { title: "step", number: true, value: (row) => row.last_step ?? -1, text: (row) => count(row.last_step) },
  { title: "time of it", number: true, value: (row) => row.last_step_seconds ?? -1, text: (row) => seconds(row.last_step_seconds) },
  { title: "reward", number: true, value: (row) => row.reward ?? -Infinity, text: (row) => number(row.reward) },
  {
    title: "alarms",
    number: true,
    value: (row) => row.alarms,
    text: (row) => (row.alarms ? `${count(row.alarms)}${row.open_alarms ? `, ${count(row.open_alarms)} open` : ""}` : ""),
  },
  { title: "last verdict", text: (row) => row.last?.verdicts[0] || row.verdict },
  { title: "started", text: (row) => when(row.started), value: (row) => row.started ?? 0 },
  { title: "duration", number: true, value: (row) => row.seconds ?? -1, text: (row) => seconds(row.seconds) },
  { title: "compare", text: chooser, value: (row) => (chosen.has(row.run) ? 1 : 0) },
];

let shown = "";
poll(async () => {
  const rows = await fetchJson(`${ROOT}api/runs`);
  if (JSON.stringify(rows) === shown) return;
  shown = JSON.stringify(rows);
  const focused = document.activeElement?.id;
  body.replaceChildren(
    rows.length ? dataTable(counted(rows.length, "run"), COLUMNS, rows) : make("p", {}, "There is no run yet."),
  );
  if (focused) byId(focused)?.focus();
  showChoice();
});
