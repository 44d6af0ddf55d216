// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Where documents come from: the server of the page, or the file itself. Views ask by the same addresses and do not
// know which it is.

import { pause } from "./dom.js";

const stored = document.getElementById("documents");
const documents = stored ? JSON.parse(stored.textContent) : null;
export const looks = JSON.parse(document.getElementById("looks").textContent);
export const isLive = documents === null;
// The only run of a file.
export const ownRun = documents?.run ?? null;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

const unpacked = new Map();
// A document, null where a file does not hold it.
export async function get(address) {
  if (!isLive) {
    if (!Object.hasOwn(documents, address)) return null;
    if (!unpacked.has(address)) unpacked.set(address, unpack(documents[address]));
    return unpacked.get(address);
  }
  const reply = await fetch(`api/${address}`, { headers: { Accept: "application/json" }, cache: "no-store" });
  if (reply.status === 401) throw new Error("the address with a new token is needed: verl-otel view prints it");
  if (!reply.ok) throw new Error((await reply.text()).trim() || `status ${reply.status}`);
  return reply.json();
}

export const runAddress = (name) => `runs/${encodeURIComponent(name)}`;

// The points of some scalars: a file holds all in one document, a server is asked for those that are wanted.
export async function getScalars(name, names) {
  const wanted = new Set(names);
  if (!wanted.size) return [];
  if (!isLive) return (await get(`${runAddress(name)}/scalars`)).filter((line) => wanted.has(line.name));
  const size = Math.ceil(names.length / 40);
  const groups = Array.from({ length: size }, (_, index) => names.slice(index * 40, (index + 1) * 40));
  const query = (group) => group.map((each) => `name=${encodeURIComponent(each)}`).join("&");
  return (await Promise.all(groups.map((group) => get(`${runAddress(name)}/scalars?${query(group)}`)))).flat();
}

const COLUMNS_OF_STEPS = ["number", "start", "seconds", "failed"];
// The steps of a run in columns. What is known is kept: only steps that may have changed are asked for again.
class Steps {
  constructor(name) {
    this.name = name;
    Object.assign(this, { settled: 0, count: 0, held: [], longer: {}, marks: new Map() });
    for (const key of COLUMNS_OF_STEPS) this[key] = [];
    for (const key of ["phases", "gpu"]) this[key] = Object.create(null);
  }

  async update() {
    let isMore = true;
    while (isMore) {
      const part = await get(`${runAddress(this.name)}/steps?first=${this.settled}`);
      if (!part) break;
      await pause();
      this.add(part);
      isMore = this.count < part.all;
      this.settled = isMore ? this.count : part.settled;
    }
    this.version = [this.count, this.settled, this.seconds.slice(-4), this.held.length];
  }

  add(part) {
    for (const key of COLUMNS_OF_STEPS) splice(this[key], part[key], part.first);
    this.count = part.first + part.number.length;
    for (const key of ["phases", "gpu"]) {
      for (const name of new Set([...Object.keys(this[key]), ...Object.keys(part[key])])) {
        const column = (this[key][name] ??= []);
        splice(column, part[key][name] ?? part.number.map(() => 0), part.first);
      }
    }
    this.held = [...this.held.filter((row) => row.index < part.first), ...part.held];
  }

  // What is special about a step: the last of these that holds.
  mark(run) {
    const failed = this.failed.flatMap((word, index) => (word ? [index] : []));
    this.marks.clear();
    this.longer = run.longer;
    const all = { slow: run.unexplained, "start-up": run.start_up, held: Object.keys(run.longer).map(Number), failed };
    for (const [word, places] of Object.entries(all)) for (const index of places) this.marks.set(index, word);
  }

  // The name of a step in an address: its number, or its place where that is unknown or was trained twice.
  key(index) {
    const own = this.number[index];
    return own !== null && this.number.lastIndexOf(own) === index ? String(own) : `at-${index}`;
  }

  find(key) {
    return key.startsWith("at-") ? Number(key.slice(3)) : this.number.lastIndexOf(Number(key));
  }

  title(index) {
    const own = this.number[index] ?? "?";
    const newest = this.number.lastIndexOf(own);
    if (this.number.indexOf(own) === newest) return `Step ${own}`;
    return `Step ${own} (${index === newest ? "last attempt" : "first attempt"})`;
  }
}

// What is known of the runs of this visit: a view that is opened again has its steps at once.
const visited = new Map();
export function stepsOf(name) {
  if (!visited.has(name)) visited.set(name, new Steps(name));
  return visited.get(name);
}

// A run and its steps, of the same analysis: one may have been made while the other was being requested.
export async function getRun(name) {
  const steps = stepsOf(name);
  let run = null;
  for (let tries = 0; tries < 3 && run?.steps !== steps.count; tries += 1) {
    run = await get(runAddress(name));
    await pause();
    await steps.update();
  }
  steps.mark(run);
  return run;
}

function splice(shown, next, first) {
  shown.length = Math.min(shown.length, first);
  while (shown.length < first) shown.push(0);
  for (const value of next) shown.push(value);
}
