// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Two runs: what differs, in the sentences of `verl-otel compare`, then each difference with its significance, then the
// scalars over each other.

import { lineMark, look } from "./colours.js";
import {
  bdi, clock, counted, dataTable, listOf, make, number, percent, prose, seconds, section, untitled, whole,
} from "./dom.js";
import { runHref } from "./home.js";
import { SHARED, chartGrid, scalarName } from "./scalars.js";
import { get, getScalars, runAddress, stepsOf } from "./source.js";

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
  const style = { "inset-inline-start": `${change > 0 ? 50 : 50 - size}%`, "inline-size": `${size}%` };
  return make("span", { class: "change-bar", "aria-hidden": "true" }, make("i", { style }));
}

const WORDS = {
  step: "step", gpu_seconds_per_token: "device time a token", tokens_per_second: "tokens a second, all devices",
};
const soft = (text) => make("span", { class: "soft" }, text);
function nameOf({ name }) {
  if (WORDS[name]) return WORDS[name];
  if (!name.startsWith("gpu ")) return [soft("phase: "), name];
  const key = name.slice(4);
  const isState = ["productive", "overhead", "idle"].includes(key);
  return [soft("device: "), isState ? key : look.cause(key)[2]];
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

const runFacts = ({ state, steps, explain }) => ` ${state}, ${counted(steps, "step")}, started ${clock(explain.start)}`;

function answerOf({ sentences: [head, ...more], held, notes }) {
  const [main, aside = ""] = head.split(/ (?=\([^()]*\)\.?$)/);
  return [make("p", { class: "verdict-line" }, prose(main)), make("p", { class: "soft" }, bdi(aside)),
    listOf(more), listOf(held), listOf(notes, "plain soft")];
}

// The charts of both runs over each other, those that are the same curve once.
async function drawScalars(grid, names, runs) {
  const wanted = [...new Set(runs.flatMap((run) => run.scalars))].filter((name) => SHARED.test(name));
  const found = await Promise.all(names.map((name) => getScalars(name, wanted)));
  await Promise.all(names.map((name) => stepsOf(name).update()));
  const times = runs.map((run, place) => {
    const steps = stepsOf(names[place]);
    const y = steps.seconds.map((value, index) => (run.start_up.includes(index) ? null : value));
    return { labels: {}, by_steps: true, x: steps.number.map((value, index) => value ?? index), y };
  });
  const both = (title, lines) => ({ title, lines: lines.flatMap((own, place) =>
    own.map((line) => ({ ...line, whose: "AB"[place] }))) });
  const scalars = wanted.map((each) => both(scalarName(each), found.map((own) =>
    own.filter((line) => line.name === each && !Object.keys(line.labels).length))));
  const curves = new Map(scalars.map((each) => [JSON.stringify(each.lines.map((line) => line.y)), each]));
  await grid.update([{ ...both("Step without start-up", times.map((line) => [line])), unit: seconds },
    ...[...curves.values()].filter((each) => each.lines.length)]);
}

export function compareView(...names) {
  async function load() {
    const runs = await Promise.all(names.map((name) => get(runAddress(name))));
    const read = Math.min(...runs.map((run) => run.read));
    if (read < 0.999) return { read };
    return { runs, compared: await get(`compare/${names.map(encodeURIComponent).join("/")}`) };
  }

  function draw({ read, runs, compared }) {
    const heading = make("h1", { class: "pair-title" }, names.map((name, place) =>
      make("span", {}, lineMark(place), "AB"[place], " ", make("a", { href: runHref(name) }, bdi(name)),
        make("small", {}, runs ? runFacts(runs[place]) : ""))));
    if (!compared) return [heading, make("p", { class: "loading" }, `Both runs are being read: ${percent(read)} …`)];
    const rows = [...compared.rows].sort((x, y) => y.significant - x.significant);
    const grid = chartGrid();
    drawScalars(grid, names, runs);
    return [
      heading, untitled("answer", "Answer", answerOf(compared.texts)),
      rows.length ? section("differences", "Differences", dataTable("Typical step of each run", COLUMNS, rows, {
        page: Math.max(8, rows.findLastIndex((row) => row.significant) + 1),
        look: (row) => (row.significant ? "" : "unsure"),
      })) : "",
      section("both", "Scalars over each other", grid.element),
    ];
  }

  return whole(load, draw);
}
