// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// How values are written: durations, counts, numbers, times; and the ticks of an axis.

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

const micros = (value) => value / 1e6;
const clock = (millis) =>
  new Date(millis)
    .toISOString()
    .replace("T", " ")
    .replace(/\.\d+Z$/, " UTC");

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
