// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// All runs: which of them needs attention? Search, filter, order and the two runs to compare are in the address.

import { spark } from "./chart.js";
import { ago, bdi, button, clock, count, counted, dataTable, make, number, percent, seconds } from "./dom.js";
import { get } from "./source.js";

const BAD = ["failed", "crashed", "stopped by guard"];
// The state of a run as a word and a class.
export function stateOf(row) {
  const word = row.stalled && row.state === "running" ? "stalled" : row.state;
  const look = word === "running" ? "running" : word === "finished" || word === "ended" ? "finished" : word === "stalled" ? "stalled" : BAD.includes(word) ? "bad" : "odd";
  return [word, look];
}

export function stateDot(row) {
  const [word, look] = stateOf(row);
  return make("span", { class: `state state-${look}` }, word);
}

export const runHref = (name, ...more) => `#/run/${[name, ...more].map(encodeURIComponent).join("/")}`;

function progressOf(row) {
  const text = row.planned ? `${count(row.last_step ?? 0)} of ${count(row.planned)}` : count(row.last_step);
  const bar = row.planned ? make("progress", { max: row.planned, value: Math.min(row.planned, row.last_step ?? 0), "aria-label": `Steps of ${row.run}` }) : "";
  return make("span", { class: "progress" }, text || "–", bar);
}

function needs(row) {
  const finding = row.finding;
  if (finding?.is_finding) return 2;
  return stateOf(row)[1] === "bad" || stateOf(row)[1] === "stalled" ? 3 : 0;
}

function findingOf(row) {
  if (row.finding === null && row.verdict) return make("span", { class: "finding-text" }, bdi(row.verdict));
  if (row.finding === null && row.state === "running") return make("span", { class: "soft" }, "no step has ended yet");
  if (row.finding === null) return make("span", { class: "soft" }, "is being read");
  if (!row.finding) return make("span", { class: "soft" }, "nothing recorded");
  if (!row.finding.is_finding) return make("span", { class: "soft" }, "nothing unusual");
  const cost = row.finding.saved === null ? "▲" : `▲ ${seconds(row.finding.saved)}`;
  return make("span", { class: "finding-text", title: row.finding.text }, make("b", {}, cost), " ", bdi(row.finding.text));
}

export function homeView(query, go) {
  const wanted = { q: query.get("q") ?? "", state: query.get("state") ?? "", project: query.get("project") ?? "", sort: query.get("sort") ?? "", a: query.get("a") ?? "", b: query.get("b") ?? "" };
  let rows = null;
  let drawn = "";
  const search = make("input", { type: "search", placeholder: "Search runs and findings", "aria-label": "Search runs and findings", value: wanted.q, oninput: () => change({ q: search.value }) });
  const states = make("select", { "aria-label": "State", onchange: () => change({ state: states.value }) });
  const projects = make("select", { "aria-label": "Project", onchange: () => change({ project: projects.value }) });
  const picked = make("span", { class: "picked", role: "status" });
  const summary = make("p", { class: "lead", role: "status" });
  const body = make("div", { class: "runs" });
  const element = make("div", { class: "home" }, make("h1", {}, "Runs"), summary, make("div", { class: "toolbar" }, search, states, projects, picked), body);

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
    for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = box.value === a || box.value === b;
  }

  // The run that started first is A.
  function showChoice() {
    const started = (name) => rows.find((row) => row.run === name)?.started ?? 0;
    const chosen = [wanted.a, wanted.b].filter(Boolean).sort((a, b) => started(a) - started(b));
    picked.replaceChildren(...(chosen.length === 2
      ? [make("a", { class: "button", href: `#/compare/${chosen.map(encodeURIComponent).join("/")}` }, "Compare the two chosen runs"), button("Clear", () => change({ a: "", b: "" }))]
      : [make("span", { class: "soft" }, chosen.length ? "Choose one more run to compare." : "Choose two runs to compare them.")]));
  }

  const COLUMNS = [
    { title: "Run", text: (row) => make("span", { class: "run-name" }, make("a", { href: runHref(row.run), id: `open-${row.run}` }, bdi(row.run)), make("small", {}, bdi([row.project, row.experiment].filter(Boolean).join(" / ")))), value: (row) => row.run },
    { title: "State", text: stateDot, value: (row) => stateOf(row)[0] },
    { title: "Finding", wide: true, keep: true, text: findingOf, value: (row) => `${9 - needs(row)}${row.finding?.text ?? ""}` },
    { title: "Step", number: true, text: progressOf, value: (row) => row.last_step ?? -1 },
    { title: "Time a step", number: true, text: (row) => make("span", { class: "figure" }, spark(row.seconds_line ?? [], `seconds of each step of ${row.run}`), seconds(row.last_step_seconds) || "–"), value: (row) => row.last_step_seconds ?? -1 },
    { title: "Reward", number: true, text: (row) => (row.reward === null ? "" : make("span", { class: "figure" }, spark(row.reward_line ?? [], `reward of ${row.run}`, { hue: "green" }), number(row.reward))), value: (row) => row.reward ?? -Infinity },
    { title: "Busy", number: true, text: (row) => percent(row.productive), value: (row) => row.productive ?? -1 },
    { title: "Started", number: true, text: (row) => (row.started ? make("time", { title: clock(row.started) }, ago(row.started)) : ""), value: (row) => row.started ?? 0 },
    { title: "Compare", fixed: true, text: (row) => make("input", { type: "checkbox", id: `choose-${row.run}`, value: row.run, checked: [wanted.a, wanted.b].includes(row.run), "aria-label": `Compare ${row.run}`, onchange: (event) => pick(row.run, event.target.checked) }), value: () => 0 },
  ];

  function fill() {
    const has = (text) => text.toLowerCase().includes(wanted.q.toLowerCase());
    const shown = rows.filter((row) => (!wanted.q || [row.run, row.project, row.experiment, row.finding?.text ?? "", row.verdict].some(has)) && (!wanted.state || stateOf(row)[0] === wanted.state) && (!wanted.project || row.project === wanted.project));
    const choices = (control, values, all, chosen) => {
      if (control.dataset.values === JSON.stringify(values)) return; // an open list stays open
      control.dataset.values = JSON.stringify(values);
      control.replaceChildren(...[["", all], ...values.map((value) => [value, value])].map(([value, text]) => make("option", { value, selected: value === chosen }, text)));
    };
    choices(states, [...new Set(rows.map((row) => stateOf(row)[0]))].sort(), "Every state", wanted.state);
    choices(projects, [...new Set(rows.map((row) => row.project).filter(Boolean))].sort(), "Every project", wanted.project);
    const needy = rows.filter((row) => needs(row) && row.state !== "finished").length;
    const delayed = rows.filter((row) => needs(row) && row.state === "finished").length;
    summary.replaceChildren(rows.length ? [counted(rows.length, "run"), `${rows.filter((row) => row.state === "running").length} running`, needy && `${needy} to look at`, delayed && `${delayed} finished with a finding`].filter(Boolean).join(" · ") : "");
    const [title, way] = wanted.sort.split(".");
    const [focused, scrolled] = [body.contains(document.activeElement) ? document.activeElement.id : "", body.querySelector(".scroll")?.scrollTop ?? 0];
    const sorted = title ? { title, down: way === "down" } : null;
    body.replaceChildren(rows.length ? dataTable("Runs", COLUMNS, shown, { page: 50, quiet: true, sorted, onsort: (by) => remember({ sort: `${by.title}.${by.down ? "down" : "up"}` }), empty: "No run matches." }) : emptyHome());
    body.querySelector(".scroll")?.scrollTo(0, scrolled);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    showChoice();
  }

  return {
    element,
    title: "Runs",
    async refresh() {
      const found = await get("runs");
      if (JSON.stringify(found) !== drawn) {
        drawn = JSON.stringify(found);
        rows = found;
        fill();
      }
      return {};
    },
  };
}

function emptyHome() {
  return make("div", { class: "empty-page" }, make("h2", {}, "There is no run yet."), make("p", {}, "Start a training with VERL_OTEL_ENABLED=1, or look at recorded runs:"), make("pre", {}, "verl-otel demo --keep runs && verl-otel view runs"));
}
