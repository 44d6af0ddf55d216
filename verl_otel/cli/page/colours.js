// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Colours. semconv/kinds.py says which hue and pattern a thing has, app.css how a hue looks: each stands out from the
// paper by 3:1, and every eye tells it from the others. A hue means one thing on all pages: green generation, blue
// training, sky log-probabilities, orange reward, vermillion tools and what blocks, purple weights and validation,
// yellow the code of trajectories and advantages, grey waiting. Nothing is conveyed by colour alone.

import { make } from "./dom.js";
import { looks } from "./source.js";

// Other phases take these in the order of their occurrence.
const SPARE = [
  ["orange", "dots"], ["yellow", "rising"], ["purple", "cross"], ["green", "cross"], ["sky", "cross"],
  ["vermillion", "level"],
];
const given = new Map();

export const look = {
  kind: (key) => (Object.hasOwn(looks.kinds, key) ? looks.kinds[key] : looks.kinds.unknown),
  cause(key) {
    if (Object.hasOwn(looks.causes, key)) return looks.causes[key];
    return key === "other" ? ["grey", "dots", "other"] : looks.causes.unknown;
  },
  phase(key) {
    if (Object.hasOwn(looks.phases, key)) return [...looks.phases[key], key];
    if (!given.has(key)) given.set(key, SPARE[given.size % SPARE.length]);
    return [...given.get(key), key];
  },
};

// Lines of scalars have no hue of a phase: they differ by their dashes too.
export const LINES = [[], [6, 3], [2, 3], [8, 2, 2, 2], [4, 4], [1, 2], [10, 3], [3, 6]].map((dash, place) =>
  [place % 2 ? "ink" : "accent", dash]);

// How a line looks, beside its name.
export function lineMark(place) {
  const [hue, [dash]] = LINES[place];
  const kind = !dash ? "solid" : dash < 3 ? "dotted" : "dashed";
  const style = { color: `var(--${hue})`, "border-block-start-style": kind };
  return make("i", { class: "line-mark", "aria-hidden": "true", style });
}

// The colours of the style sheet; read again when the scheme changes.
export const palette = {};
export function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = [
    "blue", "sky", "green", "yellow", "orange", "vermillion", "purple", "grey", "ink", "soft", "line", "paper",
    "sunken", "finding", "bad", "accent",
  ];
  for (const name of names) palette[name] = style.getPropertyValue(`--${name}`).trim();
  tiles.clear();
}

const tiles = new Map();
// The fill of an area on a canvas: the hue, with lines or dots in the background colour.
export function fill(pen, [hue, pattern]) {
  if (pattern === "solid") return palette[hue];
  const key = `${hue} ${pattern}`;
  if (!tiles.has(key)) tiles.set(key, makeTile(hue, pattern));
  return pen.createPattern(tiles.get(key), "repeat");
}

function makeTile(hue, pattern) {
  const size = Math.round(6 * (window.devicePixelRatio || 1));
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const pen = canvas.getContext("2d");
  pen.fillStyle = palette[hue];
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = pen.fillStyle = palette.paper;
  pen.lineWidth = size / 5;
  pen.beginPath();
  if (pattern === "dots") pen.arc(size / 2, size / 2, size / 5, 0, 7);
  else if (pattern === "level") pen.rect(0, size / 2, size, size / 6);
  for (const by of [-size, 0, size]) {
    if (pattern === "rising" || pattern === "cross") [pen.moveTo(by, size), pen.lineTo(by + size, 0)];
    if (pattern === "cross") [pen.moveTo(by, 0), pen.lineTo(by + size, size)];
  }
  if (pattern === "dots" || pattern === "level") pen.fill();
  else pen.stroke();
  return canvas;
}
