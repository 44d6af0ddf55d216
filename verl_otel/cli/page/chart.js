// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Charts over steps or time, drawn by uPlot. Charts over the same axis share a cursor and a zoom. Each is a slider over
// its positions (WAI-ARIA Authoring Practices, "Slider"): one tab stop, arrows move, the value is announced as text.

import { LINES, fill, palette } from "./colours.js";
import { ROUND_SECONDS, axisNumber, axisSeconds, bdi, button, make, seconds, shape } from "./dom.js";

const FONT = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

// All charts that are drawn: uPlot knows them, because they share a cursor.
const drawn = () => ["steps", "time"].flatMap((key) => uPlot.sync(key).plots);
// Draws all charts again, as after a change of the colour scheme.
export const redrawCharts = () => drawn().forEach((plot) => plot.redraw(false, true));
export const forgetCharts = () => drawn().forEach((plot) => plot.destroy());

function axisOf(values, extra = {}) {
  const looks = { stroke: () => palette.soft, font: FONT, labelFont: FONT, ticks: { show: false }, gap: 6 };
  return { ...looks, grid: { stroke: () => palette.line, width: 1 }, values, ...extra };
}

const ROUND_STEPS = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power));
const marksOf = (words) => (plot, at, place, space, step) => at.map(words(step));
const whole = (plot, at) => at.map((value) => (Number.isInteger(value) ? value.toLocaleString("en-US") : ""));

// options: title; unit(value) -> text; axis: "step" or "time", its label; height; text(index) -> words; where(index)
// and moved(index): what stands beside the title, and in the legend; band: [low, high]; click(index);
// range(plot) -> [least, most]; paint(plot); series: at least one line. update(xs, lines): lines of equal length.
export function chart(options) {
  const title = make("figcaption", {}, options.head ?? bdi(options.title));
  const readout = make("span", { class: "readout" });
  const label = `Show all of ${options.title}`;
  const reset = button("Show all", () => zoom(0), { class: "reset", hidden: true, "aria-label": label });
  const holder = make("div", { class: "plot", tabIndex: 0, role: "slider", "aria-label": options.title });
  const head = make("div", { class: "chart-head" }, title, readout, reset);
  const element = make("figure", { class: `chart ${options.class ?? ""}` }, head, holder, options.foot);
  const view = { element, plot: null, xs: [], data: [[]], at: -1 };
  const group = options.axis === "time" ? "time" : "steps"; // charts of one axis share cursor and zoom
  const isTime = options.unit === seconds;

  function say(index) {
    view.at = index ?? -1;
    const last = view.xs.length - 1;
    const shown = view.at >= 0 ? Math.min(view.at, last) : last;
    const text = view.at < 0 && options.rest ? options.rest : last < 0 ? "" : options.text(shown);
    readout.textContent = options.where && last >= 0 ? options.where(shown) : text;
    options.moved?.(shown);
    const value = { min: 0, max: Math.max(0, last), now: Math.max(0, view.at), text: text || "nothing to show" };
    for (const [key, each] of Object.entries(value)) holder.setAttribute(`aria-value${key}`, each);
  }

  function draw() {
    const width = Math.floor(holder.clientWidth);
    if (!width || !view.xs.length) return;
    if (view.plot) {
      view.plot.setSize({ width, height: options.height });
      return;
    }
    const cursor = {
      sync: { key: group, scales: ["x", null] }, y: false, drag: { x: true, y: false },
      points: { show: !options.paint, size: 7 },
    };
    const hooks = {
      setCursor: [(plot) => say(plot.cursor.idx)],
      setScale: [(plot, key) => key === "x" && (reset.hidden = isWhole(plot))],
      drawClear: [(plot) => options.band && drawBand(plot, options.band)],
      draw: [(plot) => options.paint?.(plot)],
    };
    view.plot = new uPlot({
      width, height: options.height, cursor, hooks,
      padding: [options.paint ? 18 : 10, 24, 0, 0], legend: { show: false },
      scales: { x: { time: false, range: xRange }, y: { range: options.range ?? yRange } },
      axes: [
        axisOf(group === "steps" ? options.names ?? whole : marksOf(axisSeconds), {
          size: 24, space: 56, label: options.label, labelSize: 16, labelGap: -2,
          incrs: group === "steps" ? ROUND_STEPS : ROUND_SECONDS,
        }),
        axisOf(marksOf(isTime ? axisSeconds : axisNumber), {
          size: axisWidth, space: 32, ...(isTime ? { incrs: ROUND_SECONDS } : {}),
        }),
      ],
      series: [{}, ...(options.series ?? [{}]).map((_, index) => ({
        stroke: () => palette[LINES[index][0]], dash: LINES[index][1], width: 1.75, spanGaps: true,
        show: !options.paint, points: { show: view.xs.length < 3 },
      }))],
    }, view.data, holder);
    if (!options.click) return;
    let pressed = 0;
    view.plot.over.addEventListener("mousedown", (event) => (pressed = event.clientX));
    view.plot.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressed) < 4 && view.at >= 0) options.click(view.at);
    });
  }

  function isWhole(plot) {
    const [least, most] = domain();
    return plot.scales.x.max - plot.scales.x.min >= most - least - 1e-9;
  }

  // Half a step more at both ends where columns are drawn around their steps.
  function domain() {
    const spare = options.paint ? 0.5 : 0;
    return view.xs.length ? [view.xs[0] - spare, view.xs.at(-1) + spare] : [0, 1];
  }

  function xRange(plot, least, most) {
    if (least === view.xs[0] && most === view.xs.at(-1)) [least, most] = domain();
    return most > least ? [least, most] : [least - 0.5, least + 0.5];
  }

  function yRange(plot, least, most) {
    if (least === null || least === undefined) return [0, 1];
    const [low, high] = options.band ?? [null, null];
    const bottom = low !== null && low < least && least - low < most - least ? low : least;
    const top = high !== null && high > most && high - most < 2 * (most - least) ? high : most;
    const spare = (top - bottom) * 0.08 || Math.abs(top) * 0.1 || 1;
    return [least >= 0 && bottom - spare < 0 ? 0 : bottom - spare, top + spare];
  }

  function zoom(factor) {
    const plot = view.plot;
    if (!plot) return;
    const [least, most] = domain();
    const { min, max } = plot.scales.x;
    const centre = view.at >= 0 ? view.xs[view.at] : (min + max) / 2;
    const half = factor ? Math.max(0.5, ((max - min) * factor) / 2) : most - least;
    const [from, to] = [Math.max(least, centre - half), Math.min(most, centre + half)];
    for (const each of uPlot.sync(group).plots) each.setScale("x", { min: from, max: to });
  }

  function move(to) {
    const plot = view.plot;
    if (!plot) return;
    const index = Math.min(view.xs.length - 1, Math.max(0, to));
    const x = view.xs[index];
    if (x < plot.scales.x.min || x > plot.scales.x.max) {
      const half = (plot.scales.x.max - plot.scales.x.min) / 2;
      plot.setScale("x", { min: x - half, max: x + half });
    }
    plot.setCursor({ left: plot.valToPos(x, "x"), top: 10 }, true, true);
    say(index);
  }

  holder.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !view.xs.length) return;
    const last = view.xs.length - 1;
    const page = Math.max(1, Math.round(view.xs.length / 10));
    const at = view.at < 0 ? last : view.at;
    const moves = {
      ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last, PageUp: at - page, PageDown: at + page,
      ...options.keys?.(at),
    };
    if (moves[event.key] !== undefined) move(moves[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0") zoom(0);
    else if (options.click && (event.key === "Enter" || event.key === " ")) options.click(at);
    else return;
    event.preventDefault();
  });

  new ResizeObserver(draw).observe(holder);
  view.update = (xs, lines) => {
    view.xs = xs;
    view.data = [xs, ...lines];
    if (view.plot) {
      const wasWhole = reset.hidden;
      const { min, max } = view.plot.scales.x;
      view.plot.setData(view.data, false);
      const [least, most] = domain();
      view.plot.setScale("x", wasWhole ? { min: least, max: most } : { min, max });
    } else draw();
    if (view.at < 0 || view.at >= xs.length) say(null);
  };
  return view;
}

function axisWidth(plot, values) {
  return Math.max(44, 14 + 7 * Math.max(0, ...(values ?? []).map((text) => text.length)));
}

function drawBand(plot, [low, high]) {
  const { left, top, width, height } = plot.bbox;
  const upper = Math.max(top, high === null ? top : plot.valToPos(high, "y", true));
  const lower = Math.min(top + height, low === null ? top + height : plot.valToPos(low, "y", true));
  if (lower <= upper) return;
  plot.ctx.save();
  plot.ctx.globalAlpha = 0.1;
  plot.ctx.fillStyle = palette.green;
  plot.ctx.fillRect(left, upper, width, lower - upper);
  plot.ctx.restore();
}

// A small line without axes, as an image with a text; that of a time begins at 0.
const MOST_POINTS = 80;
const FEWEST_POINTS = 3;
export function spark(all, text, { band = null, isTime = false } = {}) {
  const [width, height] = [96, 24]; // the style sheet stretches it
  const each = Math.ceil(all.length / MOST_POINTS);
  const values = all.filter((_, index) => index % each === 0 || index === all.length - 1);
  const known = values.filter((value) => value !== null);
  if (known.length < FEWEST_POINTS) return make("span", { class: "spark" });
  const [least, most] = [isTime ? 0 : Math.min(...known), Math.max(...known)];
  const y = (value) => height - 2 - ((value - least) / (most - least || 1)) * (height - 4);
  const x = (index) => 1 + (index / Math.max(1, values.length - 1)) * (width - 4);
  const svg = shape("svg", {
    class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": text,
  });
  if (band?.some((end) => end !== null)) {
    const within = (value) => Math.max(0, Math.min(height, y(value)));
    const [top, bottom] = [within(band[1] ?? most + most - least + 1), within(band[0] ?? least - most + least - 1)];
    svg.append(shape("rect", { class: "spark-band", x: 0, width, y: top, height: Math.max(0, bottom - top) }));
  }
  const points = values.flatMap((value, index) => (value === null ? [] : [[x(index).toFixed(1), y(value).toFixed(1)]]));
  const [cx, cy] = points.at(-1);
  svg.append(shape("polyline", { points: points.join(" ") }), shape("circle", { cx, cy, r: 2 }));
  return svg;
}

// -- columns: all steps, stacked by phase or by cause --

const MOST_KEYS = 8;

// The largest of some columns; the others are summed.
export function largest(columns) {
  const sums = Object.entries(columns).map(([key, values]) => [key, values.reduce((sum, value) => sum + value, 0)]);
  const kept = sums.filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]);
  if (kept.length <= MOST_KEYS) return kept.map(([key]) => [key, columns[key]]);
  const rest = kept.slice(MOST_KEYS - 1).map(([key]) => columns[key]);
  const other = rest[0].map((_, index) => rest.reduce((sum, values) => sum + values[index], 0));
  return [...kept.slice(0, MOST_KEYS - 1).map(([key]) => [key, columns[key]]), ["other", other]];
}

// The height of the axis: that of the longest step, unless it would flatten the typical ones. Of many steps a tenth may
// be longer.
export function usualLimit(heights) {
  const known = heights.filter((value) => value > 0).sort((a, b) => a - b);
  if (!known.length) return 1;
  const [typical, most] = [known[Math.floor(known.length / 2)], known.at(-1)];
  if (most <= 4 * typical) return most;
  return Math.max(3.2 * typical, known.length < 20 ? 0 : known[Math.floor(known.length * 0.9)]);
}

// Paints stacked columns into a chart. state: {parts: [[key, values]], heights, limit, style, marks}.
export function paintColumns(plot, state) {
  const pen = plot.ctx;
  const ratio = window.devicePixelRatio || 1;
  const { left, top, width, height } = plot.bbox;
  const { min, max } = plot.scales.x;
  const offset = plot.data[0][0];
  const from = Math.max(0, Math.ceil(min - offset));
  const to = Math.min(state.heights.length - 1, Math.floor(max - offset));
  const slot = width / (max - min);
  const each = Math.max(1, Math.ceil(3 * ratio / slot));
  const y = (value) => plot.valToPos(Math.min(value, state.limit * 1.04), "y", true);
  const gap = slot * each > 10 * ratio ? Math.min(4 * ratio, slot * 0.14) : 0;
  const wide = Math.min(96 * ratio, slot * each - gap);
  pen.save();
  [pen.textAlign, pen.textBaseline] = ["left", "alphabetic"];
  pen.beginPath();
  pen.rect(left, 0, width, top + height);
  pen.clip();
  for (let begin = from - (from % each); begin <= to; begin += each) {
    const end = Math.min(state.heights.length, begin + each);
    const mean = (values) => values.slice(begin, end).reduce((sum, value) => sum + value, 0) / (end - begin);
    const at = plot.valToPos(offset + (begin + end - 1) / 2, "x", true) - wide / 2;
    let base = 0;
    for (const [key, values] of state.parts) {
      const part = mean(values);
      pen.fillStyle = wide > 6 * ratio ? fill(pen, state.style(key)) : palette[state.style(key)[0]];
      pen.fillRect(at, y(base + part), wide, Math.max(0, y(base) - y(base + part)));
      base += part;
    }
    const tallest = Math.max(...state.heights.slice(begin, end));
    if (each > 1 && tallest > base) {
      pen.fillStyle = palette.soft;
      pen.fillRect(at + wide / 2 - ratio / 2, y(tallest), ratio, y(base) - y(tallest));
    }
    if (tallest > state.limit * 1.04) {
      drawBreak(pen, { at, wide, ratio, y: y(state.limit) + 12 * ratio, text: seconds(tallest), right: left + width });
    }
    const marks = Array.from({ length: end - begin }, (_, index) => state.marks.get(begin + index)).filter(Boolean);
    const mark = ["failed", "held", "slow"].find((word) => marks.includes(word));
    if (mark) drawMark(pen, at + wide / 2, y(Math.min(tallest, state.limit)) - 3 * ratio, ratio, mark);
  }
  for (const event of state.events) {
    const x = Math.min(left + width - 2 * ratio, Math.round(plot.valToPos(offset + event.at, "x", true)));
    pen.fillStyle = event.kind === "crash" ? palette.bad : palette.finding;
    pen.fillRect(x, top, 1.5 * ratio, height);
    pen.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    const wideText = pen.measureText(event.kind).width;
    pen.fillText(event.kind, Math.min(x + 4 * ratio, left + width - wideText - 2), top - 5 * ratio);
  }
  pen.restore();
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
function drawBreak(pen, { at, wide, ratio, y, text, right }) {
  const slope = Math.min(4 * ratio, wide / 3);
  pen.strokeStyle = palette.paper;
  pen.lineWidth = 3 * ratio;
  pen.beginPath();
  pen.moveTo(at - ratio, y + 8 * ratio + slope);
  pen.lineTo(at + wide + ratio, y + 8 * ratio - slope);
  pen.stroke();
  pen.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  const measured = pen.measureText(text).width;
  if (measured > 3 * wide) return;
  const x = Math.max(at, Math.min(at + (wide - measured) / 2, right - measured - 4 * ratio));
  pen.fillStyle = palette.paper;
  pen.fillRect(x - 3 * ratio, y - 11 * ratio, measured + 6 * ratio, 14 * ratio);
  pen.fillStyle = palette.ink;
  pen.fillText(text, x, y);
}
