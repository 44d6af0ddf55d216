// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// One axis, drawn by uPlot, with a zoom and a cursor that charts over the same axis share. Over it are lines, columns,
// or elements. Lines and columns are a slider over their positions (WAI-ARIA Authoring Practices, "Slider"): one tab
// stop, arrows move, the value is announced as text.

import { LINES, palette } from "./colours.js";
import { ROUND_SECONDS, axisNumber, axisSeconds, bdi, button, make, seconds, shape } from "./dom.js";

const FONT = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
const CLICK = 4; // pixels: what is longer is a drag
const DEEPEST = 5000; // times that one can look closer
export const canDrag = !matchMedia("(hover: none), (max-width: 700px)").matches;

// All charts that are drawn: uPlot knows them, because they share a cursor.
const drawn = () => ["step", "time", "lanes"].flatMap((key) => uPlot.sync(key).plots);
// Draws all charts again, as after a change of the colour scheme.
export const redrawCharts = () => drawn().forEach((plot) => plot.redraw(false, true));
export const forgetCharts = () => drawn().forEach((plot) => plot.destroy());

const ROUND_STEPS = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power));
const marksOf = (words) => (plot, at, place, space, step) => at.map(words(step));
const stepMarks = (plot, at) => at.map((value) => (Number.isInteger(value) ? value.toLocaleString("en-US") : ""));
const axisWidth = (plot, values) => Math.max(44, 14 + 7 * Math.max(0, ...(values ?? []).map((text) => text.length)));

// options: title; axis: "step", "time" or "lanes", its label; unit(value) -> text; height; text(index) -> words;
// where(index) and moved(index): what stands beside the title, and in the legend; rest: what stands there otherwise;
// tools; foot; band: [low, high]; range(plot) -> [least, most]; paint(plot); click(index, element);
// over: elements over the axis; zoomed(from, to). update(xs, lines): lines of equal length.
export function chart(options) {
  const { title, axis, over, paint, band } = options;
  const readout = make("span", { class: "readout" });
  const label = `Show all of ${title}`;
  const reset = button("Show all", () => zoom(0), { class: "reset", hidden: true, "aria-label": label });
  const slider = over ? {} : { tabIndex: 0, role: "slider", "aria-label": title };
  const holder = make("div", { class: "plot", ...slider }, over);
  const element = make("figure", { class: `chart ${options.class ?? ""}` },
    make("div", { class: "chart-head" }, make("figcaption", {}, bdi(title)), options.tools, readout, reset),
    holder, options.foot);
  let [plot, xs, lines, at] = [null, [], [], -1];

  const tell = (text) => (readout.textContent = text);

  function say(index) {
    at = index ?? -1;
    const last = xs.length - 1;
    const shown = at < 0 ? last : Math.min(at, last);
    const text = last < 0 ? "No finite value was logged." : at < 0 && options.rest ? options.rest : options.text(shown);
    tell(options.where && last >= 0 ? options.where(shown) : text);
    options.moved?.(shown);
    const value = { min: 0, max: Math.max(0, last), now: Math.max(0, at), text };
    for (const [key, each] of Object.entries(value)) holder.setAttribute(`aria-value${key}`, each);
  }

  // Around the tracks of the elements over the axis.
  function room(side) {
    const [box, track] = [holder, over.querySelector(".lane-track")].map((each) => each.getBoundingClientRect());
    return Math.abs(box[side] - track[side]);
  }

  const size = () => ({ width: Math.floor(holder.clientWidth), height: over?.offsetHeight ?? options.height });

  function draw() {
    if (!holder.clientWidth || !xs.length) return;
    if (plot) {
      plot.setSize(size());
      return;
    }
    const looks = {
      stroke: () => palette.soft, font: FONT, labelFont: FONT, ticks: { show: false }, gap: 6,
      grid: { show: !over, stroke: () => palette.line, width: 1 },
    };
    const isTime = options.unit === seconds;
    plot = new uPlot({
      ...size(), legend: { show: false }, padding: [paint ? 18 : over ? 0 : 10, over ? () => room("right") : 24, 0, 0],
      cursor: {
        sync: { key: axis, scales: ["x", null] }, y: false, drag: { x: true, y: false, dist: CLICK },
        points: { show: !paint && !over, size: 7 },
      },
      hooks: {
        setCursor: [(own) => !over && say(own.cursor.idx)],
        setScale: [onScale],
        drawClear: [(own) => band && drawBand(own, band)],
        draw: [(own) => paint?.(own)],
      },
      scales: { x: { time: false, range: xRange }, y: { range: options.range ?? yRange } },
      axes: [
        {
          ...looks, side: over ? 0 : 2, size: 24, space: 56, label: options.label, labelSize: 16, labelGap: -2,
          values: axis === "step" ? options.names ?? stepMarks : marksOf(axisSeconds),
          incrs: axis === "step" ? ROUND_STEPS : ROUND_SECONDS,
        },
        over ? { ...looks, size: () => room("left"), values: [] } : {
          ...looks, values: marksOf(isTime ? axisSeconds : axisNumber), size: axisWidth, space: 32,
          ...(isTime ? { incrs: ROUND_SECONDS } : {}),
        },
      ],
      series: [{}, ...lines.map((_, index) => ({
        stroke: () => palette[LINES[index][0]], dash: LINES[index][1], width: 1.75, spanGaps: true,
        show: !paint && !over, points: { show: xs.length < 3 },
      }))],
    }, [xs, ...lines], holder);
  }

  const isWhole = () => plot.scales.x.max - plot.scales.x.min >= domain()[1] - domain()[0] - 1e-9;

  function onScale(own, key) {
    if (key !== "x" || !plot) return;
    reset.hidden = isWhole();
    options.zoomed?.(own.scales.x.min, own.scales.x.max);
  }

  // Half a step more at both ends where columns are drawn around their steps.
  function domain() {
    const spare = paint ? 0.5 : 0;
    return xs.length ? [xs[0] - spare, xs.at(-1) + spare] : [0, 1];
  }

  function xRange(own, least, most) {
    if (least === xs[0] && most === xs.at(-1)) [least, most] = domain();
    const half = Math.max(most - least, (domain()[1] - domain()[0]) / DEEPEST || 1) / 2;
    return [(least + most) / 2 - half, (least + most) / 2 + half];
  }

  function yRange(own, least, most) {
    if ((least ?? null) === null) return [0, 1];
    const [low, high] = band ?? [null, null];
    const bottom = low !== null && low < least && least - low < most - least ? low : least;
    const top = high !== null && high > most && high - most < 2 * (most - least) ? high : most;
    const spare = (top - bottom) * 0.08 || Math.abs(top) * 0.1 || 1;
    return [least >= 0 && bottom - spare < 0 ? 0 : bottom - spare, top + spare];
  }

  function zoom(factor) {
    const [least, most] = domain();
    const { min, max } = plot.scales.x;
    const centre = at >= 0 ? xs[at] : (min + max) / 2;
    const half = factor ? Math.max(over ? 0 : 0.5, ((max - min) * factor) / 2) : most - least;
    const span = { min: Math.max(least, centre - half), max: Math.min(most, centre + half) };
    for (const each of uPlot.sync(axis).plots) each.setScale("x", span);
  }

  function move(to) {
    const index = Math.min(xs.length - 1, Math.max(0, to));
    const { min, max } = plot.scales.x;
    if (xs[index] < min || xs[index] > max) {
      plot.setScale("x", { min: xs[index] - (max - min) / 2, max: xs[index] + (max - min) / 2 });
    }
    plot.setCursor({ left: plot.valToPos(xs[index], "x"), top: 10 }, true, true);
    say(index);
  }

  holder.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !plot) return;
    const last = xs.length - 1;
    const page = Math.max(1, Math.round(xs.length / 10));
    const from = at < 0 ? last : at;
    const moves = over ? {} : {
      ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: last, PageUp: from - page, PageDown: from + page,
      ...options.keys?.(from),
    };
    const zooms = { "+": 0.5, "=": 0.5, "-": 2, 0: 0 };
    if (moves[event.key] !== undefined) move(moves[event.key]);
    else if (zooms[event.key] !== undefined) zoom(zooms[event.key]);
    else if (!over && options.click && (event.key === "Enter" || event.key === " ")) options.click(from);
    else return;
    event.preventDefault();
  });
  let pressed = 0;
  holder.addEventListener("mousedown", (event) => (pressed = event.clientX));
  holder.addEventListener("click", (event) =>
    Math.abs(event.clientX - pressed) < CLICK && (over || at >= 0) && options.click?.(at, event.target));
  for (const kind of ["mousedown", "mousemove", "mouseleave", "dblclick"]) {
    over?.addEventListener(kind, (event) => plot?.over.dispatchEvent(new MouseEvent(kind, event)));
  }

  new ResizeObserver(draw).observe(holder);

  return {
    element,
    tell,
    destroy: () => plot?.destroy(),
    update(places, values) {
      const isSame = values.length === lines.length;
      [xs, lines] = [places, values];
      if (plot && isSame) {
        const wasWhole = reset.hidden;
        const { min, max } = plot.scales.x;
        plot.setData([xs, ...lines], false);
        const [least, most] = domain();
        plot.setScale("x", wasWhole ? { min: least, max: most } : { min, max });
      } else {
        plot?.destroy();
        plot = null;
        draw();
      }
      if (over) tell(options.rest);
      else if (at < 0 || at >= xs.length) say(null);
    },
  };
}

function drawBand(plot, [low, high]) {
  const { left, top, width, height } = plot.bbox;
  const upper = Math.max(top, high === null ? top : plot.valToPos(high, "y", true));
  const lower = Math.min(top + height, low === null ? top + height : plot.valToPos(low, "y", true));
  plot.ctx.save();
  plot.ctx.globalAlpha = 0.1;
  plot.ctx.fillStyle = palette.green;
  plot.ctx.fillRect(left, upper, width, Math.max(0, lower - upper));
  plot.ctx.restore();
}

// A small line without axes, as an image with a text; that of a time begins at 0. The style sheet gives it its size.
const FEWEST_POINTS = 3;
export function spark(values, text, { band = null, isTime = false } = {}) {
  const known = values.flatMap((value, index) => (value === null ? [] : [[index, -value]]));
  if (known.length < FEWEST_POINTS) return make("span", { class: "spark" });
  const heights = known.map(([, y]) => y);
  const [top, bottom] = [Math.min(...heights), isTime ? 0 : Math.max(...heights)];
  const [width, height] = [values.length - 1, bottom - top || 1];
  const box = { viewBox: `0 ${top} ${width} ${height}`, preserveAspectRatio: "none" };
  const svg = shape("svg", { ...box, class: "spark", role: "img", "aria-label": text });
  if (band?.some((end) => end !== null)) {
    const within = (end, other) => Math.max(top, Math.min(bottom, end === null ? other : -end));
    const [upper, lower] = [within(band[1], top), within(band[0], bottom)];
    svg.append(shape("rect", { class: "spark-band", x: 0, width, y: upper, height: lower - upper }));
  }
  svg.append(shape("polyline", { points: known.join(" ") }), shape("path", { d: `M${known.at(-1)}h0` }));
  return svg;
}
