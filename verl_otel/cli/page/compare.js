// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Two runs: what differs, in the sentences of `verl-otel compare`, then each difference with its significance, then the scalars over each other.

import { bdi, dataTable, make, number, percent, seconds, section } from "./dom.js";
import { runHref } from "./home.js";
import { scalarChart, scalarName, stepsOf } from "./run.js";
import { get, getScalars, runAddress } from "./source.js";

const SHARED = /^verl\.(average_reward|critic\.(rewards|score)\.mean|actor\.(pg_loss|kl_loss|ppo_kl|entropy|grad_norm)|response_length\.mean)$/;

function showValue(value, row) {
  if (value === null) return "–";
  return row.unit === "s" ? seconds(value) : number(value);
}

// A bar from the middle: to the right more than A, to the left less; a change of half or more fills its side.
function changeBar(row) {
  if (row.change === null) return "";
  const bar = make("i", { class: row.significant ? undefined : "unsure" });
  const size = Math.min(1, Math.abs(row.change) / 0.5) * 50;
  bar.style.insetInlineStart = `${row.change > 0 ? 50 : 50 - size}%`;
  bar.style.inlineSize = `${size}%`;
  return make("span", { class: "change-bar", "aria-hidden": "true" }, bar);
}

const COLUMNS = [
  { title: "What", text: (row) => row.name },
  { title: "A", number: true, value: (row) => row.a.typical ?? 0, text: (row) => showValue(row.a.typical, row) },
  { title: "B", number: true, value: (row) => row.b.typical ?? 0, text: (row) => showValue(row.b.typical, row) },
  { title: "Unit", text: (row) => (row.unit === "s" ? "" : row.unit) },
  { title: "Change", number: true, value: (row) => row.change ?? 0, text: (row) => (row.change === null ? "" : Math.abs(row.change) < 0.005 ? "0%" : `${row.change > 0 ? "+" : "−"}${percent(Math.abs(row.change))}`) },
  { title: "less than A · more", fixed: true, text: changeBar, value: (row) => row.change ?? 0 },
  { title: "Significant", text: (row) => (row.significant ? "yes" : row.p === null ? "" : "no"), value: (row) => row.p ?? 2 },
];

export function compareView(first, second) {
  const names = [first, second];
  const lead = make("div", { "aria-busy": "true" }, make("p", { class: "loading" }, "Both runs are being read …"));
  const body = make("div");
  const grid = make("div", { class: "charts" });
  const element = make("div", { class: "compare" },
    make("h1", {}, "A ", bdi(first), " and B ", bdi(second)),
    make("section", { id: "answer", "aria-label": "Answer" }, lead),
    section("differences", "Differences of a typical step", body),
    section("both", "Scalars over each other", grid));
  const views = new Map();
  let drawn = "";

  function show(title, lines, hint) {
    if (!views.has(title)) {
      views.set(title, scalarChart(title, { names: (line) => line.whose }));
      grid.append(views.get(title).element);
    }
    views.get(title).update(lines, hint);
  }

  return {
    element,
    title: `${first} and ${second}`,
    crumbs: () => [["Comparison", `#/compare/${names.map(encodeURIComponent).join("/")}`]],
    async refresh() {
      const runs = await Promise.all(names.map((name) => get(runAddress(name))));
      const read = Math.min(...runs.map((run) => run.read));
      if (read < 0.999) {
        lead.replaceChildren(make("p", { class: "loading" }, `Both runs are being read: ${percent(read)} …`));
        return { read };
      }
      const compared = await get(`compare/${names.map(encodeURIComponent).join("/")}`);
      if (JSON.stringify(compared) !== drawn) {
        drawn = JSON.stringify(compared);
        const [head, ...more] = compared.sentences;
        lead.removeAttribute("aria-busy");
        lead.replaceChildren(...[
          make("p", { class: "verdict-line" }, bdi(head)), more.length ? make("ul", { class: "plain" }, more.map((line) => make("li", {}, bdi(line.trim())))) : "",
          ["a", "b"].map((side) => [side, compared.held[side]]).filter(([, held]) => held.steps).map(([side, held]) => make("p", {}, `${side.toUpperCase()}: ${held.steps} of ${held.of} steps took longer than usual, by ${seconds(held.seconds)} in all. `, bdi(held.verdict ?? ""))),
          compared.notes.length ? make("ul", { class: "plain soft" }, compared.notes.map((note) => make("li", {}, bdi(note)))) : "",
          make("p", {}, "A ", make("a", { href: runHref(first) }, bdi(first)), " · B ", make("a", { href: runHref(second) }, bdi(second))),
        ].flat().filter(Boolean));
        body.replaceChildren(dataTable("Typical step of each run", COLUMNS, [...compared.rows].sort((x, y) => y.significant - x.significant), { page: 60, quiet: true, empty: "There are too few steps to compare." }));
      }
      const wanted = [...new Set(runs.flatMap((run) => run.scalars))].filter((name) => SHARED.test(name));
      const [lines] = await Promise.all([Promise.all(names.map((name) => getScalars(name, wanted))), ...names.map((name) => stepsOf(name).update())]);
      const whose = (place) => ({ whose: `${"AB"[place]} ${names[place]}`, labels: {} });
      show("Seconds of a step", names.map((name, place) => ({ ...whose(place), by_steps: true, x: stepsOf(name).number.map((value, index) => value ?? index), y: stepsOf(name).seconds })));
      const known = new Set();
      for (const each of wanted) {
        const both = lines.flatMap((found, place) => found.filter((line) => line.name === each && !Object.keys(line.labels).length).map((line) => ({ ...line, ...whose(place) })));
        const curve = JSON.stringify(both.map((line) => line.y));
        if (both.length && !known.has(curve)) show(scalarName(each), both);
        known.add(curve);
      }
      return {};
    },
  };
}
