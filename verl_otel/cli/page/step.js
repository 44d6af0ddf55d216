// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// One step: why it took as long, what it waited for, all its trajectories; and one of these with its turns, calls and
// texts.

import { look } from "./colours.js";
import {
  bdi, blocks, capital, count, counted, dataTable, details, factList, figures, filled, make, number, numbers, prose,
  seconds, section, uncapital, untitled, whole,
} from "./dom.js";
import { runHref } from "./home.js";
import { laneChart, partItem, workName } from "./lanes.js";
import { shareBar, tokensOf, trajectoryColumns, verdictRow } from "./run.js";
import { get, isLive, runAddress, stepsOf } from "./source.js";

// The phases of a step from its path: parts of one phase that follow each other are one bar.
function phaseItems(path) {
  const items = [];
  for (const part of path) {
    const last = items.at(-1);
    const phase = part.phase || "no phase";
    const [from, to] = [part.after, part.after + part.seconds];
    if (last && last.phase === phase) last.to = to;
    else items.push({ phase, from, to, look: look.phase(phase), text: `phase ${phase}`, short: phase });
  }
  return items;
}

// One trajectory of the waterfall: what it waited for, or did, or only how long it took.
function memberLane(row, hrefOf, isLast) {
  const parts = row.path.length ? row.path : row.activities;
  const end = row.after + row.seconds;
  const whole = { from: row.after, to: end, look: look.kind("trajectory"), text: `trajectory ${row.label}` };
  return {
    label: row.label, href: hrefOf(row), note: `${seconds(row.seconds)}${isLast ? ", last" : ""}`, strong: isLast,
    items: parts.length ? parts.map((part) => partItem(part)) : [whole],
    text: `Trajectory ${row.label}, ${seconds(row.seconds)}, ended ${seconds(end)} after the start of the step`,
  };
}

// All that the step trained on in the order of their ends; of steps without it, those that were kept.
function livesLane(step) {
  const size = step.lifetimes.length / 2;
  const [first, last] = [step.lifetimes[1], step.lifetimes.at(-1)];
  return {
    label: `All ${count(size)} trajectories`, note: "by their end", lives: step.lifetimes,
    text: `${counted(size, "trajectory", "trajectories")} in the order of their ends, `
      + `the first one ${seconds(first)}, the last one ${seconds(last)} after the start of the step`,
  };
}

function waterfall(step, hrefOf) {
  return laneChart("What the step waited for", [
    { label: "Phases", items: phaseItems(step.path), strong: true, isPhases: true },
    { label: "Critical path", items: step.path.map((part) => partItem(part, step.labels)), strong: true },
    ...(step.lifetimes.length > 2 ? [livesLane(step)] : []),
    ...step.trajectories.map((row, place) => memberLane(row, hrefOf, place === 0)),
  ], step.seconds);
}

// What all trajectories took, by quantiles.
function membersLine(step) {
  const [least, middle, , , most] = step.quantiles;
  const kept = step.trajectories.length;
  const all = counted(step.members, "trajectory", "trajectories");
  const times = `fastest ${seconds(least)}, median ${seconds(middle)}, slowest ${seconds(most)}`;
  const named = step.members > kept ? ` Named are the ${kept} that ended last or took longest.` : "";
  return make("p", { class: "soft" }, kept ? `${all}: ${times}.${named}` : "No trajectory of this step was kept.");
}

const pathTable = (step) => details("The critical path as a table", () => dataTable("Critical path", [
  numbers("Began after", (row) => row.after, seconds),
  numbers("Seconds", (row) => row.seconds, (value) => value.toFixed(3)),
  { title: "What", wide: true, text: (row) => partItem(row).text },
  { title: "Phase", text: (row) => row.phase },
  { title: "Process", text: (row) => row.process },
  { title: "Trajectory", text: (row) => step.labels[row.trace_id] ?? "" },
  numbers("Turn", (row) => row.turn),
], step.path, { page: 30 }));

// How long it took beside the others, and what delayed it, the largest cause first.
function verdicts(step, longer) {
  const causes = step.verdicts.map((verdict) => ({ ...verdict, is_finding: true }));
  if (step.wait) causes.push({ ...step.wait, saved: step.wait.lead, is_finding: false });
  causes.sort((a, b) => b.saved - a.saved);
  const rows = causes.map((cause, place) => verdictRow(cause, place, place ? null : longer));
  return [...rows, make("p", { class: rows.length ? "soft" : "verdict-line" }, prose(step.title))];
}

const NOT_IN_FILE = "The detail of this step is not in this file: it holds that of the most important steps.";
const NOT_KEPT = "When it waited for what, and its trajectories, were not kept: of a long run they are for some steps.";

// The place of a step, and its document: null where there is no such step, or a file does not hold it.
async function findStep(name, key) {
  const steps = stepsOf(name);
  const index = steps.find(key);
  const isKnown = index >= 0 && index < steps.count;
  return { index, isKnown, size: steps.count, step: isKnown ? await get(`${runAddress(name)}/steps/${index}`) : null };
}

const hasSamples = (run, number) => isLive && run.samples.length > 0 && number !== null;
const samplesLink = (text, name, ...more) =>
  make("p", {}, make("a", { href: runHref(name, "samples", ...more) }, text));

export function stepView(name, key) {
  const hrefOf = (row) => runHref(name, "step", key, row.trace_id);

  function pager(steps, index) {
    const page = (text, to, label) => (to >= 0 && to < steps.count
      ? make("a", { class: "button", href: runHref(name, "step", steps.key(to)), "aria-label": label }, text)
      : make("span", { class: "button off", "aria-hidden": "true" }, text));
    const slow = [...steps.marks].filter(([, word]) => word !== "start-up").map(([at]) => at).sort((a, b) => a - b);
    const nextSlow = slow.find((at) => at > index) ?? slow.find((at) => at !== index) ?? -1;
    return make("nav", { class: "pager", "aria-label": "Steps" },
      page("← Previous", index - 1, "The previous step"), page("Next →", index + 1, "The next step"),
      nextSlow < 0 ? "" : page("Next slow step", nextSlow, "The next slow step"));
  }

  function detailOf(step, number, run) {
    const table = dataTable("Trajectories of the step", trajectoryColumns(hrefOf), step.trajectories,
      { page: 16, empty: "No trajectory was kept." });
    const samples = hasSamples(run, number)
      && samplesLink("Prompts and responses of this step", name, "training", number);
    const isPart = step.members > step.trajectories.length;
    const title = `${run.explain.has_gpu ? "GPU time" : "Device time (CPU)"} until the next step`;
    return make("div", { class: "pair" },
      section("waited", "Where its time went", blocks(step.blocks)),
      make("div", {},
        step.trajectories.length || samples
          ? section("members", isPart ? "Its last and slowest trajectories" : "Its trajectories", table, samples) : "",
        step.devices.gpus ? section("step-device", title, shareBar(step.devices)) : ""));
  }

  const load = async (run) => ({ ...await findStep(name, key), isRead: run.read >= 0.999 });
  return whole(load, ({ step, index, isKnown, size, isRead }, run) => {
    const steps = stepsOf(name);
    if (!isKnown) {
      const words = isRead ? `There is no step ${key}` : `Step ${key} has not been read yet`;
      const lead = isRead ? "The run has" : "Its files are being read:";
      const text = `${lead} ${counted(size, "step")}.`;
      return [make("h1", { id: "step-title" }, words), make("p", { class: "soft" }, text)];
    }
    const title = `${steps.title(index)}: ${seconds(steps.seconds[index])}`;
    return [
      make("div", { class: "title-row" }, make("h1", { id: "step-title" }, title), pager(steps, index)),
      step && untitled("verdict", "Verdict", verdicts(step, steps.longer[index])),
      untitled("waterfall", "Waterfall", step?.path.length
        ? [waterfall(step, hrefOf), membersLine(step), pathTable(step)]
        : make("p", { class: "soft" }, step ? NOT_KEPT : NOT_IN_FILE)),
      step && detailOf(step, steps.number[index], run),
    ];
  });
}

// -- one trajectory --

// A call is whole, where a part of a path is what was waited for of it.
const callName = (part) => (part.kind === "llm" ? `LLM call (${part.name})` : workName(part.kind, part.name));
const MOST_LANES = 24;

// Its calls in lanes: what it waited for, then LLM calls, servers and tools.
function callLanes(row) {
  const itemOf = (part) => partItem({ ...part, after: part.after - row.after });
  const lanes = new Map();
  for (const part of row.activities) {
    const label = part.kind === "server" ? `server ${part.process}` : callName(part);
    if (!lanes.has(label)) lanes.set(label, { label, items: [] });
    lanes.get(label).items.push(itemOf(part));
  }
  const path = { label: "What it waited for", strong: true, items: row.path.map(itemOf) };
  return [path, ...[...lanes.values()].slice(0, MOST_LANES)];
}

// How it ended, and what its time went to.
function factsOf(row) {
  const names = { llm: "LLM", wait: "Waiting", reward: "Reward call" };
  const nameOf = ({ kind, name }) => names[kind] ?? (kind === "tool" ? `Tool ${name}` : capital(kind));
  const ends = [row.finish, row.outcome !== "success" && row.outcome, row.failed && "failed"];
  return factList([
    ["Ended", filled(ends).join(", ")], ["Score", row.score === null ? "" : number(row.score)],
    ["Chat turns", count(row.turns || null)], ["Tokens in + out", tokensOf(row)], ["Process", row.process],
    ...row.parts.map((part) =>
      [nameOf(part), seconds(part.seconds) + (part.calls > 1 ? ` in ${part.calls} calls` : "")]),
    ["Kept", row.whole ? "" : "its root only"],
  ]);
}

const callTable = (row) => dataTable("Calls of the trajectory", [
  { title: "What", text: callName },
  { title: "Process", text: (part) => part.process },
  numbers("Turn", (part) => part.turn), numbers("Began after", (part) => part.after - row.after, seconds),
  figures("Took", (part) => part.seconds, seconds),
  { title: "Outcome", text: (part) => (part.failed ? "failed" : "") },
], [...row.activities].sort((a, b) => a.after - b.after), { page: 40, empty: "No call of it was kept." });

export function trajectoryView(name, key, id) {
  async function load(run) {
    const { index, step } = await findStep(name, key);
    const row = [...(step?.trajectories ?? []), ...run.slowest].find((each) => each.trace_id === id) ?? null;
    return { row, number: stepsOf(name).number[index] ?? null, verdicts: step?.verdicts ?? [] };
  }

  return whole(load, ({ row, number, verdicts: all }, run) => {
    const missing = "It is not among those that were kept.";
    if (!row) return [make("h1", {}, "Trajectory"), make("p", { class: "soft" }, missing)];
    const own = all.filter((verdict) => verdict.trace_id === id)
      .map(({ text, next }) => ({ text: `Step ${number}: ${uncapital(text)}`, next, is_finding: true }));
    const kind = row.validate ? "validation" : "training";
    return [
      make("h1", {}, "Trajectory ", bdi(row.label), `: ${seconds(row.seconds)}`),
      untitled("facts", "Facts", own.map((line, place) => verdictRow(line, place, null)), factsOf(row),
        hasSamples(run, number) && row.uid && samplesLink("Prompt and responses", name, kind, number, row.uid)),
      untitled("lanes", "Calls", laneChart("Its turns and calls", callLanes(row), row.seconds)),
      section("calls", "Its calls", callTable(row)),
    ];
  });
}

// -- prompts and responses, from verl's own files --

const SAYS = { tool_call: "calls a tool", tool_response: "the tool answers", text: "" };

function sampleCard(sample, place) {
  const title = `Response ${sample.rollout_index ?? place}`;
  const all = [["expected", sample.expected ?? ""], ...Object.entries(sample.facts)];
  const facts = all.filter(([, value]) => value !== "");
  const says = (part) => (SAYS[part.kind] ? make("p", { class: "soft" }, SAYS[part.kind]) : "");
  return make("article", { class: "card", "aria-label": title },
    make("h3", {}, title, sample.score === null ? "" : `: score ${number(sample.score)}`),
    sample.parts.map((part) => make("div", {}, says(part), make("pre", {}, bdi(part.text)))),
    make("p", { class: "soft" }, facts.map(([fact, value]) => make("span", {}, bdi(`${fact} ${value} `)))));
}

const promptOf = ([first]) => [make("h2", {}, "Prompt"),
  make("pre", { tabIndex: 0, role: "region", "aria-label": "Prompt" }, bdi(first.prompt))];

const groupTable = (rows, hrefOf) => dataTable("Prompts of the step", [
  { title: "Sample", text: (row) => make("a", { href: hrefOf(row) }, bdi(row.group)), value: (row) => row.group },
  figures("Responses", (row) => row.samples, count),
  ...["Lowest score", "Highest score"].map((title, end) => numbers(title, (row) => row.scores[end], number)),
  { title: "Prompt", wide: true, text: (row) => row.prompt },
], rows, { empty: "verl has written no samples of this step: trainer.rollout_data_dir switches that on, and its folder "
  + "must be readable here." });

export const samplesTitle = (kind, step) => `${kind === "validation" ? "Validation at step" : "Step"} ${step}: samples`;

export function samplesView(name, kind, step, group) {
  const query = new URLSearchParams({ step, kind, ...(group === undefined ? {} : { group }) });
  const title = [samplesTitle(kind, step), group === undefined ? "" : [" of ", bdi(group)]];
  return whole(() => get(`${runAddress(name)}/samples?${query}`), (rows) => [
    make("h1", {}, title),
    untitled("samples", "Samples", group !== undefined && rows.length
      ? [promptOf(rows), make("div", { class: "samples" }, rows.map(sampleCard))]
      : groupTable(rows, (row) => runHref(name, "samples", kind, step, row.group))),
  ]);
}
