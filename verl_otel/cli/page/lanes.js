// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Bars in lanes over one axis of time: the waterfall of a step, its trajectories, the calls of one. A lane is one
// element with one text; what its bars are is shown for the pointer, and stands in a table for everybody.

import { look } from "./colours.js";
import { ROUND_SECONDS, area, axisSeconds, bdi, button, legend, make, seconds, shape } from "./dom.js";

const MARKS = 6;
const SHOWN = 8; // entries of a legend

// lanes: [{label, href, items: [{from, to, look, text}], lives: [begin, end, ...], note, text, strong, isPhases}]
// end: seconds of the axis.
export function laneChart(title, lanes, end) {
  let [from, to] = [0, end];
  let [pressed, isDragged] = [null, false];
  const readout = make("p", { class: "readout", "aria-hidden": "true" });
  const axis = make("div", { class: "lane-axis", "aria-hidden": "true" });
  const body = make("div", { class: "lanes-body" });
  const reset = button("Show all", () => zoom(0, end), { class: "reset", hidden: true });
  const band = make("div", { class: "lane-select", hidden: true });
  const head = make("div", { class: "chart-head" }, make("figcaption", {}, title), readout, reset);
  const element = make("figure", { class: "lanes", role: "group", "aria-label": title }, head, axis, body, band);
  const place = (value) => `${((value - from) / (to - from)) * 100}%`;

  function bar(item) {
    const begin = Math.max(item.from, from);
    const share = (Math.min(item.to, to) - begin) / (to - from);
    const style = { insetInlineStart: place(begin), inlineSize: `max(1px, ${share * 100}%)` };
    return area(`bar${item.failed ? " failed" : ""}`, item.look, { style, item },
      share > 0.1 && item.short ? make("span", {}, item.short) : "");
  }

  function laneOf(lane) {
    const label = lane.href ? make("a", { href: lane.href }, bdi(lane.label)) : bdi(lane.label);
    const bars = lane.lives ? livesOf(lane.lives, from, to)
      : lane.items.filter((item) => item.to > from && item.from < to).map(bar);
    const track = make("span", { class: "lane-track", role: "img", "aria-label": lane.text ?? describe(lane) }, bars);
    return make("div", {
      class: `lane${lane.strong ? " strong" : ""}${lane.href ? " opens" : ""}`,
      onclick: (event) => lane.href && event.target.closest(".lane-track") && !isDragged && (location.hash = lane.href),
    }, make("span", { class: "lane-label" }, label, lane.note ? make("small", {}, ` ${lane.note}`) : ""), track);
  }

  function draw() {
    const step = ROUND_SECONDS.find((each) => each >= (to - from) / MARKS) ?? to - from;
    const words = axisSeconds(step);
    const marks = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const isEnd = at - from > 0.97 * (to - from);
      const facts = { class: isEnd ? "end" : undefined, style: { insetInlineStart: place(at) } };
      marks.push(make("span", facts, words(+at.toPrecision(6))));
    }
    axis.replaceChildren(make("span", { class: "lane-track" }, marks));
    body.replaceChildren(...lanes.map(laneOf));
    reset.hidden = from === 0 && to === end;
  }

  function zoom(begin, stop) {
    [from, to] = [Math.max(0, begin), Math.min(end, Math.max(stop, begin + end / 5000))];
    draw();
  }

  function say(item) {
    readout.textContent = item ? `${item.text}, ${seconds(item.to - item.from)} from ${seconds(item.from)}`
      : "Drag to zoom.";
  }

  function dragged(event) {
    const box = axis.firstElementChild.getBoundingClientRect();
    const at = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    return { box, span: [pressed ?? at, at].sort((a, b) => a - b) };
  }

  body.addEventListener("pointerdown", (event) => {
    const isMouse = event.button === 0 && event.pointerType === "mouse";
    if (isMouse && event.target.closest(".lane-track")) [pressed] = dragged(event).span;
  });
  body.addEventListener("pointermove", (event) => {
    say(event.target.item ?? null);
    if (pressed === null) return;
    const { box, span: [begin, stop] } = dragged(event);
    band.hidden = stop - begin < 0.01;
    band.style.insetInlineStart = `${box.left - element.getBoundingClientRect().left + begin * box.width}px`;
    band.style.inlineSize = `${(stop - begin) * box.width}px`;
    event.preventDefault();
  });
  window.addEventListener("pointerup", (event) => {
    if (pressed === null || !element.isConnected) return;
    const [begin, stop] = dragged(event).span;
    pressed = null;
    band.hidden = true;
    isDragged = stop - begin > 0.01;
    if (isDragged) zoom(from + begin * (to - from), from + stop * (to - from));
  });
  body.addEventListener("pointerleave", () => say(null));
  say(null);
  draw();
  for (const isPhases of [true, false]) {
    const looks = sumLooks(lanes.filter((lane) => Boolean(lane.isPhases) === isPhases)).slice(0, SHOWN);
    if (looks.length) element.append(legend(looks.map(([own]) => own)));
  }
  return element;
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
function livesOf(lives, from, to) {
  const rows = lives.length / 2;
  const line = (row) => `M${lives[2 * row]} ${row + 0.5}H${lives[2 * row + 1]}`;
  const box = { viewBox: `${from} 0 ${to - from} ${rows}`, preserveAspectRatio: "none", class: "lives" };
  const others = Array.from({ length: rows - 1 }, (_, row) => line(row)).join("") || "M0 0";
  const svg = shape("svg", box, shape("path", { d: others }), shape("path", { d: line(rows - 1), class: "last" }));
  svg.style.blockSize = `${Math.max(24, Math.min(240, rows * 6))}px`;
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
