// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// All steps of a run as columns, by phase or by cause of device time.

import { chart, largest, paintColumns, usualLimit } from "./chart.js";
import { look } from "./colours.js";
import { count, filled, legend, make, pause, seconds, segmented } from "./dom.js";
import { Steps, get, runAddress } from "./source.js";

// What is known of the runs of this visit: a view that is opened again has its steps at once.
const visited = new Map();
export function stepsOf(name) {
  if (!visited.has(name)) visited.set(name, new Steps(name));
  return visited.get(name);
}

// A run and its steps, of the same analysis: one may have been made while the other was being requested.
export async function getRun(name, steps) {
  let run = await get(runAddress(name));
  await pause();
  const isNew = await steps.update();
  if (run.steps !== steps.count) run = await get(runAddress(name));
  steps.mark(run);
  return [run, isNew];
}

const WAYS = { phases: ["by phase", look.phase], gpu: ["by cause of device time", look.cause] };
const NOTABLE = ["held", "slow", "failed"];

// open(index) is called for a step that is chosen.
export function timeline(steps, open) {
  const state = { parts: [], heights: [], limit: 1, style: look.phase, marks: steps.marks, events: [] };
  let way = "phases";
  let isPlain = true; // whether the numbers of the steps are consecutive
  const key = make("div", { class: "timeline-key" });
  const ways = make("span");

  function markOf(index) {
    const words = {
      held: `, ${seconds(steps.longer[index])} longer than usual`, slow: ", slow without a known cause",
      failed: `, ${(steps.failed[index] || "").toLowerCase()}`, "start-up": ", with start-up",
    };
    return words[steps.marks.get(index)] ?? "";
  }

  function describe(index) {
    const parts = state.parts.map(([name, values]) => [state.style(name)[2] ?? name, values[index]]);
    const known = parts.filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]).slice(0, 4);
    const words = known.map(([name, value]) => `${name} ${seconds(value)}`);
    return `${steps.title(index)}: ${seconds(steps.seconds[index])}${markOf(index)} · ${words.join(" · ")}`;
  }

  function next(index, by) {
    const isNotable = (at) => NOTABLE.includes(steps.marks.get(at));
    let at = index + by;
    while (at >= 0 && at < steps.count && !isNotable(at)) at += by;
    return isNotable(at) ? at : undefined;
  }

  const nameOf = (value) => (Number.isInteger(value) ? count(isPlain ? value : steps.number[value]) || "?" : "");
  const view = chart({
    title: "Time of each step",
    head: ["Time of each step ", ways],
    class: "timeline",
    height: 300,
    unit: seconds,
    label: "step",
    text: describe,
    rest: matchMedia("(hover: none), (max-width: 700px)").matches ? "Tap a step to open it."
      : "Drag to zoom, click to open a step.",
    click: open,
    names: (plot, at) => at.map(nameOf),
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
    const usual = state.heights.filter((_, index) => steps.marks.get(index) !== "start-up" || steps.count < 3);
    state.limit = usualLimit(usual);
    isPlain = steps.number.every((value, index) => value === steps.number[0] + index);
    const words = new Set(steps.marks.values());
    const hints = [
      (words.has("held") || words.has("slow")) && "▼ slow", words.has("failed") && "■ failed",
      state.heights.some((value) => value > state.limit * 1.04)
        && "Higher columns are cut: their value stands above the gap.",
    ];
    key.replaceChildren(
      legend(state.parts.map(([name]) => [...state.style(name).slice(0, 2), state.style(name)[2] ?? name])),
      make("p", { class: "soft keys" }, filled(hints).join(" · ")));
  }

  function draw() {
    prepare();
    const first = isPlain ? steps.number[0] : 0;
    view.update(steps.number.map((_, index) => first + index), [state.heights]);
  }

  return {
    element: view.element,
    update(events = []) {
      if (!steps.count) return;
      if (Object.keys(steps.gpu).length && !ways.childElementCount) {
        ways.append(segmented("Columns", Object.entries(WAYS).map(([value, [text]]) => [value, text]), way, (value) => {
          way = value;
          draw();
        }));
      }
      state.events = events.map((event) => ({ kind: event.kind, at: placeOf(steps, event.time) }));
      draw();
    },
  };
}

// The place of a time among the steps: 3.4 is within the fourth.
function placeOf(steps, time) {
  const index = steps.start.findLastIndex((start) => start <= time);
  const share = (time - steps.start[index]) / Math.max(0.001, steps.seconds[index]);
  return index < 0 ? -0.5 : index - 0.5 + Math.min(1, share);
}
