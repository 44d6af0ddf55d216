// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The data of the page and how its values are written. Names are numbers in the data: name() gives the text.

const run = JSON.parse(document.getElementById("data").textContent);
const table = run.steps;
const total = table.number.length;
const name = (number) => run.names[number];

// A duration that is short and easy to compare; the same format as in the report.
function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0.0009995) return value === 0 ? "0 s" : `${Math.round(value * 1e6)} µs`;
  if (value < 0.9995) return `${(value * 1000).toPrecision(value < 0.00995 ? 2 : 3).replace(/\.0+$/, "")} ms`;
  if (value < 60) return `${value.toFixed(2)} s`;
  const rounded = Math.round(value);
  const [hours, minutes, rest] = [Math.floor(rounded / 3600), Math.floor(rounded / 60) % 60, rounded % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours} h ${two(minutes)} m` : `${minutes} m ${two(rest)} s`;
}

// For axes: all labels of one axis in one unit.
function axisSeconds(step) {
  if (step >= 3600) return (value) => `${+(value / 3600).toFixed(1)} h`;
  if (step >= 120) return (value) => `${+(value / 60).toFixed(1)} m`;
  if (step >= 0.1) return (value) => `${+value.toFixed(1)} s`;
  if (step >= 1e-4) return (value) => `${+(value * 1e3).toFixed(1)} ms`;
  return (value) => `${+(value * 1e6).toFixed(1)} µs`;
}

// Halves are rounded to even, as in the report.
const percent = (share) => {
  const nearest = Math.round(share * 100);
  const shown = nearest - share * 100 === 0.5 && nearest % 2 ? nearest - 1 : nearest;
  return share > 0 && share < 0.005 ? "< 1 %" : `${shown} %`;
};

function count(value) {
  return value === null || value === undefined ? "" : value.toLocaleString("en-US");
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(3);
  return String(+value.toPrecision(5));
}

// A number with its noun in singular or plural: counted(1, "GPU") is "1 GPU".
const counted = (value, noun, plural = `${noun}s`) => `${count(value)} ${value === 1 ? noun : plural}`;

// What computes: GPUs, or ranks on CPUs in a run without GPUs.
const DEVICE = run.gpu ? "GPU" : "device";
const DEVICE_TIME = run.gpu ? "GPU time" : "device time (CPU)";

// Device time of a token, as in verl-otel explain.
function price(deviceSeconds, tokens) {
  const each = deviceSeconds / tokens;
  const figure = (value) => (value >= 100 ? count(Math.round(value)) : String(+value.toPrecision(3)));
  return each < 1 ? `${figure(each * 1000)} ${DEVICE} ms a token` : `${figure(each)} ${DEVICE} s a token`;
}

const micros = (value) => value / 1e6;
const clock = (millis) =>
  new Date(millis)
    .toISOString()
    .replace("T", " ")
    .replace(/\.\d+Z$/, " UTC");
const stepName = (index) =>
  table.number[index] === null ? `(no number, row ${index + 1})` : String(table.number[index]);
const stepSeconds = (index) => table.seconds[index] / table.unit;
const failed = new Set(table.failed);
const startUp = new Set(table.start_up);
const unexplained = new Set(table.unexplained);

const verdictsOf = new Map();
for (const row of run.verdicts.rows) {
  if (!verdictsOf.has(row[0])) verdictsOf.set(row[0], []);
  verdictsOf.get(row[0]).push(row);
}

// The step that an address names: "#step=417", or "#row=12" where a step has no number of its own.
function stepOf(address) {
  const [, kind, text] = /^#(step|row)=(\d+)$/.exec(address) ?? [];
  if (!kind) return -1;
  const index = kind === "row" ? Number(text) : table.number.indexOf(Number(text));
  return index < total ? index : -1;
}

function addressOf(index) {
  const own = table.number[index];
  return own !== null && table.number.indexOf(own) === index ? `#step=${own}` : `#row=${index}`;
}

// Round steps for an axis from 0 to most, about as many as wanted: 1, 2 or 5 times a power of ten (Heckbert, Graphics Gems, 1990).
function ticks(least, most, wanted) {
  const span = most - least || 1;
  const raw = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
  const positions = [];
  for (let index = Math.ceil(least / step - 1e-9); index * step <= most + step * 1e-9; index += 1) positions.push(index * step);
  return { step, at: positions };
}
