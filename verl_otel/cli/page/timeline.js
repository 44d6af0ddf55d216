// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// All steps of a run as columns, by phase or by cause of device time.

import { canDrag, chart } from "./chart.js";
import { fill, look, palette } from "./colours.js";
import { count, filled, legend, make, seconds, select } from "./dom.js";

const WAYS = { phases: ["by phase", look.phase], gpu: ["by cause of device time", look.cause] };
const NOTABLE = ["failed", "held", "slow"];
const MOST_KEYS = 8;
const CUT = 1.04; // of the limit of the axis: columns that are higher are cut

// open(index) is called for a step that is chosen.
export function timeline(steps, open) {
  let [way, parts, heights, limit, shownEvents] = ["phases", [], [], 1, []];
  let isPlain = true; // whether the numbers of the steps are consecutive
  const [key, folded] = [make("div"), make("span")];
  const ways = select("Columns", (value) => {
    way = value;
    draw();
  });
  ways.hidden = true;

  function markOf(index) {
    const words = {
      held: `, ${seconds(steps.longer[index])} longer than usual`, slow: ", slow without a known cause",
      failed: `, ${(steps.failed[index] || "").toLowerCase()}`, "start-up": ", with start-up",
    };
    return words[steps.marks.get(index)] ?? "";
  }

  function describe(index) {
    const known = parts.map(([[, , name], values]) => [name, values[index]]).filter(([, value]) => value > 0);
    const words = known.sort((a, b) => b[1] - a[1]).slice(0, 4).map(([name, value]) => `${name} ${seconds(value)}`);
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
    tools: ways,
    class: "large",
    axis: "step",
    height: 300,
    unit: seconds,
    label: "step",
    text: describe,
    rest: canDrag ? "Drag to zoom, click to open a step." : "Tap a step to open it.",
    click: open,
    names: (plot, at) => at.map(nameOf),
    keys: (at) => ({ v: next(at, 1), V: next(at, -1) }),
    range: () => [0, limit * 1.1],
    paint,
    foot: key,
  });

  function draw() {
    parts = largest(steps[way], WAYS[way][1]);
    heights = steps.seconds.map((_, index) => parts.reduce((sum, [, values]) => sum + values[index], 0));
    limit = usualLimit(heights.filter((_, index) => steps.marks.get(index) !== "start-up" || steps.count < 3));
    isPlain = steps.number.every((value, index) => value === steps.number[0] + index);
    const words = new Set(steps.marks.values());
    const hints = [
      (words.has("held") || words.has("slow")) && "▼ slow", words.has("failed") && "■ failed",
      heights.some((value) => value > limit * CUT) && "Gap: the column is higher than the axis",
    ];
    const hint = make("p", { class: "soft keys" }, filled(hints).join(" · "), folded);
    key.replaceChildren(legend(parts.map(([own]) => own)), hint);
    const first = isPlain ? steps.number[0] : 0;
    view.update(steps.number.map((_, index) => first + index), [heights]);
  }

  // Stacked columns; where they would be too thin, one is the mean of several, with a line up to the highest.
  function paint(plot) {
    const pen = plot.ctx;
    const ratio = window.devicePixelRatio || 1;
    const { left, top, width, height } = plot.bbox;
    const { min, max } = plot.scales.x;
    const offset = plot.data[0][0];
    const [from, to] = [Math.max(0, Math.ceil(min - offset)), Math.min(heights.length - 1, Math.floor(max - offset))];
    const slot = width / (max - min);
    const each = Math.max(1, Math.ceil(3 * ratio / slot));
    folded.textContent = each > 1 ? ` · Column: the mean of ${each} steps, its line the longest of them` : "";
    const y = (value) => plot.valToPos(Math.min(value, limit * CUT), "y", true);
    const gap = slot * each > 10 * ratio ? Math.min(4 * ratio, slot * 0.14) : 0;
    const wide = Math.min(96 * ratio, slot * each - gap);
    pen.save();
    [pen.textAlign, pen.textBaseline, pen.font] = ["left", "alphabetic", `600 ${11 * ratio}px system-ui, sans-serif`];
    pen.beginPath();
    pen.rect(left, 0, width, top + height);
    pen.clip();
    for (let begin = from - (from % each); begin <= to; begin += each) {
      const end = Math.min(heights.length, begin + each);
      const mean = (values) => values.slice(begin, end).reduce((sum, value) => sum + value, 0) / (end - begin);
      const at = plot.valToPos(offset + (begin + end - 1) / 2, "x", true) - wide / 2;
      let base = 0;
      for (const [own, values] of parts) {
        const part = mean(values);
        pen.fillStyle = wide > 6 * ratio ? fill(pen, own) : palette[own[0]];
        pen.fillRect(at, y(base + part), wide, Math.max(0, y(base) - y(base + part)));
        base += part;
      }
      const tallest = Math.max(...heights.slice(begin, end));
      pen.fillStyle = palette.soft;
      if (each > 1 && tallest > base) pen.fillRect(at + wide / 2, y(tallest), ratio, y(base) - y(tallest));
      if (tallest > limit * CUT) drawGap(pen, at, wide, y(limit), ratio, seconds(tallest));
      const marks = Array.from({ length: end - begin }, (_, index) => steps.marks.get(begin + index));
      const mark = NOTABLE.find((word) => marks.includes(word));
      if (mark) drawMark(pen, at + wide / 2, y(Math.min(tallest, limit)) - 3 * ratio, ratio, mark);
    }
    for (const { kind, time } of shownEvents) {
      const x = Math.min(left + width - 2 * ratio, plot.valToPos(offset + placeOf(steps, time), "x", true));
      pen.fillStyle = kind === "crash" ? palette.bad : palette.finding;
      pen.fillRect(x, top, 1.5 * ratio, height);
      pen.fillText(kind, Math.min(x + 4 * ratio, left + width - pen.measureText(kind).width - 2), top - 5 * ratio);
    }
    pen.restore();
  }

  return {
    element: view.element,
    update(events) {
      if (!steps.count) return;
      if (Object.keys(steps.gpu).length && ways.hidden) {
        ways.hidden = false;
        ways.offer(Object.entries(WAYS).map(([value, [text]]) => [value, text]), way);
      }
      shownEvents = events;
      draw();
    },
  };
}

// The look and the values of the largest of some columns; the others are summed.
function largest(columns, lookOf) {
  const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);
  const all = Object.entries(columns).map(([key, values]) => [lookOf(key), values, sumOf(values)]);
  const kept = all.filter(([, , sum]) => sum > 0).sort((a, b) => b[2] - a[2]);
  if (kept.length <= MOST_KEYS) return kept;
  const rest = kept.splice(MOST_KEYS - 1).map(([, values]) => values);
  return [...kept, [lookOf("other"), rest[0].map((_, index) => sumOf(rest.map((values) => values[index])))]];
}

// The height of the axis: that of the longest step, unless it would flatten the typical ones. Of many steps a tenth may
// be longer.
function usualLimit(heights) {
  const known = heights.filter((value) => value > 0).sort((a, b) => a - b);
  if (!known.length) return 1;
  const [typical, most] = [known[Math.floor(known.length / 2)], known.at(-1)];
  if (most <= 4 * typical) return most;
  return Math.max(3.2 * typical, known.length < 20 ? 0 : known[Math.floor(known.length * 0.9)]);
}

// The place of a time among the steps: 3.4 is within the fourth.
function placeOf(steps, time) {
  const index = steps.start.findLastIndex((start) => start <= time);
  const share = (time - steps.start[index]) / Math.max(0.001, steps.seconds[index]);
  return index < 0 ? -0.5 : index - 0.5 + Math.min(1, share);
}

function drawMark(pen, x, y, ratio, word) {
  const size = 4.5 * ratio;
  pen.fillStyle = word === "failed" ? palette.bad : palette.finding;
  pen.beginPath();
  if (word === "failed") pen.rect(x - size, y - 2 * size, 2 * size, 2 * size);
  else for (const [dx, dy] of [[-size, -1.6 * size], [size, -1.6 * size], [0, 0]]) pen.lineTo(x + dx, y + dy);
  pen.fill();
}

// A gap across a column that is higher than the axis, and its value.
function drawGap(pen, x, wide, top, ratio, text) {
  pen.fillStyle = palette.paper;
  pen.fillRect(x, top + 18 * ratio, wide, 3 * ratio);
  const { width } = pen.measureText(text);
  if (width > 2 * wide) return;
  pen.fillRect(x + (wide - width) / 2 - 3 * ratio, top, width + 6 * ratio, 14 * ratio);
  pen.fillStyle = palette.ink;
  pen.fillText(text, x + (wide - width) / 2, top + 11 * ratio);
}
