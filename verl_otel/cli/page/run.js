// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// One run: what it needs, all its steps, how it learns, and where its time went.

import { spark } from "./chart.js";
import { look } from "./colours.js";
import {
  area, bdi, blocks, button, capital, changes, clock, count, dataTable, details, factList, figures, filled, listOf,
  make, number, numbers, part, pause, percent, prose, seconds, section, swatch, untitled,
} from "./dom.js";
import { runHref } from "./home.js";
import { bandText, scalarCharts } from "./scalars.js";
import { getScalars, isLive, looks, stepsOf } from "./source.js";
import { timeline } from "./timeline.js";

const MOST_PHASES = 12; // columns of the table of steps
const MOST_OPEN = 3; // processes of which the open work is named

// -- what it needs --

const whatToDo = () => make("b", {}, "What to do: ");

// A sentence on what took long, with what it cost, its advice and a link; others than the first are small.
export function verdictRow(line, place, cost, { link = "", hasAdvice = true } = {}) {
  return make("div", { class: `verdict${line.is_finding ? " is-finding" : ""}${place ? " minor" : ""}` },
    line.is_finding && cost ? make("span", { class: "verdict-cost" }, make("b", {}, seconds(cost)),
      make("small", {}, " longer than usual")) : "",
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
    return verdictRow(line, place, isSame ? null : line.longer, { link, hasAdvice });
  });
}

function openPart(run) {
  const open = run.explain.unfinished.filter((row) => !row.dead && row.text).map((row) => row.text);
  if (!open.length) return "";
  const more = open.length > MOST_OPEN ? ` · and ${count(open.length - MOST_OPEN)} more processes` : "";
  const when = run.state === "running" ? "Now: " : "Still open at its end: ";
  return make("p", {}, make("b", {}, when), bdi(open.slice(0, MOST_OPEN).join(" · ") + more));
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

function indicatorTable(run, lines) {
  const show = (row, value) => (value === null ? "–" : row.is_share ? percent(value) : number(value));

  function nameOf(row) {
    const isOut = row.state === "below" || row.state === "above";
    const state = isOut ? `${row.state === "above" ? "▲" : "▼"} ${row.state} its band` : "in its band";
    const words = row.state === "no band" ? "" : `${state} (${bandText(row, (end) => show(row, end))})`;
    return make("span", {}, row.name, make("small", { class: isOut && "out" }, words));
  }

  function trendOf(row) {
    const line = lines.find((each) => each.name === row.scalar);
    return line ? spark(line.y, `${row.name} over the run`, { band: row.is_share ? null : [row.low, row.high] }) : "";
  }

  const known = run.indicators.filter((row) => row.value !== null);
  const unknown = run.indicators.filter((row) => row.value === null).map((row) => row.name);
  const { profile, progress, findings } = run.explain;
  const words = `Bands of the profile ${profile}.${unknown.length ? ` Not recorded: ${unknown.join(", ")}.` : ""}`;
  return [
    dataTable(`Core indicators, profile ${profile}`, [
      { title: "Indicator", text: nameOf, value: (row) => row.name },
      { title: "Value", number: true, fixed: true, text: (row) => make("b", {}, show(row, row.value)) },
      { title: "Trend", number: true, fixed: true, text: trendOf },
    ], known, { empty: "" }),
    make("p", { class: "soft" }, words),
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
    ...[["llm", "LLM"], ["tool", "Tools"], ["reward", "Reward call"], ["wait", "Waiting"]].map(([kind, title]) =>
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
  const order = Object.keys(states);
  const rows = Object.entries(causes).map(([key, share]) => ({ look: look.cause(key), share }))
    .filter((row) => order.includes(row.look[3]))
    .sort((a, b) => order.indexOf(a.look[3]) - order.indexOf(b.look[3]));
  if (!rows.length) return make("p", { class: "soft empty" }, "What the devices did is not known.");
  const text = (row) => `${row.look[2]} ${percent(row.share)}`;
  const parts = rows.map((row) => area("part", row.look, { title: text(row), style: { flex: row.share } }));
  return [
    make("p", { class: "figures" }, Object.entries(states).map(([state, share]) =>
      make("span", {}, make("b", {}, percent(share)), ` ${state}`)),
      make("span", { class: "soft" }, `of ${gpus} × ${seconds(each)}`)),
    make("div", { class: "share-bar", role: "img", "aria-label": rows.map(text).join(", ") }, parts),
    dataTable("Device time by cause", [
      { title: "Cause", text: (row) => make("span", {}, swatch(row.look), row.look[2]), value: (row) => row.look[2] },
      { title: "State", text: (row) => row.look[3] },
      numbers("Time", (row) => row.share * gpus * each, seconds), numbers("Share", (row) => row.share, percent),
    ], rows.filter((row) => row.share >= 0.005)),
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
  const hrefAt = (index) => runHref(name, "step", steps.key(index));
  const hrefOf = ({ index }) => (index !== null && index < steps.count ? hrefAt(index) : "");
  const parts = Object.fromEntries(Object.entries({
    indicators: "Core indicators", trajectories: "Slowest trajectories", events: "Events and log",
    device: "Device time", whole: "The whole run", about: "About this run",
  }).map(([id, title]) => [id, part(id, title)]));
  const columns = timeline(steps, (index) => (location.hash = hrefAt(index)));
  const table = details("Steps as a table, with what delayed them", () => stepTable(steps, name));
  const chosen = new Set((query.get("scalars") ?? "").split(",").filter(Boolean));
  const charts = scalarCharts(chosen, (run) => {
    go(runHref(name) + (chosen.size ? `?scalars=${encodeURIComponent([...chosen].join(","))}` : ""));
    showScalars(run);
  });
  const [isNewVerdict, areNewSteps, areNewScalars] = [changes(), changes(), changes()];
  const head = untitled("verdict", "Verdict");

  const element = make("div", { class: "run" }, make("h1", { class: "unseen" }, "Run ", bdi(name)), head,
    make("div", { class: "first" }, untitled("steps", "Steps", columns.element, table), parts.indicators),
    section("learning", "How it learns", charts.learning),
    parts.trajectories, parts.events, make("div", { class: "pair" }, parts.device, parts.whole),
    section("scalars", "All scalars", charts.all), parts.about);

  async function showScalars(run) {
    const lines = await getScalars(name, charts.wanted(run));
    await pause();
    parts.indicators.show([run.indicators, lines.map((line) => line.y.length)], () => indicatorTable(run, lines));
    await charts.update(lines);
  }

  return {
    element,
    async show(run) {
      const { headline, held, has_gpu: hasGpu, unfinished, events, run: devices, end } = run.explain;
      if (areNewSteps(steps.version)) {
        columns.update(events);
        if (table.open) table.lastChild.replaceWith(stepTable(steps, name));
      }
      await pause();
      if (isNewVerdict([run.findings, held, headline, run.read, unfinished, run.state])) {
        const facts = prose(filled([headline, run.findings[0]?.is_finding && held.text]).join(" · "));
        const lead = run.read < 0.999 ? "" : make("p", { class: "soft" }, facts);
        head.replaceChildren(...filled([verdict(run, hrefOf), openPart(run), lead]));
      }
      await pause();
      const slowest = run.slowest.map((row) => row.trace_id);
      parts.trajectories.show([slowest, run.samples, steps.count], () => slowestPart(run, name, steps));
      document.getElementById("device-title").textContent = hasGpu ? "GPU time" : "Device time (CPU)";
      parts.device.show(devices, () => devicePart(devices));
      parts.whole.hidden = !run.blocks.length;
      parts.whole.show(run.blocks, () => blocks(run.blocks));
      parts.events.show([events, unfinished, run.log], () => eventsPart(run));
      parts.about.show([run.facts, run.unknown], () => aboutPart(run, name));
      if (areNewScalars([run.steps, end, run.scalars.length])) await showScalars(run);
    },
  };
}
