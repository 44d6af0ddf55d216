// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The data of the page. Names are numbers in the data: name() gives the text.

const run = JSON.parse(document.getElementById("data").textContent);
const table = run.steps;
const total = table.number.length;
const name = (number) => run.names[number];

// What computes: GPUs, or ranks on CPUs in a run without GPUs.
const DEVICE = run.gpu ? "GPU" : "device";
const DEVICE_TIME = run.gpu ? "GPU time" : "device time (CPU)";

// Device time of a token, as in verl-otel explain.
function price(deviceSeconds, tokens) {
  const each = deviceSeconds / tokens;
  const figure = (value) => (value >= 100 ? count(Math.round(value)) : String(+value.toPrecision(3)));
  return each < 1 ? `${figure(each * 1000)} ${DEVICE} ms a token` : `${figure(each)} ${DEVICE} s a token`;
}

const stepName = (index) =>
  table.number[index] === null ? `(no number, row ${index + 1})` : String(table.number[index]);
const stepSeconds = (index) => table.seconds[index] / table.unit;
// How the steps ended that did not come to their end: FAILED or INTERRUPTED, by index.
const failed = new Map(table.failed);
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
