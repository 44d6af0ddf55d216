// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Two runs: what differs, in the sentences of `verl-otel compare`, then each difference with its significance, then the
// scalars over each other.

import { lineMark, look } from "./colours.js";
import { bdi, changes, dataTable, filled, listOf, make, number, percent, prose, seconds, section } from "./dom.js";
import { compareHref, runHref } from "./home.js";
import { SHARED, scalarChart, scalarName } from "./scalars.js";
import { get, getScalars, runAddress } from "./source.js";
import { stepsOf } from "./timeline.js";

const FULL = 1; // a change of all or more fills its side of the bar

function showValue(value, row) {
  if (value === null) return "–";
  if (row.unit === "GPU s/token") return `${number(value * 1000)} ms`;
  return row.unit === "s" || row.unit === "s per GPU" ? seconds(value) : number(value);
}

function showChange({ change }) {
  if (change === null) return "new";
  return Math.abs(change) < 0.005 ? "0%" : `${change > 0 ? "+" : "−"}${percent(Math.abs(change))}`;
}

// A bar from the middle: to the right more than A, to the left less.
function changeBar(row) {
  const change = row.change ?? Infinity; // new in B
  const size = Math.min(1, Math.abs(change) / FULL) * 50;
  const style = { insetInlineStart: `${change > 0 ? 50 : 50 - size}%`, inlineSize: `${size}%` };
  return make("span", { class: "change-bar", "aria-hidden": "true" }, make("i", { style }));
}

const WORDS = { step: "step", gpu_seconds_per_token: "device time a token", tokens_per_second: "tokens a second" };
function nameOf({ name }) {
  if (WORDS[name]) return WORDS[name];
  if (!name.startsWith("gpu ")) return [make("small", {}, "phase: "), name];
  const key = name.slice(4);
  const isState = ["productive", "overhead", "idle"].includes(key);
  return [make("small", {}, "device: "), isState ? key : look.cause(key)[2]];
}
const COLUMNS = [
  { title: "Of a typical step", text: (row) => make("span", {}, nameOf(row)), value: (row) => row.name },
  ...["a", "b"].map((side) => ({
    title: side.toUpperCase(), number: true, value: (row) => row[side].typical ?? 0,
    text: (row) => showValue(row[side].typical, row),
  })),
  { title: "Change", number: true, value: (row) => row.change ?? Infinity, text: showChange },
  { title: "◂ less · more ▸", fixed: true, change: true, text: changeBar },
  {
    title: "Significant", value: (row) => row.p ?? 2,
    text: (row) => (row.significant ? "yes" : row.p === null ? "" : "no"),
  },
];

// Of A or B, as the lines of the charts are drawn.
const mark = (place) => make("span", {}, lineMark(place), "AB"[place]);

function answerOf({ sentences: [head, ...more], held, notes }) {
  const [main, aside = ""] = head.split(/ (?=\([^()]*\)\.?$)/);
  return filled([make("p", { class: "verdict-line" }, prose(main)), make("p", { class: "soft" }, bdi(aside)),
    [more, held].map((lines) => listOf(lines)), listOf(notes, "plain soft")]);
}

export function compareView(first, second) {
  const names = [first, second];
  const answer = make("div", { "aria-busy": "true" }, make("p", { class: "loading" }, "Both runs are being read …"));
  const body = make("div", { class: "differences" });
  const grid = make("div", { class: "charts" });
  const element = make("div", { class: "compare" },
    make("h1", { class: "pair-title" }, names.map((name, place) =>
      make("span", {}, mark(place), " ", make("a", { href: runHref(name) }, bdi(name))))),
    make("section", { id: "answer", "aria-label": "Answer" }, answer),
    section("differences", "Differences", body), section("both", "Scalars over each other", grid));
  const views = new Map();
  const isNew = changes();

  function show(title, both) {
    if (!views.has(title)) {
      views.set(title, scalarChart(title, { names: (line) => line.whose }));
      grid.append(views.get(title).element);
    }
    views.get(title).update(both);
  }

  async function showScalars(runs) {
    const wanted = [...new Set(runs.flatMap((run) => run.scalars))].filter((name) => SHARED.test(name));
    const found = await Promise.all(names.map((name) => getScalars(name, wanted)));
    await Promise.all(names.map((name) => stepsOf(name).update()));
    const whose = (place) => ({ whose: "AB"[place], labels: {} });
    show("Step without start-up, seconds", runs.map((run, place) => {
      const steps = stepsOf(names[place]);
      const y = steps.seconds.map((value, index) => (run.start_up.includes(index) ? null : value));
      return { ...whose(place), by_steps: true, x: steps.number.map((value, index) => value ?? index), y };
    }));
    const known = new Set();
    for (const each of wanted) {
      const isIt = (line) => line.name === each && !Object.keys(line.labels).length;
      const both = found.flatMap((own, place) => own.filter(isIt).map((line) => ({ ...line, ...whose(place) })));
      const curve = JSON.stringify(both.map((line) => line.y));
      if (both.length && !known.has(curve)) show(scalarName(each), both);
      known.add(curve);
    }
  }

  return {
    element,
    title: `${first} and ${second}`,
    crumbs: () => [["Comparison", compareHref(names)]],
    async refresh() {
      const runs = await Promise.all(names.map((name) => get(runAddress(name))));
      const read = Math.min(...runs.map((run) => run.read));
      if (read < 0.999) {
        answer.replaceChildren(make("p", { class: "loading" }, `Both runs are being read: ${percent(read)} …`));
        return { read };
      }
      const compared = await get(`compare/${names.map(encodeURIComponent).join("/")}`);
      if (!isNew(compared)) return {};
      answer.removeAttribute("aria-busy");
      answer.replaceChildren(...answerOf(compared.texts));
      const rows = [...compared.rows].sort((x, y) => y.significant - x.significant);
      body.replaceChildren(dataTable("Typical step of each run", COLUMNS, rows, {
        page: Math.max(8, rows.findLastIndex((row) => row.significant) + 1),
        empty: "There are too few steps to compare.", look: (row) => (row.significant ? "" : "unsure"),
      }));
      await showScalars(runs);
      return {};
    },
  };
}
