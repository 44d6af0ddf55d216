// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Colours and patterns. The hues are Okabe and Ito's (https://jfly.uni-koeln.de/color/), darker on white so that each stands out by
// 3:1; page.css holds them. No information is conveyed by colour alone: kinds of one hue differ in pattern, and every part has a text.
// KINDS and CAUSES, the looks of kinds of work and of causes of GPU time, stand before this script: assembly.py makes them.

const PHASES = {
  gen: ["green", "solid"],
  update_actor: ["blue", "solid"],
  old_log_prob: ["sky", "solid"],
  ref: ["purple", "solid"],
  reward: ["orange", "rising"],
  values: ["sky", "rising"],
  update_critic: ["blue", "rising"],
  adv: ["yellow", "dots"],
  update_weights: ["vermillion", "rising"],
  save_checkpoint: ["purple", "rising"],
  testing: ["purple", "dots"],
  submit: ["grey", "rising"],
  "no phase": ["grey", "solid"],
  other: ["grey", "dots"],
};

// Other phases take the remaining styles in the order of their occurrence.
const SPARE = [
  ["orange", "solid"],
  ["vermillion", "solid"],
  ["yellow", "solid"],
  ["sky", "dots"],
  ["green", "rising"],
  ["orange", "dots"],
  ["blue", "dots"],
  ["vermillion", "dots"],
  ["green", "dots"],
  ["yellow", "rising"],
  ["sky", "level"],
  ["purple", "cross"],
];
const given = new Map();

const look = {
  kind: (key) => KINDS[key] ?? KINDS.unknown,
  cause: (key) => CAUSES[key] ?? CAUSES.unknown,
  phase(key) {
    if (Object.hasOwn(PHASES, key)) return [...PHASES[key], key];
    if (!given.has(key)) given.set(key, SPARE[given.size % SPARE.length]);
    return [...given.get(key), key];
  },
};

// The colours of the style sheet; read again when the scheme changes.
let palette = {};
let tiles = new Map();
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["blue", "sky", "green", "yellow", "orange", "vermillion", "purple", "grey"];
  palette = Object.fromEntries(
    [...names, "ink", "soft", "line", "paper", "mark"].map((variable) => [
      variable,
      style.getPropertyValue(`--${variable}`).trim(),
    ]),
  );
  tiles = new Map();
}

// Returns the fill of an area: the hue, with lines or dots in the background colour.
function fill(context, [hue, pattern]) {
  const ratio = window.devicePixelRatio || 1;
  const key = `${hue} ${pattern} ${ratio}`;
  if (!tiles.has(key)) tiles.set(key, pattern === "solid" ? palette[hue] : tile(hue, pattern, ratio));
  const cached = tiles.get(key);
  if (typeof cached === "string") return cached;
  const canvasPattern = context.createPattern(cached, "repeat");
  canvasPattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return canvasPattern;
}

function tile(hue, pattern, ratio) {
  const size = 6;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.round(size * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(canvas.width / size, canvas.height / size);
  pen.fillStyle = palette[hue];
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = pen.fillStyle = palette.paper;
  pen.lineWidth = 1.2;
  pen.beginPath();
  const slant = (from, to) =>
    [-size, 0, size].forEach((by) => {
      pen.moveTo(by, from);
      pen.lineTo(by + size, to);
    });
  if (pattern === "rising" || pattern === "cross") slant(size, 0);
  if (pattern === "cross") slant(0, size);
  if (pattern === "level") {
    pen.moveTo(0, size / 2);
    pen.lineTo(size, size / 2);
  }
  pen.stroke();
  if (pattern === "dots") {
    pen.beginPath();
    pen.arc(size / 2, size / 2, 1.2, 0, 7);
    pen.fill();
  }
  return canvas;
}
