// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Bars in lanes over one axis of time: the waterfall of a step, its trajectories, the calls of one. A lane is one
// element with one text; what its bars are is shown for the pointer, and stands in a table for everybody.

import { canDrag, chart } from "./chart.js";
import { look } from "./colours.js";
import { area, bdi, legend, make, seconds, shape } from "./dom.js";

const SHOWN = 8; // entries of a legend

// lanes: [{label, href, items: [{from, to, look, text}], lives: [begin, end, ...], note, text, strong, isPhases}]
// end: seconds of the axis. The style sheet places bars by the part of the axis that is shown.
export function laneChart(title, lanes, end) {
  const over = make("div", { class: "lanes" }, lanes.map((lane) => laneOf(lane, end)));
  const opens = lanes.some((lane) => lane.href);
  const rest = canDrag ? `Drag to zoom${opens ? ", click a trajectory to open it" : ""}.` : "";
  const legendOf = (title, some) => (some.length
    ? legend(sumLooks(some).slice(0, SHOWN).map(([own]) => own), some.length < lanes.length ? title : "") : "");
  const view = chart({
    title, over, rest, axis: "lanes", unit: seconds, class: "large",
    zoomed: (from, to) => {
      over.style.setProperty("--from", from);
      over.style.setProperty("--span", to - from);
    },
    click(at, target) {
      const link = target.closest(".lane-track")?.parentElement.querySelector("a");
      if (link) location.hash = link.hash;
    },
    foot: [legendOf("Phases:", lanes.filter((lane) => lane.isPhases)),
      legendOf("Work:", lanes.filter((lane) => !lane.isPhases))],
  });
  over.addEventListener("mouseover", ({ target: { item } }) =>
    view.tell(item ? `${item.text}, ${seconds(item.to - item.from)} from ${seconds(item.from)}` : rest));
  view.update([0, end], [[null, null]]);
  return view.element;
}

function laneOf(lane, end) {
  const track = { class: "lane-track", role: "img", "aria-label": lane.text ?? describe(lane) };
  return make("div", { class: `lane${lane.strong ? " strong" : ""}${lane.href ? " opens" : ""}` },
    make("span", { class: "lane-label" }, lane.href ? make("a", { href: lane.href }, bdi(lane.label)) : bdi(lane.label),
      lane.note ? make("small", {}, ` ${lane.note}`) : ""),
    make("span", track, lane.lives ? livesOf(lane.lives, end) : lane.items.map(bar)));
}

function bar(item) {
  const style = { "--at": item.from, "--size": item.to - item.from };
  return area(`bar${item.failed ? " failed" : ""}`, item.look, { style, item },
    item.short ? make("span", {}, item.short) : "");
}

// What is in lanes, the longest first: look and seconds.
function sumLooks(lanes) {
  const sums = new Map();
  for (const item of lanes.flatMap((lane) => lane.items ?? [])) {
    const [own, sum] = sums.get(item.look[2]) ?? [item.look, 0];
    sums.set(item.look[2], [own, sum + item.to - item.from]);
  }
  return [...sums.values()].sort((a, b) => b[1] - a[1]);
}

// Many spans as lines below each other, the last one dark: a long tail is seen at a glance.
function livesOf(lives, end) {
  const rows = lives.length / 2;
  const line = (row) => `M${lives[2 * row]} ${row + 0.5}H${lives[2 * row + 1]}`;
  const others = Array.from({ length: rows - 1 }, (_, row) => line(row)).join("") || "M0 0";
  const svg = shape("svg", { viewBox: `0 0 ${end} ${rows}`, preserveAspectRatio: "none", class: "lives" },
    shape("path", { d: others }), shape("path", { d: line(rows - 1), class: "last" }));
  svg.style.blockSize = `${Math.max(24, Math.min(240, rows * 6))}px`;
  svg.style.setProperty("--at", 0);
  svg.style.setProperty("--size", end);
  return svg;
}

function describe(lane) {
  const parts = sumLooks([lane]).slice(0, 5).map(([own, sum]) => `${own[2]} ${seconds(sum)}`);
  return `${lane.label}: ${parts.join(", ")}`;
}

// What a part is, with its name where that says more: of a tool, a method, a phase.
export function workName(kind, name) {
  const isPlain = !name || ["server", "llm", "queue", "prefill", "decode"].includes(kind);
  return isPlain ? look.kind(kind)[2] : `${look.kind(kind)[2]} ${name}`;
}

// A part of a path, or an activity, of a document as a bar.
export function partItem(part, labels = {}) {
  const words = [
    workName(part.kind, part.name), labels[part.trace_id] && `trajectory ${labels[part.trace_id]}`,
    part.turn === null || part.turn === undefined ? "" : `turn ${part.turn}`, part.process && `on ${part.process}`,
  ];
  return {
    from: part.after, to: part.after + part.seconds, look: look.kind(part.kind), text: words.filter(Boolean).join(", "),
    short: part.kind === "tool" ? part.name : "", failed: part.failed,
  };
}
