// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// One run: what it needs, all its steps, how it learns, and where its time went.

import { chart, largest, paintColumns, spark, usualLimit } from "./chart.js";
import { look } from "./colours.js";
import { bdi, clock, count, counted, dataTable, details, factList, legend, make, number, percent, prose, seconds, section, segmented, swatch } from "./dom.js";
import { runHref } from "./home.js";
import { Steps, get, getScalars, isLive, looks, runAddress } from "./source.js";

// What is known of the runs of this visit: a view that is opened again has its steps at once.
const visited = new Map();
export function stepsOf(name) {
  if (!visited.has(name)) visited.set(name, new Steps(name));
  return visited.get(name);
}

// A run and its steps, of the same analysis: one may have been made while the other was on its way.
export async function getRun(name, steps) {
  let run = await get(runAddress(name));
  const isNew = await steps.update();
  if (run.steps !== steps.count) run = await get(runAddress(name));
  steps.mark(run);
  return [run, isNew];
}

// As verl writes it.
export const scalarName = (name) => (name.startsWith("verl.") ? name.slice(5).replaceAll(".", "/") : name);

const GROUPS = [
  ["Reward", /^verl\.(critic\.rewards\.mean|average_reward)$/],
  ["Policy KL", /^verl\.actor\.(ppo_kl|kl_loss)$/],
  ["Losses", /^verl\.(actor\.pg_loss|critic\.vf_loss)$/],
  ["Entropy", /^verl\.actor\.entropy(_loss)?$/],
  ["Gradient norm", /^verl\.(actor|critic)\.grad_norm$/],
  ["Response length", /^verl\.response_length\.(mean|max)$/],
  ["Throughput", /^verl\.perf\.throughput$/],
  ["Validation", /^verl\.(validation\.score|val-core.*)$/],
];

// Replaces the content of an element when what it is made of has changed: what is unchanged keeps its focus and its place.
function keep(element) {
  let known = "";
  return (data, content) => {
    const text = JSON.stringify(data);
    if (text === known) return;
    known = text;
    element.replaceChildren(...[content()].flat(2).filter((child) => child !== "" && child !== null && child !== undefined && child !== false));
  };
}

// -- what it needs --

function verdict(findings, hrefOf, read) {
  if (!findings.length) return [make("p", { class: "verdict-line" }, read < 0.999 ? `The files are being read: ${percent(read)}.` : "No step has ended yet.")];
  return findings.map((line, place) => {
    const link = hrefOf(line) ? make("a", { href: hrefOf(line) }, `Look at step ${line.step ?? "?"}`) : "";
    const isNew = line.next && !findings.slice(0, place).some((before) => before.next === line.next);
    return make("div", { class: `verdict${line.is_finding ? " is-finding" : ""}${place ? " minor" : ""}` },
      line.saved !== null && line.is_finding ? make("span", { class: "verdict-cost" }, make("b", {}, seconds(line.saved)), make("small", {}, " lost")) : "",
      make("div", {},
        make("p", { class: "verdict-line" }, prose(line.text), place ? [" ", link] : ""),
        isNew ? make("p", { class: "advice" }, make("b", {}, "What to do: "), prose(line.next)) : "",
        place || !link ? "" : make("p", {}, link)));
  });
}

// -- all steps --

const WAYS = { phases: ["by phase", look.phase], gpu: ["by cause of device time", look.cause] };

// The columns of all steps. open(index) is called for a step that is chosen.
export function timeline(steps, open, { height = 300, current = null } = {}) {
  const state = { parts: [], heights: [], limit: 1, style: look.phase, marks: steps.marks, events: [] };
  let way = "phases";
  const key = make("div", { class: "timeline-key" });
  const ways = make("span");
  const describe = (index) => {
    const parts = state.parts.map(([name, values]) => [state.style(name)[2] ?? name, values[index]]).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
    const mark = { held: `, ${seconds(steps.saved[index])} longer than usual`, slow: ", slow without a known cause", failed: `, ${(steps.failed[index] || "").toLowerCase()}`, "start-up": ", with start-up" }[steps.marks.get(index)] ?? "";
    return `${steps.title(index)}: ${seconds(steps.seconds[index])}${mark} · ${parts.slice(0, 4).map(([name, value]) => `${name} ${seconds(value)}`).join(" · ")}`;
  };
  const next = (index, by) => {
    for (let at = index + by; at >= 0 && at < steps.count; at += by) if (["held", "slow", "failed"].includes(steps.marks.get(at))) return at;
    return undefined;
  };
  const isPlain = () => steps.number.every((value, index) => value === steps.number[0] + index);
  const view = chart({
    title: "Time of each step",
    head: ["Time of each step ", ways],
    class: "timeline",
    height,
    unit: seconds,
    series: [{}],
    text: describe,
    rest: () => (current === null ? "" : describe(current)),
    click: open,
    names: (plot, at) => at.map((value) => (Number.isInteger(value) ? String(isPlain() ? value : (steps.number[value] ?? "?")) : "")),
    keys: (at) => ({ v: next(at, 1), V: next(at, -1) }),
    range: () => [0, state.limit * 1.1],
    paint: (plot) => paintColumns(plot, state),
    foot: key,
  });

  function prepare() {
    if (way === "gpu" && !Object.keys(steps.gpu).length) way = "phases";
    state.style = WAYS[way][1];
    state.parts = largest(steps[way]);
    state.heights = steps.seconds.map((_, index) => state.parts.reduce((sum, [, values]) => sum + values[index], 0));
    state.limit = usualLimit(state.heights.filter((_, index) => steps.marks.get(index) !== "start-up" || steps.count < 3));
    const cut = state.heights.some((height) => height > state.limit * 1.04);
    const words = [...new Set(steps.marks.values())];
    key.replaceChildren(legend(state.parts.map(([name]) => [...state.style(name).slice(0, 2), state.style(name)[2] ?? name])),
      make("p", { class: "soft keys" }, [words.some((word) => word === "held" || word === "slow") && "▼ held step", words.includes("failed") && "■ failed step", cut && "Higher columns are cut: their value stands above the gap.", "Drag to zoom, click to open a step."].filter(Boolean).join(" · ")));
  }

  return {
    element: view.element,
    update(events = []) {
      if (!steps.count) return;
      if (Object.keys(steps.gpu).length && !ways.childElementCount) ways.append(segmented("Columns", Object.entries(WAYS).map(([value, [text]]) => [value, text]), way, (value) => {
        way = value;
        prepare();
        draw();
      }));
      state.events = events.map((event) => ({ kind: event.kind, at: placeOf(steps, event.time) }));
      prepare();
      draw();
    },
  };

  function draw() {
    const first = isPlain() ? steps.number[0] : 0;
    view.update(steps.number.map((_, index) => first + index), [state.heights]);
  }
}

function stepTable(steps) {
  const rows = steps.number.map((_, index) => index).reverse();
  return dataTable("Steps, the newest first", [
    { title: "Step", number: true, value: (index) => steps.number[index] ?? -1, text: (index) => String(steps.number[index] ?? "?") },
    { title: "Took", number: true, value: (index) => steps.seconds[index], text: (index) => seconds(steps.seconds[index]) },
    { title: "Lost", number: true, value: (index) => steps.saved[index], text: (index) => (steps.saved[index] ? seconds(steps.saved[index]) : "") },
    { title: "Outcome", text: (index) => steps.failed[index].toLowerCase() },
    ...Object.keys(steps.phases).slice(0, 12).map((key) => ({ title: key, number: true, value: (index) => steps.phases[key][index], text: (index) => (steps.phases[key][index] ? seconds(steps.phases[key][index]) : "") })),
  ], rows, { page: 10, quiet: true });
}

// The place of a time among the steps: 3.4 is within the fourth.
function placeOf(steps, time) {
  const index = steps.start.findLastIndex((start) => start <= time);
  return index < 0 ? -0.5 : index - 0.5 + Math.min(1, (time - steps.start[index]) / Math.max(0.001, steps.seconds[index]));
}

// -- its indicators --

const STATES = { below: "below its band", above: "above its band", healthy: "in its band", "no band": "no band", unknown: "not recorded" };

function indicatorRow(row, line) {
  const show = (value) => (value === null ? "–" : row.is_share ? percent(value) : number(value));
  const band = row.low === null && row.high === null ? "" : row.low === null ? `up to ${show(row.high)}` : row.high === null ? `from ${show(row.low)}` : `${show(row.low)} to ${show(row.high)}`;
  const isOut = row.state === "below" || row.state === "above";
  return make("tr", { class: isOut ? "is-out" : undefined },
    make("th", { scope: "row" }, row.name, make("small", { class: isOut ? "out" : undefined }, [isOut ? `${row.state === "above" ? "▲" : "▼"} ${STATES[row.state]}` : STATES[row.state], band && `(${band})`].filter(Boolean).join(" "))),
    make("td", { class: "number" }, make("b", {}, show(row.value))),
    make("td", { class: "trend" }, line ? spark(thinned(line.y), `${row.name} over the run`, { width: 120, height: 28, band: row.is_share ? null : [row.low, row.high] }) : ""));
}

function thinned(values, most = 80) {
  const each = Math.ceil(values.length / most);
  return values.filter((_, index) => index % each === 0 || index === values.length - 1);
}

// -- its scalars --

// A chart of some lines of scalars; update(lines) with those of its names.
export function scalarChart(title, { band = null, height = 190, names = null } = {}) {
  let [xs, columns, shown] = [[], [], []];
  const key = make("div");
  let values = [];
  const by = (lines) => (lines.every((line) => line.by_steps) ? "step" : "time");
  let view = null;
  const element = make("div", { class: "scalar" });
  const nameOf = (line) => [names ? names(line) : scalarName(line.name), ...Object.entries(line.labels).map(([label, value]) => `${label}=${value}`)].join(" ");
  const where = (index) => (by(shown) === "step" ? `step ${number(xs[index])}` : `after ${seconds(xs[index])}`);
  return {
    element,
    update(lines) {
      shown = lines.filter((line) => line.y.some((value) => value !== null)).slice(0, 8);
      xs = [...new Set(shown.flatMap((line) => line.x))].sort((a, b) => a - b);
      columns = shown.map((line) => {
        const at = new Map(line.x.map((x, index) => [x, line.y[index]]));
        return xs.map((x) => at.get(x) ?? null);
      });
      if (!shown.length) {
        element.replaceChildren(make("figure", { class: "chart" }, make("div", { class: "chart-head" }, make("figcaption", {}, bdi(title))), make("p", { class: "soft empty" }, "No finite value was logged.")));
        return;
      }
      values = shown.map(() => make("output", { "aria-live": "off" }));
      key.replaceChildren(make("ul", { class: "legend" }, shown.map((line, place) => make("li", { class: `line-${place}` }, make("i", { class: "line-mark", "aria-hidden": "true" }), bdi(nameOf(line)), values[place]))));
      if (view && view.lines === shown.length) {
        view.update(xs, columns);
      } else {
        view?.destroy();
        view = chart({
          title, height, axis: by(shown), unit: number, series: shown.map(() => ({})), band,
          text: (index) => `${where(index)}: ${shown.map((line, place) => `${shown.length > 1 ? `${nameOf(line)} ` : ""}${number(columns[place][index])}`).join(" · ")}`,
          where,
          moved: (index) => values.forEach((value, place) => (value.textContent = index < 0 ? "" : number(columns[place][index]))),
          foot: key,
        });
        view.lines = shown.length;
        element.replaceChildren(view.element);
        view.update(xs, columns);
      }
    },
  };
}

// -- the page --

export function runView(name, query, go) {
  const steps = stepsOf(name);
  const open = (index) => (location.hash = runHref(name, "step", steps.key(index)));
  const hrefOf = (line) => (line.index !== null && line.index < steps.count ? runHref(name, "step", steps.key(line.index)) : "");
  const parts = Object.fromEntries(["verdict", "now", "indicators", "learning", "held", "slowest", "device", "events", "about"].map((key) => [key, make("div", { class: `part-${key}` })]));
  const fills = Object.fromEntries(Object.entries(parts).map(([key, element]) => [key, keep(element)]));
  const all = timeline(steps, open);
  const table = details("Steps as a table", () => stepTable(steps));
  const chosen = new Set((query.get("scalars") ?? "").split(",").filter(Boolean));
  const groups = new Map();
  const own = new Map();
  const ownGrid = make("div", { class: "charts" });
  const picker = make("div", { class: "picker" });
  const search = make("input", { type: "search", id: "scalar-search", placeholder: "Search all scalars, for example kl or length", "aria-label": "Search all scalars", oninput: () => pick() });
  const learningGrid = make("div", { class: "charts" });
  parts.learning.append(learningGrid);
  let run = null;
  let shownScalars = "";

  const element = make("div", { class: "run" }, make("h1", { class: "unseen" }, "Run ", bdi(name)),
    make("section", { id: "verdict", "aria-label": "Verdict" }, parts.verdict, parts.now),
    make("div", { class: "first" },
      make("section", { id: "steps", "aria-label": "Steps" }, all.element, table),
      section("indicators", "Core indicators", parts.indicators)),
    section("learning", "How it learns", parts.learning),
    make("div", { class: "pair" },
      make("div", {}, section("held", "Steps that took longer than usual", parts.held), section("events", "Events and log", parts.events)),
      section("trajectories", "Slowest trajectories", parts.slowest)),
    section("device", "Device time", parts.device),
    section("scalars", "All scalars", search, picker, ownGrid),
    section("about", "About this run", parts.about));

  function pick() {
    const wanted = search.value.trim().toLowerCase();
    const found = run.scalars.filter((each) => chosen.has(each) || (wanted && scalarName(each).toLowerCase().includes(wanted)));
    const boxes = found.slice(0, 40).map((each) => make("label", {}, make("input", { type: "checkbox", checked: chosen.has(each), onchange: (event) => {
      if (event.target.checked) chosen.add(each);
      else chosen.delete(each);
      go(runHref(name) + (chosen.size ? `?scalars=${encodeURIComponent([...chosen].join(","))}` : ""));
      showScalars();
    } }), " ", bdi(scalarName(each))));
    picker.replaceChildren(make("p", { class: "soft" }, wanted ? `${counted(found.length, "scalar")} of ${count(run.scalars.length)}${found.length > 40 ? ", the first 40" : ""}` : `${counted(run.scalars.length, "scalar")}, named as verl writes them.`), make("div", { class: "choices" }, boxes));
  }

  async function showScalars() {
    const names = [...new Set([...run.scalars.filter((each) => GROUPS.some(([, pattern]) => pattern.test(each))), ...run.indicators.map((row) => row.scalar).filter(Boolean), ...chosen])];
    const lines = await getScalars(name, names);
    fills.indicators([run.indicators, lines.map((line) => line.y.length)], () => indicatorTable(run, lines));
    const groupLines = GROUPS.map(([title, pattern]) => [title, distinct(lines.filter((line) => pattern.test(line.name) && !line.labels.instance))]).filter(([, found]) => found.length);
    for (const [title, found] of groupLines) {
      if (!groups.has(title)) {
        const row = run.indicators.find((each) => !each.is_share && found.some((line) => line.name === each.scalar));
        groups.set(title, scalarChart(title, { band: row && (row.low !== null || row.high !== null) ? [row.low, row.high] : null }));
        learningGrid.append(groups.get(title).element);
      }
      groups.get(title).update(found);
    }
    if (!groupLines.length) learningGrid.replaceChildren(make("p", { class: "soft empty" }, "No reward, KL, loss or length has been logged yet."));
    for (const each of chosen) {
      if (!own.has(each)) own.set(each, scalarChart(scalarName(each)));
      if (!own.get(each).element.isConnected) ownGrid.append(own.get(each).element);
      own.get(each).update(lines.filter((line) => line.name === each));
    }
    for (const [each, view] of own) if (!chosen.has(each)) view.element.remove();
  }

  return {
    element,
    title: name,
    crumbs: () => [[name, runHref(name)]],
    async refresh() {
      let isNew = false;
      [run, isNew] = await getRun(name, steps);
      if (isNew || !parts.verdict.childElementCount) all.update(run.events);
      if (isNew && table.open) table.lastChild.replaceWith(stepTable(steps));
      fills.verdict([run.findings, run.held, run.headline, run.read], () => [...verdict(run.findings, hrefOf, run.read), make("p", { class: "soft lead" }, prose([...run.headline, run.held].filter(Boolean).join(" · ")))]);
      fills.now([run.open, run.last_step, run.state], () => nowPart(run, name));
      fills.held([steps.held, run.levers], () => heldPart(steps, run, name));
      fills.slowest([run.slowest.map((row) => [row.trace_id, row.seconds]), run.samples, steps.count], () => slowestPart(run, name, steps));
      document.getElementById("device-title").textContent = run.has_gpu ? "GPU time" : "Device time (CPU)";
      fills.device([run.gpu, run.cost, run.whole], () => devicePart(run));
      fills.events([run.events, run.unfinished, run.log], () => eventsPart(run));
      fills.about([run.facts, run.missing, run.validations], () => aboutPart(run, name));
      const text = JSON.stringify([run.steps, run.end, run.scalars.length]);
      if (text !== shownScalars) {
        shownScalars = text;
        if (!picker.childElementCount) pick();
        await showScalars();
      }
      return { run, steps };
    },
  };
}

// Lines that are the same curve are one.
function distinct(lines) {
  return [...new Map(lines.map((line) => [JSON.stringify(line.y), line])).values()];
}

function indicatorTable(run, lines) {
  const known = run.indicators.filter((row) => row.value !== null);
  const unknown = run.indicators.filter((row) => row.value === null).map((row) => row.name);
  return [
    make("table", { class: "indicators" }, make("caption", { class: "unseen" }, `Core indicators, profile ${run.profile}`), make("tbody", {}, known.map((row) => indicatorRow(row, lines.find((line) => line.name === row.scalar))))),
    make("p", { class: "soft" }, `Bands of the profile ${run.profile}.`, unknown.length ? ` Not recorded: ${unknown.join(", ")}.` : ""),
    run.progress ? make("p", {}, `${run.progress[0].toUpperCase()}${run.progress.slice(1)}.`) : "",
    run.learning.map((row) => make("p", { class: "note" }, bdi(row.text), row.next ? make("span", { class: "advice" }, " ", bdi(row.next)) : "")),
  ];
}

function nowPart(run, name) {
  if (run.state !== "running" || !run.open.length) return "";
  const [first] = run.open;
  const more = run.open.length - 1;
  return make("p", { class: "now" }, make("b", {}, "Now: "), `${first.step === null ? first.name : `step ${first.step}`} for ${seconds(first.age)}`, first.last_child ? [", in ", bdi(first.last_child)] : "", more ? `; ${counted(more, "trajectory is", "trajectories are")} open` : "", ".");
}

function heldPart(steps, run, name) {
  const rows = [...steps.held].sort((a, b) => b.saved - a.saved);
  return [
    dataTable("Held steps", [
      { title: "Step", number: true, value: (row) => row.index, text: (row) => make("a", { href: runHref(name, "step", steps.key(row.index)) }, String(steps.number[row.index] ?? "?")) },
      { title: "Took", number: true, value: (row) => steps.seconds[row.index], text: (row) => seconds(steps.seconds[row.index]) },
      { title: "Lost", number: true, value: (row) => row.saved, text: (row) => seconds(row.saved) },
      { title: "Why, and what to do", wide: true, text: (row) => make("span", {}, prose(row.text.replace(/^Step \S+ \([^)]*\): /, "")), make("small", { class: "advice" }, bdi(row.next))) },
    ], rows, { page: 6, quiet: true, empty: steps.count ? "No step took longer than usual for a known reason." : "No step has ended yet." }),
    run.levers.length ? [make("h3", {}, "What would make a step shorter, each alone"), dataTable("What would make a step shorter", [
      { title: "What is changed", wide: true, text: (row) => row.text },
      { title: "Gain a step", number: true, value: (row) => row.seconds, text: (row) => seconds(row.seconds) },
      { title: "Share", number: true, value: (row) => row.share, text: (row) => percent(row.share) },
      { title: "Interval of 90%", number: true, text: (row) => row.interval },
    ], run.levers, { quiet: true })] : "",
  ];
}

export function spent(row, kind) {
  const parts = row.parts.filter((part) => part.kind === kind);
  const sum = parts.reduce((total, part) => total + part.seconds, 0);
  return sum ? seconds(sum) : "";
}

export function trajectoryColumns(hrefOf) {
  return [
    { title: "Trajectory", text: (row) => make("a", { href: hrefOf(row) }, bdi(row.label)), value: (row) => row.label },
    { title: "Took", number: true, value: (row) => row.seconds, text: (row) => seconds(row.seconds) },
    ...[["llm", "LLM"], ["tool", "Tools"], ["reward", "Reward"], ["wait", "Waiting"]].map(([kind, title]) => ({ title, number: true, value: (row) => row.parts.filter((part) => part.kind === kind).reduce((sum, part) => sum + part.seconds, 0), text: (row) => spent(row, kind) })),
    { title: "Turns", number: true, value: (row) => row.turns, text: (row) => (row.turns ? String(row.turns) : "") },
    { title: "Tokens in", number: true, value: (row) => row.tokens[0], text: (row) => (row.tokens[0] ? count(row.tokens[0]) : "") },
    { title: "out", number: true, value: (row) => row.tokens[1], text: (row) => (row.tokens[1] ? count(row.tokens[1]) : "") },
    { title: "Score", number: true, value: (row) => row.score ?? -Infinity, text: (row) => (row.score === null ? "" : number(row.score)) },
    { title: "Outcome", text: (row) => [row.validate && "validation", row.failed && "failed", !row.whole && "only its root was kept", row.outcome !== "success" && row.outcome].filter(Boolean).join(", ") },
  ];
}

function slowestPart(run, name, steps) {
  const hrefOf = (row) => {
    const index = steps.number.lastIndexOf(row.step);
    return index < 0 ? runHref(name) : runHref(name, "step", steps.key(index), row.trace_id);
  };
  const [first, ...others] = trajectoryColumns(hrefOf);
  return [
    dataTable("Slowest trajectories of the run", [first, { title: "Step", number: true, value: (row) => row.step ?? -1, text: (row) => (row.step === null ? "" : String(row.step)) }, ...others], run.slowest, { page: 10, quiet: true, empty: "No trajectory has been recorded yet." }),
    run.samples.length && isLive ? make("p", { class: "soft" }, "Prompts and responses are on the page of a step: verl writes them for this run.") : "",
  ];
}

// One bar of all device time by cause, in the order productive, overhead, idle.
export function shareBar(causes) {
  const total = Object.values(causes).reduce((sum, value) => sum + value, 0);
  const rows = Object.entries(causes).filter(([, value]) => value > 0);
  const states = ["productive", "overhead", "idle"].map((state) => [state, rows.filter(([key]) => look.cause(key)[3] === state).reduce((sum, [, value]) => sum + value, 0)]);
  const ordered = [...rows].sort((a, b) => states.findIndex(([state]) => state === look.cause(a[0])[3]) - states.findIndex(([state]) => state === look.cause(b[0])[3]) || b[1] - a[1]);
  const bar = make("div", { class: "share-bar", role: "img", "aria-label": ordered.map(([key, value]) => `${look.cause(key)[2]} ${percent(value / total)}`).join(", ") }, ordered.map(([key, value]) => {
    const part = make("i", { class: `hue-${look.cause(key)[0]} pattern-${look.cause(key)[1]}`, title: `${look.cause(key)[2]} ${percent(value / total)}` });
    part.style.inlineSize = `${(value / total) * 100}%`;
    return part;
  }));
  const list = make("table", { class: "causes" }, make("caption", { class: "unseen" }, "Device time by cause"), make("tbody", {}, ordered.filter(([, value]) => value / total >= 0.005).map(([key, value]) => make("tr", {}, make("th", { scope: "row" }, swatch(look.cause(key)), " ", look.cause(key)[2]), make("td", { class: "soft" }, look.cause(key)[3]), make("td", { class: "number" }, seconds(value)), make("td", { class: "number" }, percent(value / total))))));
  const head = make("p", { class: "figures" }, states.map(([state, value]) => make("span", {}, make("b", {}, percent(value / total)), ` ${state}`)));
  return total ? [head, bar, list] : [make("p", { class: "soft empty" }, "What the devices did is not known.")];
}

function devicePart(run) {
  const { balance, stragglers, start_up: startUps } = run.whole;
  const devices = Object.entries(run.whole.gpu).map(([device, causes]) => ({ device, causes, total: Object.values(causes).reduce((sum, value) => sum + value, 0) }));
  const share = (row, state) => Object.entries(row.causes).reduce((sum, [key, value]) => sum + (look.cause(key)[3] === state ? value : 0), 0) / row.total;
  return make("div", { class: "pair" },
    make("div", {}, shareBar(run.gpu)),
    make("div", {},
      run.cost.map((line) => make("p", {}, prose(line))),
      balance ? make("p", {}, `Short of GPUs: ${balance.short}. The trainer waited ${percent(balance.trainer_waits)} of its time, the rollouts ${percent(balance.rollouts_wait)} of theirs.`) : "",
      startUps.map((each) => make("p", {}, `Start-up of attempt ${each.attempt}: ${seconds(each.seconds)}, most by ${largestPart(each.parts)}.`)),
      stragglers.length ? dataTable("Ranks and workers that were late in several steps", [
        { title: "Method", text: (row) => row.method },
        { title: "Rank", number: true, value: (row) => row.rank, text: (row) => String(row.rank) },
        { title: "Process", text: (row) => row.instance },
        { title: "Late in", number: true, value: (row) => row.late, text: (row) => `${count(row.late)} of ${count(row.steps)}` },
        { title: "By", number: true, value: (row) => row.seconds, text: (row) => seconds(row.seconds) },
      ], stragglers, { page: 8 }) : "",
      devices.length > 1 ? details(`By device (${count(devices.length)})`, () => dataTable("Device time by device", [
        { title: "Device", text: (row) => row.device },
        ...["productive", "overhead", "idle"].map((state) => ({ title: state, number: true, value: (row) => share(row, state), text: (row) => percent(share(row, state)) })),
        { title: "Time", number: true, value: (row) => row.total, text: (row) => seconds(row.total) },
      ], devices, { page: 16, quiet: true })) : ""));
}

function largestPart(parts) {
  const [first] = [...parts].sort((a, b) => b.seconds - a.seconds);
  return first ? `${first.name || first.kind.replaceAll("_", " ")} (${seconds(first.seconds)})` : "nothing that is known";
}

function eventsPart(run) {
  const dead = run.unfinished.filter((row) => row.dead);
  return [
    [...run.events].reverse().map((event) => make("article", { class: `event${event.resolved ? "" : " is-open"}` },
      make("p", {}, make("b", {}, event.kind, event.resolved ? ", over" : ""), make("span", { class: "soft" }, ` ${clock(event.time)}`)),
      make("p", {}, bdi(event.text)),
      event.next ? make("p", { class: "advice" }, make("b", {}, "What to do: "), bdi(event.next)) : "",
      event.stack.length ? make("pre", { tabIndex: 0, role: "region", "aria-label": "Stack" }, event.stack.join("\n")) : "",
      Object.keys(event.detail).length ? details("All that was recorded", () => tree(event.detail)) : "")),
    dead.map((row) => make("p", { class: "note" }, bdi(`${row.process} stopped writing ${seconds(row.silent)} before the others.`))),
    run.events.length || dead.length ? "" : make("p", { class: "soft empty" }, "No stall, crash or alert was reported."),
    run.log.length ? [make("h3", {}, "Log, newest first"), make("pre", { class: "log", tabIndex: 0, role: "region", "aria-label": "Log" }, [...run.log].reverse().join("\n"))] : "",
  ];
}

function tree(value) {
  if (value === null || typeof value !== "object") return String(value).includes("\n") ? make("pre", {}, String(value)) : bdi(String(value));
  return make("dl", { class: "tree" }, Object.entries(value).map(([key, item]) => [make("dt", {}, bdi(key)), make("dd", {}, tree(item))]));
}

function aboutPart(run, name) {
  return [
    run.missing.length ? [make("h3", {}, "What is missing"), make("ul", {}, run.missing.map((text) => make("li", {}, bdi(text))))] : "",
    factList([["Started", clock(run.start)], ["Last record", clock(run.end)], ["Validations", run.validations.length ? count(run.validations.length) : ""], ...Object.entries(run.facts).filter(([key, value]) => value !== "" && value !== "{}" && key !== "run_id" && typeof value !== "object").map(([key, value]) => [key.replace(/^verl\./, ""), String(value)])]),
    isLive ? make("p", {}, make("a", { href: `run/${encodeURIComponent(name)}/report`, download: `${name}.html` }, "Save this run as one file")) : make("p", { class: "soft" }, `Written by verl-otel ${looks.version}. This file holds everything that it shows and loads nothing.`),
  ];
}

