// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// All runs: which of them needs attention? Search, filter, order and the two runs to compare are in the address.

import { spark } from "./chart.js";
import {
  ago, bdi, button, changes, clock, count, counted, dataTable, make, number, numbers, percent, prose, seconds, select,
} from "./dom.js";
import { get } from "./source.js";

// How a state looks: running, finished, bad, stalled, or odd.
const LOOKS = {
  running: "running", finished: "finished", ended: "finished", stalled: "stalled",
  failed: "bad", crashed: "bad", "stopped by guard": "bad",
};
const stateOf = (row) => (row.stalled ? "stalled" : row.state);
export const stateDot = (row) => make("span", { class: `state state-${LOOKS[stateOf(row)] ?? "odd"}` }, stateOf(row));
export const runHref = (name, ...more) => `#/run/${[name, ...more].map(encodeURIComponent).join("/")}`;
export const compareHref = (names) => `#/compare/${names.map(encodeURIComponent).join("/")}`;

function progressOf(row) {
  if (!row.planned || row.last_step >= row.planned) return count(row.last_step) || "–";
  const [done, of] = [row.last_step ?? 0, row.planned];
  return make("span", { class: "progress" }, `${count(done)} of ${count(of)}`,
    make("progress", { max: of, value: done, "aria-label": `Steps of ${row.run}` }));
}

function findingOf(row) {
  const soft = (text) => make("span", { class: "soft" }, text);
  if (row.finding === null && row.verdict) return make("span", { class: "finding-text" }, bdi(row.verdict));
  if (row.finding === null && row.state !== "running") return soft("reading …");
  if (row.finding === null) return soft(row.last_step ? "not analysed yet" : "no step has ended yet");
  if (!row.finding) return soft("nothing recorded");
  if (!row.finding.is_finding) return soft(LOOKS[row.state] === "bad" ? "no cause was recorded" : "nothing unusual");
  const cost = row.finding.longer === null ? "▲" : `▲ ${seconds(row.finding.longer)} longer`;
  const [text] = row.finding.text.split(" Without that "); // what it cost stands before it
  return make("span", { class: "finding-text", title: row.finding.text }, make("b", {}, cost), " ", prose(text));
}

// A column of figures, each with a small line of what it was before.
const figure = (title, key, lines, write, look) => ({
  title, number: true, value: (row) => row[key] ?? -Infinity,
  text: (row) => make("span", { class: "figure" },
    spark(row[lines], `${title} of ${row.run}, with those before`, look), row[key] === null ? "–" : write(row[key])),
});

export function homeView(query, go) {
  const keys = ["q", "state", "project", "sort", "a", "b"];
  const wanted = Object.fromEntries(keys.map((key) => [key, query.get(key) ?? ""]));
  const isNew = changes();
  let rows = [];
  const search = make("input", {
    type: "search", placeholder: "Search runs and findings", "aria-label": "Search runs and findings",
    value: wanted.q, oninput: () => change({ q: search.value }),
  });
  const states = select("State", (state) => change({ state }));
  const projects = select("Project", (project) => change({ project }));
  const picked = make("span", { class: "toolbar", role: "status" });
  const summary = make("p", { class: "soft", role: "status" });
  const body = make("div", { class: "runs card" });
  const element = make("div", {}, make("div", { class: "title-row" }, make("h1", {}, "Runs"), summary),
    make("div", { class: "toolbar" }, search, states, projects, picked), body);

  function remember(some) {
    Object.assign(wanted, some);
    const filled = Object.entries(wanted).filter(([, value]) => value);
    go(`#/${filled.length ? `?${new URLSearchParams(filled)}` : ""}`);
  }

  function change(some) {
    remember(some);
    fill();
  }

  function pick(name, isChosen) {
    const chosen = [wanted.a, wanted.b].filter((each) => each && each !== name);
    if (isChosen) chosen.push(name);
    const [a = "", b = ""] = chosen.slice(-2);
    change({ a, b });
  }

  // The run that started first is A.
  function choice() {
    const started = (name) => rows.find((row) => row.run === name)?.started ?? 0;
    const chosen = [wanted.a, wanted.b].filter(Boolean).sort((a, b) => started(a) - started(b));
    if (chosen.length === 2) {
      return [make("a", { class: "button chief", href: compareHref(chosen) }, "Compare the two chosen runs"),
        button("Clear", () => change({ a: "", b: "" }))];
    }
    const hint = chosen.length ? "Choose one more run to compare." : "Tick two runs to compare them.";
    return [make("span", { class: "soft" }, rows.length > 1 ? hint : "")];
  }

  function nameOf(row) {
    const box = make("input", {
      type: "checkbox", id: `choose-${row.run}`, checked: [wanted.a, wanted.b].includes(row.run),
      "aria-label": `Compare ${row.run}`, onchange: (event) => pick(row.run, event.target.checked),
    });
    const project = [row.project, row.experiment].filter(Boolean).join(" / ");
    return make("span", { class: "run-name" }, box, make("span", {},
      make("a", { href: runHref(row.run), id: `open-${row.run}`, title: row.run }, bdi(row.run)),
      make("small", {}, bdi(project))));
  }

  const started = (row) => (row.started ? make("time", { title: clock(row.started) }, ago(row.started)) : "");
  const COLUMNS = [
    { title: "Run", text: nameOf, value: (row) => row.run },
    { title: "State", text: stateDot, value: stateOf },
    { title: "Finding", wide: true, text: findingOf, value: (row) => `${9 - row.attention}${row.finding?.text}` },
    { title: "Steps", number: true, text: progressOf, value: (row) => row.last_step ?? -1 },
    figure("Last step", "last_step_seconds", "seconds_line", seconds, { isTime: true }),
    figure("Reward", "reward", "reward_line", number),
    {
      ...numbers("Productive", (row) => row.productive, percent),
      about: "Share of the device time in which devices trained or generated",
    },
    { title: "Started", number: true, value: (row) => row.started ?? 0, text: started },
  ];

  function isShown(row) {
    const texts = [row.run, row.project, row.experiment, row.finding?.text ?? "", row.verdict];
    return texts.some((text) => text.toLowerCase().includes(wanted.q.toLowerCase()))
      && (!wanted.state || stateOf(row) === wanted.state) && (!wanted.project || row.project === wanted.project);
  }

  function fill() {
    const valuesOf = (read) => [...new Set(rows.map(read).filter(Boolean))].sort().map((each) => [each, each]);
    states.offer([["", "All states"], ...valuesOf(stateOf)], wanted.state);
    projects.offer([["", "All projects"], ...valuesOf((row) => row.project)], wanted.project);
    const some = (text, test) => [rows.filter(test).length, text];
    const words = [
      some("running", (row) => row.state === "running"), some("in need of attention", (row) => row.attention > 1),
      some("ended with a finding", (row) => row.attention === 1),
      some("being read", (row) => row.finding === null && row.state !== "running"),
    ].filter(([size]) => size).map(([size, text]) => `${count(size)} ${text}`);
    summary.replaceChildren(rows.length ? [counted(rows.length, "run"), ...words].join(" · ") : "");
    const focused = body.contains(document.activeElement) ? document.activeElement.id : "";
    const [title, way] = wanted.sort.split(".");
    body.replaceChildren(!rows.length ? emptyHome() : dataTable("Runs", COLUMNS, rows.filter(isShown), {
      page: 50, sorted: title ? { title, down: way === "down" } : null,
      empty: "No run matches the search and the filters.",
      onsort: (by) => remember({ sort: `${by.title}.${by.down ? "down" : "up"}` }),
      look: (row) => ["", "has-finding", "needs"][row.attention],
    }));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    picked.replaceChildren(...choice());
  }

  return {
    element,
    async show() {
      const found = await get("runs");
      if (!isNew(found)) return;
      rows = found;
      fill();
    },
  };
}

const emptyHome = () => make("div", { class: "empty-page" }, make("h2", {}, "There is no run yet."),
  make("p", {}, "Start a training with VERL_OTEL_ENABLED=1, or look at recorded runs:"),
  make("pre", {}, "verl-otel demo --keep runs && verl-otel view runs"));
