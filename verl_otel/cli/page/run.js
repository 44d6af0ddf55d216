// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// One run: what it needs, all its steps, how it learns, and where its time went.

import { spark } from "./chart.js";
import { look } from "./colours.js";
import {
  area, bdi, blocks, button, capital, changes, clock, count, dataTable, details, factList, figures, filled, listOf,
  make, number, numbers, pause, percent, prose, seconds, section, swatch,
} from "./dom.js";
import { runHref } from "./home.js";
import { scalarCharts } from "./scalars.js";
import { getScalars, isLive, looks } from "./source.js";
import { getRun, stepsOf, timeline } from "./timeline.js";

const MOST_PHASES = 12; // columns of the table of steps
const MOST_OPEN = 3; // processes of which the open work is named

// Replaces the content of an element when what it is made of has changed: what is unchanged keeps focus and place.
function keep(element) {
  const isNew = changes();
  return (data, content) => isNew(data) && element.replaceChildren(...filled([content()]));
}

// -- what it needs --

const whatToDo = () => make("b", {}, "What to do: ");

// A sentence on what took long, with what it cost, its advice and a link; others than the first are small.
export function verdictRow(line, place, [cost, word], { link = "", hasAdvice = true } = {}) {
  return make("div", { class: `verdict${line.is_finding ? " is-finding" : ""}${place ? " minor" : ""}` },
    line.is_finding && cost ? make("span", { class: "verdict-cost" }, make("b", {}, seconds(cost)),
      make("small", {}, ` ${word}`)) : "",
    make("div", {},
      make("p", { class: "verdict-line" }, prose(line.text), place ? [" ", link] : ""),
      line.next && hasAdvice ? make("p", { class: "advice" }, whatToDo(), prose(line.next)) : "",
      place || !link ? "" : make("p", {}, link)));
}

function verdict(run, hrefOf) {
  const { findings, read } = run;
  if (!findings.length || read < 0.999) {
    const text = read < 0.999 ? `The files are being read: ${percent(read)}.` : "No step has ended.";
    return [make("p", { class: "verdict-line" }, text), read < 0.999 ? make("progress", { value: read }) : ""];
  }
  return findings.map((line, place) => {
    const toEvents = () => document.getElementById("events").scrollIntoView();
    const link = hrefOf(line) ? make("a", { href: hrefOf(line) }, `Look at step ${line.step ?? "?"}`)
      : line.is_finding && run.explain.events.length ? button("Show events and log", toEvents) : "";
    const before = findings.slice(0, place);
    const hasAdvice = !before.some((other) => other.next === line.next);
    const isSame = line.index !== null && before.some((other) => other.index === line.index); // its step stands above
    return verdictRow(line, place, [isSame ? null : line.longer, "longer than usual"], { link, hasAdvice });
  });
}

function nowPart(run) {
  const open = run.explain.unfinished.filter((row) => !row.dead && row.text).map((row) => row.text);
  if (run.state !== "running" || !open.length) return "";
  const more = open.length > MOST_OPEN ? ` · and ${count(open.length - MOST_OPEN)} more processes` : "";
  return make("p", { class: "now" }, make("b", {}, "Now: "), bdi(open.slice(0, MOST_OPEN).join(" · ") + more));
}

// -- its steps --

function stepTable(steps, name) {
  const rows = steps.number.map((_, index) => index).reverse();
  const causes = new Map([...steps.held].sort((a, b) => a.saved - b.saved).map((row) => [row.index, row]));
  const linkOf = (index) =>
    make("a", { href: runHref(name, "step", steps.key(index)) }, String(steps.number[index] ?? "?"));
  const whyOf = ({ text, next }) => make("span", {}, prose(text), make("small", { class: "advice" }, prose(next)));
  const column = (title, values) => figures(title, (index) => values[index], seconds);
  return dataTable("Steps, the newest first", [
    { title: "Step", number: true, value: (index) => steps.number[index] ?? -1, text: linkOf },
    column("Took", steps.seconds), figures("Longer", (index) => steps.longer[index], seconds),
    { title: "Outcome", text: (index) => steps.failed[index].toLowerCase() },
    { title: "Why, and what to do", wide: true, text: (index) => (causes.has(index) ? whyOf(causes.get(index)) : "") },
    ...Object.entries(steps.phases).slice(0, MOST_PHASES).map(([key, values]) => column(key, values)),
  ], rows, { page: 10 });
}

// -- its indicators --

function indicatorRow(row, line) {
  const show = (value) => (value === null ? "–" : row.is_share ? percent(value) : number(value));
  const [low, high] = [row.low, row.high].map(show);
  const ends = row.low === null ? `up to ${high}` : row.high === null ? `from ${low}` : `${low} to ${high}`;
  const isOut = row.state === "below" || row.state === "above";
  const state = isOut ? `${row.state === "above" ? "▲" : "▼"} ${row.state} its band` : "in its band";
  const words = row.state === "no band" ? "" : `${state} (${ends})`;
  const band = row.is_share ? null : [row.low, row.high];
  return make("tr", {},
    make("th", { scope: "row" }, row.name, make("small", { class: isOut ? "out" : undefined }, words)),
    make("td", { class: "number" }, make("b", {}, show(row.value))),
    make("td", { class: "trend" },
      line ? spark(line.y, `${row.name} over the run`, { band }) : ""));
}

function indicatorTable(run, lines) {
  const known = run.indicators.filter((row) => row.value !== null);
  const unknown = run.indicators.filter((row) => row.value === null).map((row) => row.name);
  const rows = known.map((row) => indicatorRow(row, lines.find((line) => line.name === row.scalar)));
  const { profile, progress, findings } = run.explain;
  const caption = make("caption", { class: "unseen" }, `Core indicators, profile ${profile}`);
  const words = `Bands of the profile ${profile}.${unknown.length ? ` Not recorded: ${unknown.join(", ")}.` : ""}`;
  return [
    make("table", { class: "indicators" }, caption, make("tbody", {}, rows)), make("p", { class: "soft" }, words),
    progress ? make("p", {}, `${capital(progress)}.`) : "",
    findings.map((row) => make("p", { class: "note" }, prose(`Step ${row.began}: ${row.text}.`),
      row.next ? make("span", { class: "advice" }, " ", whatToDo(), prose(row.next)) : "")),
  ];
}

// -- its trajectories --

const spent = (row, kind) =>
  row.parts.filter((part) => part.kind === kind).reduce((sum, part) => sum + part.seconds, 0);

export const tokensOf = ({ prompt_tokens: some, response_tokens: others }) =>
  (some + others ? `${count(some)} + ${count(others)}` : "");

export function trajectoryColumns(hrefOf) {
  const outcome = (row) => filled([
    row.validate && "validation", row.failed && "failed", !row.whole && "only its root was kept",
    row.outcome !== "success" && row.outcome,
  ]).join(", ");
  return [
    { title: "Trajectory", text: (row) => make("a", { href: hrefOf(row) }, bdi(row.label)), value: (row) => row.label },
    figures("Took", (row) => row.seconds, seconds),
    ...[["llm", "LLM"], ["tool", "Tools"], ["reward", "Reward"], ["wait", "Waiting"]].map(([kind, title]) =>
      figures(title, (row) => spent(row, kind), seconds)),
    figures("Chat turns", (row) => row.turns, count),
    { title: "Tokens in + out", number: true, value: (row) => row.prompt_tokens + row.response_tokens, text: tokensOf },
    numbers("Score", (row) => row.score, number),
    { title: "Outcome", text: outcome },
  ];
}

function slowestPart(run, name, steps) {
  const hrefOf = (row) => {
    const index = steps.number.lastIndexOf(row.step);
    return index < 0 ? runHref(name) : runHref(name, "step", steps.key(index), row.trace_id);
  };
  const [first, ...others] = trajectoryColumns(hrefOf);
  const step = numbers("Step", (row) => row.step);
  const hint = "Prompts and responses are on the page of a step: verl writes them for this run.";
  return [
    dataTable("Slowest trajectories of the run", [first, step, ...others], run.slowest,
      { page: 6, empty: "No trajectory has been recorded yet." }),
    run.samples.length && isLive ? make("p", { class: "soft" }, hint) : "",
  ];
}

// -- its device time --

// The time of all devices of a document: by state, then as one bar by cause in the order of the states.
export function shareBar({ gpus, seconds: each, states, causes }) {
  const all = Object.entries(causes);
  if (!all.length) return make("p", { class: "soft empty" }, "What the devices did is not known.");
  const ordered = Object.keys(states).flatMap((state) => all.filter(([key]) => look.cause(key)[3] === state));
  const text = ([key, share]) => `${look.cause(key)[2]} ${percent(share)}`;
  const parts = ordered.map(([key, share]) =>
    area("part", look.cause(key), { title: text([key, share]), style: { inlineSize: `${share * 100}%` } }));
  const lines = ordered.filter(([, share]) => share >= 0.005).map(([key, share]) => make("tr", {},
    make("th", { scope: "row" }, swatch(look.cause(key)), " ", look.cause(key)[2]),
    make("td", { class: "soft" }, look.cause(key)[3]),
    make("td", { class: "number" }, seconds(share * gpus * each)), make("td", { class: "number" }, percent(share))));
  return [
    make("p", { class: "figures" }, Object.entries(states).map(([state, share]) =>
      make("span", {}, make("b", {}, percent(share)), ` ${state}`))),
    make("div", { class: "share-bar", role: "img", "aria-label": ordered.map(text).join(", ") }, parts),
    make("table", { class: "causes" }, make("caption", { class: "unseen" }, "Device time by cause"),
      make("tbody", {}, lines)),
  ];
}

function devicePart({ devices, gpu }) {
  const rows = Object.entries(gpu).map(([device, causes]) => ({ device, causes }));
  const columns = Object.keys(devices.causes).map((key) =>
    figures(look.cause(key)[2], (row) => row.causes[key], seconds));
  const table = () => dataTable("Device time by device", [{ title: "Device", text: (row) => row.device }, ...columns],
    rows, { page: 16 });
  return [shareBar(devices), rows.length > 1 ? details(`By device (${count(rows.length)})`, table) : ""];
}

// -- what happened to it, and what it is --

const textBox = (label, text) => make("pre", { tabIndex: 0, role: "region", "aria-label": label }, text);

function eventsPart(run) {
  const { events, unfinished } = run.explain;
  const dead = unfinished.filter((row) => row.dead);
  return [
    [...events].reverse().map((event) => make("article", { class: `event${event.resolved ? "" : " is-open"}` },
      make("h3", {}, event.kind, event.resolved ? ", over" : "", " ", make("small", {}, clock(event.time))),
      make("p", {}, prose(event.text)),
      event.next ? make("p", { class: "advice" }, whatToDo(), prose(event.next)) : "",
      event.stack.length ? textBox("Stack", event.stack.join("\n")) : "",
      Object.keys(event.detail).length ? details("All that was recorded", () => tree(event.detail)) : "")),
    dead.map((row) => make("p", { class: "note" }, prose(row.text))),
    events.length + dead.length ? "" : make("p", { class: "soft" }, "No stall, crash or alert was reported."),
    run.log.length ? [make("h3", {}, "Log, newest first"), textBox("Log", run.log.join("\n"))] : "",
  ];
}

function tree(value) {
  const text = String(value);
  if (value === null || typeof value !== "object") return make(text.includes("\n") ? "pre" : "bdi", {}, text);
  return make("dl", { class: "tree" }, Object.entries(value).map(([key, item]) =>
    [make("dt", {}, bdi(key)), make("dd", {}, tree(item))]));
}

// Facts whose keys are no words; those of users keep theirs.
const FACTS = new Map([
  ["verl.version", "verl"], ["verl_otel", "verl-otel"], ["health_profile", "thresholds"],
  ["verl.trainer.mode", "trainer"], ["verl.trainer.device", "device"],
]);

function aboutPart(run, name) {
  const isFact = ([key, value]) => !["", "{}"].includes(value) && key !== "run_id" && typeof value !== "object";
  const named = ([key, value]) => [FACTS.get(key) ?? key.replace(/^verl\./, ""), String(value)];
  const facts = Object.entries(run.facts).filter(isFact).map(named);
  const file = { href: `run/${encodeURIComponent(name)}/report`, download: `${name}.html` };
  const origin = `Written by verl-otel ${looks.version}. This file holds everything that it shows and loads nothing.`;
  const { start, end } = run.explain;
  return [
    run.unknown.length ? [make("h3", {}, "What is not known"), listOf(run.unknown)] : "",
    factList([["Started", clock(start)], ["Last record", clock(end)], ...facts]),
    isLive ? make("p", {}, make("a", file, "Save this run as one file")) : make("p", { class: "soft" }, origin),
  ];
}

// -- the page --

export function runView(name, query, go) {
  const steps = stepsOf(name);
  const open = (index) => (location.hash = runHref(name, "step", steps.key(index)));
  const hrefOf = ({ index }) => (index !== null && index < steps.count ? runHref(name, "step", steps.key(index)) : "");
  const keys = ["verdict", "now", "indicators", "slowest", "device", "whole", "events", "about"];
  const parts = Object.fromEntries(keys.map((key) => [key, make("div", { class: `part-${key}` })]));
  const fills = Object.fromEntries(keys.map((key) => [key, keep(parts[key])]));
  const all = timeline(steps, open);
  const table = details("Steps as a table, with what delayed them", () => stepTable(steps, name));
  const chosen = new Set((query.get("scalars") ?? "").split(",").filter(Boolean));
  const charts = scalarCharts(chosen, () => {
    go(runHref(name) + (chosen.size ? `?scalars=${encodeURIComponent([...chosen].join(","))}` : ""));
    showScalars();
  });
  const hasScalars = changes();
  let run = null;

  const element = make("div", { class: "run" }, make("h1", { class: "unseen" }, "Run ", bdi(name)),
    make("section", { id: "verdict", "aria-label": "Verdict" }, parts.verdict, parts.now),
    make("div", { class: "first" },
      make("section", { id: "steps", "aria-label": "Steps" }, all.element, table),
      section("indicators", "Core indicators", parts.indicators)),
    section("learning", "How it learns", charts.learning),
    section("trajectories", "Slowest trajectories", parts.slowest),
    section("events", "Events and log", parts.events),
    make("div", { class: "pair" },
      section("device", "Device time", parts.device), section("whole", "The whole run", parts.whole)),
    section("scalars", "All scalars", charts.all),
    section("about", "About this run", parts.about));

  async function showScalars() {
    const lines = await getScalars(name, charts.wanted(run));
    await pause();
    fills.indicators([run.indicators, lines.map((line) => line.y.length)], () => indicatorTable(run, lines));
    await charts.update(lines);
  }

  async function showParts() {
    const { headline, held, counts, has_gpu: hasGpu, unfinished, events, run: whole } = run.explain;
    const facts = prose(filled([headline, counts.held ? held.text : ""]).join(" · "));
    fills.verdict([run.findings, held, headline, run.read], () =>
      [...verdict(run, hrefOf), run.read < 0.999 ? "" : make("p", { class: "soft lead" }, facts)]);
    fills.now([unfinished, run.state], () => nowPart(run));
    await pause();
    const slowest = run.slowest.map((row) => row.trace_id);
    fills.slowest([slowest, run.samples, steps.count], () => slowestPart(run, name, steps));
    document.getElementById("device-title").textContent = hasGpu ? "GPU time" : "Device time (CPU)";
    fills.device(whole, () => devicePart(whole));
    document.getElementById("whole").hidden = !run.blocks.length;
    fills.whole(run.blocks, () => blocks(run.blocks));
    fills.events([events, unfinished, run.log], () => eventsPart(run));
    fills.about([run.facts, run.unknown], () => aboutPart(run, name));
  }

  return {
    element,
    title: name,
    crumbs: () => [[name, runHref(name)]],
    async refresh() {
      let isNew = false;
      [run, isNew] = await getRun(name, steps);
      await pause();
      if (isNew || !parts.verdict.childElementCount) all.update(run.explain.events);
      if (isNew && table.open) table.lastChild.replaceWith(stepTable(steps, name));
      await pause();
      await showParts();
      if (hasScalars([run.steps, run.explain.end, run.scalars.length])) await showScalars();
      return { run, steps };
    },
  };
}
