// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// One step: why it took as long, what it waited for, its trajectories; and one of these with its turns, calls and texts.

import { look } from "./colours.js";
import { bdi, count, counted, dataTable, details, make, number, percent, prose, seconds, section } from "./dom.js";
import { runHref } from "./home.js";
import { laneChart, partItem, workName } from "./lanes.js";
import { getRun, shareBar, stepsOf, timeline, trajectoryColumns } from "./run.js";
import { get, hasDocument, isLive, runAddress } from "./source.js";

// The phases of a step from its path: parts of one phase that follow each other are one bar.
function phaseItems(path) {
  const items = [];
  for (const part of path) {
    const last = items.at(-1);
    const phase = part.phase || "no phase";
    if (last && last.phase === phase) last.to = part.after + part.seconds;
    else items.push({ phase, from: part.after, to: part.after + part.seconds, look: look.phase(phase), text: `phase ${phase}`, short: phase });
  }
  return items;
}

const trajectoryItems = (row) => (row.path.length ? row.path : row.activities).map((part) => partItem(part));

function waterfall(step, hrefOf) {
  const lanes = step.trajectories.map((row, place) => ({
    label: row.label,
    href: hrefOf(row),
    note: seconds(row.seconds),
    strong: place === 0,
    items: trajectoryItems(row).length ? trajectoryItems(row) : [{ from: row.after, to: row.after + row.seconds, look: look.kind("trajectory"), text: `trajectory ${row.label}` }],
    text: `Trajectory ${row.label}, ${seconds(row.seconds)}, ended ${seconds(row.after + row.seconds)} after the start of the step`,
  }));
  return laneChart("What the step waited for", [
    { label: "Phases", items: phaseItems(step.path), strong: true, isNamed: true },
    { label: "Critical path", items: step.path.map((part) => partItem(part, step.labels)), strong: true },
    ...lanes,
  ], step.seconds);
}

// What all trajectories took, by quantiles, where more were trained on than are kept.
function membersLine(step) {
  const [least, middle, , , most] = step.quantiles;
  const kept = step.trajectories.length;
  if (!kept) return make("p", { class: "soft" }, "No trajectory of this step was kept.");
  return make("p", { class: "soft" }, step.members > kept ? `The ${kept} that ended last or took longest, of ${counted(step.members, "trajectory", "trajectories")}: fastest ${seconds(least)}, median ${seconds(middle)}, slowest ${seconds(most)}.` : `All ${counted(kept, "trajectory", "trajectories")}, the last one first.`);
}

function pathTable(step) {
  return details("The critical path as a table", () => dataTable("Critical path", [
    { title: "From", number: true, value: (row) => row.after, text: (row) => seconds(row.after) },
    { title: "Seconds", number: true, value: (row) => row.seconds, text: (row) => row.seconds.toFixed(3) },
    { title: "What", wide: true, text: (row) => partItem(row).text },
    { title: "Phase", text: (row) => row.phase },
    { title: "Process", text: (row) => row.process },
    { title: "Trajectory", text: (row) => step.labels[row.trace_id] ?? "" },
    { title: "Turn", number: true, value: (row) => row.turn ?? -1, text: (row) => (row.turn === null ? "" : String(row.turn)) },
  ], step.path, { page: 30, quiet: true }));
}

// Where the time of the path went, the largest first.
function summary(step) {
  const rows = step.path_summed.slice(0, 8);
  return dataTable("What the step waited for, summed", [
    { title: "What", wide: true, text: (row) => workName(row.kind, row.name) },
    { title: "Took", number: true, value: (row) => row.seconds, text: (row) => seconds(row.seconds) },
    { title: "Share", number: true, value: (row) => row.seconds, text: (row) => percent(row.seconds / step.seconds) },
  ], rows, { quiet: true });
}

function verdicts(step) {
  const end = step.failed ? ` It ${step.interrupted ? "was interrupted" : "failed"}${step.error ? `: ${step.error}` : ""}.` : "";
  if (!step.sentences.length) {
    const text = step.unexplained || step.isSlow ? "It was slow, and no single cause was found." : "Nothing delayed it noticeably.";
    return make("div", { class: "verdict" }, make("div", {}, make("p", { class: "verdict-line" }, text, bdi(end))));
  }
  return step.sentences.map((line, place) => make("div", { class: `verdict${line.is_finding ? " is-finding" : ""}${place ? " minor" : ""}` },
    line.is_finding ? make("span", { class: "verdict-cost" }, make("b", {}, seconds(line.saved)), make("small", {}, " lost")) : "",
    make("div", {}, make("p", { class: "verdict-line" }, prose(line.text), bdi(place ? "" : end)), make("p", { class: "advice" }, make("b", {}, "What to do: "), prose(line.next)))));
}

export function stepView(name, key) {
  const steps = stepsOf(name);
  const open = (index) => (location.hash = runHref(name, "step", steps.key(index)));
  const body = make("div");
  const heading = make("h1", { id: "step-title", tabIndex: -1 });
  const pager = make("nav", { class: "pager", "aria-label": "Steps" });
  const element = make("div", { class: "step" }, make("div", { class: "title-row" }, heading, pager), body);
  let drawn = "";
  let index = -1;

  function page(text, to, label) {
    return to >= 0 && to < steps.count ? make("a", { class: "button", href: runHref(name, "step", steps.key(to)), "aria-label": label }, text) : make("span", { class: "button off" }, text);
  }

  function draw(step, run) {
    const mark = steps.marks.get(index);
    heading.replaceChildren(`${steps.title(index)}: ${seconds(steps.seconds[index])}`);
    const slow = [...steps.marks].filter(([, word]) => word !== "start-up").map(([at]) => at).sort((a, b) => a - b);
    const nextSlow = slow.find((at) => at > index) ?? slow.find((at) => at !== index) ?? -1;
    pager.replaceChildren(page("← Before", index - 1, "The step before"), page("Next →", index + 1, "The next step"), page("Next held step", nextSlow, "The next held step"));
    const all = timeline(steps, open, { height: 130, current: index });
    const hrefOf = (row) => runHref(name, "step", key, row.trace_id);
    if (step) step.isSlow = mark === "slow";
    body.replaceChildren(...[
      step ? make("section", { "aria-label": "Verdict" }, verdicts(step)) : make("section", {}, make("p", { class: "soft" }, "The detail of this step is not in this file: it holds that of the most important steps.")),
      step ? make("section", { id: "waterfall", "aria-label": "Waterfall" }, waterfall(step, hrefOf), membersLine(step), pathTable(step)) : "",
      make("section", { "aria-label": "All steps" }, all.element),
      step ? make("div", { class: "pair" },
        section("waited", "Where its time went", summary(step), step.shorter.length ? [make("h3", {}, "It would have been shorter by"), make("ul", { class: "plain" }, step.shorter.map((line) => make("li", {}, bdi(line))))] : "", step.late.length ? [make("h3", {}, "Ranks that others waited for"), make("ul", { class: "plain" }, step.late.map((line) => make("li", {}, bdi(line))))] : ""),
        make("div", {}, section("members", "Its trajectories", step.trajectories.length ? dataTable("Trajectories of the step", trajectoryColumns(hrefOf), step.trajectories, { page: 16, quiet: true }) : make("p", { class: "soft" }, "No trajectory was kept."),
          isLive && run.samples.length && steps.number[index] !== null ? make("p", {}, make("a", { href: runHref(name, "samples", "training", steps.number[index]) }, "Prompts and responses of this step")) : ""),
        Object.keys(step.gpu_seconds).length ? section("step-device", run.has_gpu ? "GPU time until the next step" : "Device time (CPU) until the next step", shareBar(step.gpu_seconds)) : "")) : "",
    ].filter(Boolean));
    all.update(run.events);
  }

  return {
    element,
    title: `Step ${key} · ${name}`,
    crumbs: () => [[name, runHref(name)], [index < 0 ? "Step" : steps.title(index), runHref(name, "step", key)]],
    async refresh() {
      const [run] = await getRun(name, steps);
      index = steps.find(key);
      if (!(index >= 0 && index < steps.count)) {
        heading.textContent = `There is no step ${key}`;
        body.replaceChildren(make("p", { class: "soft" }, `The run has ${counted(steps.count, "step")}.`));
        return { run, steps };
      }
      const address = `${runAddress(name)}/steps/${index}`;
      const step = hasDocument(address) ? await get(address) : null;
      const text = JSON.stringify([step, steps.count]);
      if (text !== drawn) {
        drawn = text;
        draw(step, run);
      }
      return { run, steps };
    },
  };
}

// -- one trajectory --

// A call is whole, where a part of a path is what was waited for of it.
const callName = (part) => (part.kind === "llm" ? `LLM call ${part.name}` : workName(part.kind, part.name));

// Its calls in lanes: what it waited for, then LLM calls, servers and tools.
function callLanes(row) {
  const shift = (item) => ({ ...item, from: item.from - row.after, to: item.to - row.after });
  const lanes = new Map();
  for (const part of row.activities) {
    const item = shift(partItem(part));
    const label = part.kind === "server" ? `server ${part.process}` : callName(part);
    if (!lanes.has(label)) lanes.set(label, { label, items: [] });
    lanes.get(label).items.push(item);
  }
  return [{ label: "What it waited for", strong: true, items: row.path.map((part) => shift(partItem(part))) }, ...[...lanes.values()].slice(0, 24)];
}

export function trajectoryView(name, key, id) {
  const steps = stepsOf(name);
  const element = make("div", { class: "step" });
  let drawn = "";
  return {
    element,
    title: `Trajectory · ${name}`,
    crumbs: () => [[name, runHref(name)], [`Step ${key}`, runHref(name, "step", key)], ["Trajectory", runHref(name, "step", key, id)]],
    async refresh() {
      const [run] = await getRun(name, steps);
      const index = steps.find(key);
      const address = `${runAddress(name)}/steps/${index}`;
      const step = index >= 0 && index < steps.count && hasDocument(address) ? await get(address) : null;
      const row = step?.trajectories.find((each) => each.trace_id === id) ?? run.slowest.find((each) => each.trace_id === id);
      const text = JSON.stringify(row ?? null);
      if (text === drawn) return { run, steps };
      drawn = text;
      if (!row) {
        element.replaceChildren(make("h1", {}, "Trajectory"), make("p", { class: "soft" }, "It is not among those that were kept."));
        return { run, steps };
      }
      const rows = [...row.activities].sort((a, b) => a.after - b.after);
      const samples = isLive && run.samples.length && row.uid && steps.number[index] !== null ? make("p", {}, make("a", { href: runHref(name, "samples", row.validate ? "validation" : "training", steps.number[index], row.uid) }, "Prompt and responses")) : "";
      element.replaceChildren(
        make("h1", {}, "Trajectory ", bdi(row.label), `: ${seconds(row.seconds)}`),
        make("section", { "aria-label": "Facts" }, make("p", { class: "lead" }, [
          row.process && `on ${row.process}`, row.turns && counted(row.turns, "turn"), row.tokens[0] + row.tokens[1] && `${count(row.tokens[0])} tokens in, ${count(row.tokens[1])} out`,
          row.score !== null && `score ${number(row.score)}`, row.finish && `finish ${row.finish}`, row.outcome !== "success" && row.outcome, row.failed && "failed", !row.whole && "only its root was kept",
        ].filter(Boolean).map((text, place) => [place ? " · " : "", bdi(text)])),
        make("p", {}, row.parts.map((part, place) => [place ? " · " : "", bdi(`${[{ llm: "LLM", wait: "waiting" }[part.kind] ?? part.kind, part.kind === "llm" ? "" : part.name].filter(Boolean).join(" ")} ${seconds(part.seconds)}${part.calls > 1 ? ` in ${part.calls} calls` : ""}`)])), samples),
        make("section", { "aria-label": "Calls" }, laneChart("Its turns and calls", callLanes(row), row.seconds)),
        section("calls", "Its calls", dataTable("Calls of the trajectory", [
          { title: "From", number: true, value: (part) => part.after, text: (part) => seconds(part.after - row.after) },
          { title: "Took", number: true, value: (part) => part.seconds, text: (part) => seconds(part.seconds) },
          { title: "What", wide: true, text: (part) => callName(part) },
          { title: "Turn", number: true, value: (part) => part.turn ?? -1, text: (part) => (part.turn === null ? "" : String(part.turn)) },
          { title: "Process", text: (part) => part.process },
          { title: "Outcome", text: (part) => (part.failed ? "failed" : "") },
        ], rows, { page: 40, quiet: true, empty: "No call of it was kept." })));
      return { run, steps };
    },
  };
}

// -- prompts and responses, from verl's own files --

const SAYS = { tool_call: "calls a tool", tool_response: "the tool answers", text: "" };

function sampleCard(sample, place) {
  const title = `Response ${sample.rollout_index ?? place}`;
  return make("article", { class: "sample", "aria-label": title },
    make("h3", {}, title, sample.score === null ? "" : `: score ${number(sample.score)}`),
    sample.parts.map((part) => make("div", {}, SAYS[part.kind] ? make("p", { class: "soft" }, SAYS[part.kind]) : "", make("pre", {}, bdi(part.text)))),
    make("p", { class: "soft" }, [["expected", sample.expected ?? ""], ...Object.entries(sample.facts)].filter(([, value]) => value !== "").map(([title, value]) => make("span", {}, bdi(`${title} ${value} `)))));
}

export function samplesView(name, kind, step, group) {
  const element = make("div", { class: "step" });
  const what = `${kind === "validation" ? "Validation at step" : "Step"} ${step}`;
  let drawn = "";
  return {
    element,
    title: `${what} · ${name}`,
    crumbs: () => [[name, runHref(name)], [`${what}: samples`, runHref(name, "samples", kind, step)]],
    async refresh() {
      const query = new URLSearchParams({ step, kind, ...(group === undefined ? {} : { group }) });
      const [run, rows] = await Promise.all([get(runAddress(name)), get(`${runAddress(name)}/samples?${query}`)]);
      if (JSON.stringify(rows) !== drawn) {
        drawn = JSON.stringify(rows);
        element.replaceChildren(make("h1", {}, group === undefined ? `${what}: samples` : [`${what}: sample `, bdi(group)]), make("section", { "aria-label": "Samples" },
          !rows.length ? make("p", { class: "soft" }, "verl has written no samples of this step: trainer.rollout_data_dir switches that on, and its folder must be readable here.")
            : group === undefined ? groupTable(rows, (row) => runHref(name, "samples", kind, step, row.group))
              : [make("h2", {}, "Prompt"), make("pre", { tabIndex: 0, role: "region", "aria-label": "Prompt" }, bdi(rows[0].prompt)), make("div", { class: "samples" }, rows.map(sampleCard))]));
      }
      return { run, steps: stepsOf(name) };
    },
  };
}

function groupTable(rows, hrefOf) {
  return dataTable(counted(rows.length, "prompt"), [
    { title: "Sample", text: (row) => make("a", { href: hrefOf(row) }, bdi(row.group)), value: (row) => row.group },
    { title: "Responses", number: true, value: (row) => row.samples, text: (row) => count(row.samples) },
    { title: "Lowest score", number: true, value: (row) => row.scores[0] ?? -Infinity, text: (row) => number(row.scores[0]) },
    { title: "Highest score", number: true, value: (row) => row.scores[1] ?? -Infinity, text: (row) => number(row.scores[1]) },
    { title: "Prompt", wide: true, text: (row) => row.prompt },
  ], rows);
}

