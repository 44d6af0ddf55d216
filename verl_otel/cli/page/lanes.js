// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Bars in lanes over one axis of time: the waterfall of a step, its trajectories, the calls of one. A lane is one element with one text; what its
// bars are is shown for the pointer, and stands in a table for everybody.

import { look } from "./colours.js";
import { axisSeconds, bdi, button, legend, make, seconds } from "./dom.js";

const MARKS = 6;

// lanes: [{label, href, items: [{from, to, look, text}], note, strong}]; end: seconds of the axis.
export function laneChart(title, lanes, end) {
  let [from, to] = [0, end];
  const readout = make("p", { class: "readout", "aria-hidden": "true" });
  const axis = make("div", { class: "lane-axis", "aria-hidden": "true" });
  const body = make("div", { class: "lanes-body" });
  const reset = button("Show all", () => look_at(0, end), { class: "reset", hidden: true });
  const band = make("div", { class: "lane-select", hidden: true });
  const element = make("figure", { class: "lanes", role: "group", "aria-label": title },
    make("div", { class: "chart-head" }, make("figcaption", {}, title), readout, reset), axis, body, band);
  const place = (value) => `${((value - from) / (to - from)) * 100}%`;

  function bar(item) {
    const mark = make("i", { class: `bar hue-${item.look[0]} pattern-${item.look[1]}${item.failed ? " failed" : ""}` });
    const [begin, stop] = [Math.max(item.from, from), Math.min(item.to, to)];
    mark.style.insetInlineStart = place(begin);
    mark.style.inlineSize = `max(1px, ${((stop - begin) / (to - from)) * 100}%)`;
    if ((stop - begin) / (to - from) > 0.1 && item.short) mark.textContent = item.short;
    mark.item = item;
    return mark;
  }

  function draw() {
    const step = niceStep((to - from) / MARKS);
    const words = axisSeconds(step);
    const marks = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const mark = make("span", {}, words(+at.toPrecision(6)));
      mark.style.insetInlineStart = place(at);
      marks.push(mark);
    }
    axis.replaceChildren(make("span", { class: "lane-track" }, marks));
    body.replaceChildren(...lanes.map((lane) => {
      const bars = lane.items.filter((item) => item.to > from && item.from < to).map(bar);
      const label = lane.href ? make("a", { href: lane.href }, bdi(lane.label)) : bdi(lane.label);
      const open = lane.href && ((event) => event.target.closest(".lane-track") && !isDragged && (location.hash = lane.href));
      return make("div", { class: `lane${lane.strong ? " strong" : ""}${lane.href ? " opens" : ""}`, onclick: open || undefined }, make("span", { class: "lane-label" }, label, lane.note ? make("small", {}, ` ${lane.note}`) : ""),
        make("span", { class: "lane-track", role: "img", "aria-label": lane.text ?? describe(lane) }, bars));
    }));
    reset.hidden = from === 0 && to === end;
  }

  function look_at(begin, stop) {
    [from, to] = [Math.max(0, begin), Math.min(end, Math.max(stop, begin + end / 5000))];
    draw();
  }

  const say = (item) => (readout.textContent = item ? `${item.text}, ${seconds(item.to - item.from)} from ${seconds(item.from)}` : "Drag to zoom.");
  const share = (event) => {
    const box = axis.firstElementChild.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  let [pressed, isDragged] = [null, false];
  body.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType === "mouse" && event.target.closest(".lane-track")) pressed = share(event);
  });
  body.addEventListener("pointermove", (event) => {
    say(event.target.item ?? null);
    if (pressed === null) return;
    const [begin, stop] = [pressed, share(event)].sort((a, b) => a - b);
    const [box, own] = [axis.firstElementChild.getBoundingClientRect(), element.getBoundingClientRect()];
    band.hidden = stop - begin < 0.01;
    band.style.insetInlineStart = `${box.left - own.left + begin * box.width}px`;
    band.style.inlineSize = `${(stop - begin) * box.width}px`;
    event.preventDefault();
  });
  window.addEventListener("pointerup", (event) => {
    if (pressed === null || !element.isConnected) return;
    const [begin, stop] = [pressed, share(event)].sort((a, b) => a - b);
    pressed = null;
    band.hidden = true;
    isDragged = stop - begin > 0.01;
    if (isDragged) look_at(from + begin * (to - from), from + stop * (to - from));
  });
  body.addEventListener("pointerleave", () => say(null));
  say(null);
  draw();
  const counted = lanes.filter((lane) => !lane.isNamed).flatMap((lane) => lane.items); // bars that have their names in them need no legend
  const known = [...new Map(counted.map((item) => [item.look[2], item])).values()];
  const spent = (key) => counted.reduce((sum, item) => sum + (item.look[2] === key ? item.to - item.from : 0), 0);
  const shown = known.map((item) => [item.look, spent(item.look[2])]).sort((a, b) => b[1] - a[1]).slice(0, 8);
  element.append(legend(shown.map(([each]) => each)));
  return element;
}

// What a lane contains, the longest first.
function describe(lane) {
  const sums = new Map();
  for (const item of lane.items) sums.set(item.look[2], (sums.get(item.look[2]) ?? 0) + item.to - item.from);
  return `${lane.label}: ${[...sums].sort((a, b) => b[1] - a[1]).slice(0, 5).map(([key, value]) => `${key} ${seconds(value)}`).join(", ")}`;
}

// Steps of an axis: 1, 2 or 5 times a power of ten.
function niceStep(raw) {
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
}

// What a part is, with its name where that says more: of a tool, a method, a phase.
export function workName(kind, name) {
  return name && !["server", "llm", "queue", "prefill", "decode"].includes(kind) ? `${look.kind(kind)[2]} ${name}` : look.kind(kind)[2];
}

// A part of a path, or an activity, of a document as a bar.
export function partItem(part, labels = {}) {
  const whose = labels[part.trace_id] ? `, trajectory ${labels[part.trace_id]}` : "";
  const turn = part.turn === null || part.turn === undefined ? "" : `, turn ${part.turn}`;
  return { from: part.after, to: part.after + part.seconds, look: look.kind(part.kind), text: `${workName(part.kind, part.name)}${whose}${turn}${part.process ? `, on ${part.process}` : ""}`, short: part.kind === "tool" ? part.name : "", failed: part.failed };
}
