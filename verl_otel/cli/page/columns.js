// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Draws all steps: axis, stacked columns, marks above them, numbers below.

function drawSteps(pen, state, plot, [key, , style], limit) {
  const { left, right, top, bottom, from, to, perColumn, wide } = plot;
  const { keys, columns } = table[key];
  const styles = keys.map(style);
  const sumAt = (index) => heightOf(key, index);
  let most = 0;
  for (let index = from; index < to; index += 1) most = Math.max(most, sumAt(index));
  most = Math.min(most, limit) || 1;
  const y = (value) => bottom - (Math.min(value, most * 1.04) / (most * 1.04)) * (bottom - top);
  const grid = ticks(0, most, 4);
  const words = axisSeconds(grid.step);
  pen.strokeStyle = palette.line;
  for (const value of grid.at) {
    pen.beginPath();
    pen.moveTo(left, Math.round(y(value)) + 0.5);
    pen.lineTo(right, Math.round(y(value)) + 0.5);
    pen.stroke();
    pen.fillStyle = palette.soft;
    const text = words(value);
    pen.fillText(text, left - 6 - pen.measureText(text).width, y(value) + 4);
  }
  for (let begin = from; begin < to; begin += perColumn) {
    const stop = Math.min(to, begin + perColumn);
    const x = left + ((begin - from) / perColumn) * wide;
    drawColumn(pen, { x, wide, begin, stop, columns, styles, y, sumAt, top });
  }
  drawBreaks(pen, plot, sumAt, limit, y);
  drawStepNumbers(pen, plot);
  drawChosen(pen, state, plot);
}

// The width of a column and where it begins.
function barOf(x, wide, steps) {
  const bar = steps > 1 ? wide : Math.min(64, Math.max(1, wide > 4 ? wide - 1.5 : wide - 0.5));
  return [x + (wide - bar) / 2, bar];
}

// A gap across each column that is higher than the axis, and its true value where there is room.
function drawBreaks(pen, { left, right, from, to, perColumn, wide }, sumAt, limit, y) {
  let free = left;
  for (let begin = from; begin < to; begin += perColumn) {
    const stop = Math.min(to, begin + perColumn);
    const most = Math.max(...Array.from({ length: stop - begin }, (_, index) => sumAt(begin + index)));
    if (most <= limit) continue;
    const [at, bar] = barOf(left + ((begin - from) / perColumn) * wide, wide, stop - begin);
    const [height, slope] = [y(limit) + 20, Math.min(4, bar / 3)];
    pen.strokeStyle = palette.paper;
    pen.lineWidth = 3;
    pen.beginPath();
    pen.moveTo(at - 1, height + slope);
    pen.lineTo(at + bar + 1, height - slope);
    pen.stroke();
    const text = seconds(most);
    const measured = pen.measureText(text).width;
    const x = Math.min(right - measured - 6, Math.max(left + 2, at + bar / 2 - measured / 2));
    if (x < free) continue;
    pen.fillStyle = palette.paper;
    pen.fillRect(x - 3, y(limit) - 1, measured + 6, 15);
    pen.fillStyle = palette.ink;
    pen.fillText(text, x, y(limit) + 11);
    free = x + measured + 8;
  }
}

function drawColumn(pen, { x, wide, begin, stop, columns, styles, y, sumAt, top }) {
  const [at, bar] = barOf(x, wide, stop - begin);
  let sum = 0;
  columns.forEach((column, place) => {
    let value = 0;
    for (let index = begin; index < stop; index += 1) value += column[index];
    value /= (stop - begin) * table.unit;
    if (value <= 0) return;
    pen.fillStyle = bar < 9 && styles[place][1] !== "solid" ? palette[styles[place][0]] : fill(pen, styles[place]);
    pen.fillRect(at, y(sum + value), bar, y(sum) - y(sum + value));
    sum += value;
  });
  const middle = x + wide / 2;
  const all = Array.from({ length: stop - begin }, (_, index) => sumAt(begin + index)).sort((a, b) => a - b);
  pen.fillStyle = palette.ink;
  if (all.length > 1) {
    const [least, median, most] = [all[0], all[all.length >> 1], all[all.length - 1]];
    pen.fillRect(middle - 1.5, y(median) - 0.75, 3, 1.5);
    pen.fillRect(middle - 1, y(most) - 1, 2, 2);
    pen.globalAlpha = 0.45;
    pen.fillRect(middle - 0.5, y(most), 1, Math.max(1, y(least) - y(most)));
    pen.globalAlpha = 1;
  }
  const marks = [];
  for (let index = begin; index < stop; index += 1)
    marks.push(
      failed.has(index) ? 2 : eventSteps.has(index) ? 1.5 : verdictsOf.has(index) ? 1 : unexplained.has(index) ? 0.5 : 0,
    );
  const worst = Math.max(...marks);
  if (!worst) return;
  const sign = { 2: "✕", 1.5: "◆", 1: "▼", 0.5: "▽" }[worst];
  if (wide >= 7 || worst > 1) {
    pen.fillStyle = palette.mark;
    pen.fillText(sign, middle - pen.measureText(sign).width / 2, top - 7);
  } else {
    pen.fillStyle = palette.mark;
    pen.fillRect(middle - 1, top - 14, 2, 7);
  }
}

function drawStepNumbers(pen, { left, right, bottom, from, to, perColumn, wide }) {
  pen.fillStyle = palette.soft;
  const every = Math.max(1, ticks(from, to, Math.max(2, (right - left) / 70)).step);
  let free = left;
  for (let index = from; index < to; index += 1) {
    const own = table.number[index] ?? index;
    if (own % every) continue;
    const text = String(table.number[index] ?? "?");
    const measured = pen.measureText(text).width;
    const x = left + ((index - from + 0.5) / perColumn) * wide - measured / 2;
    if (x < free || x + measured > right) continue;
    pen.fillText(text, x, bottom + 15);
    free = x + measured + 12;
  }
}

function drawChosen(pen, state, { left, right, top, bottom, from, perColumn, wide }) {
  for (const [index, width] of [
    [state.hover, 1],
    [state.at, 2.5],
  ]) {
    if (index < 0) continue;
    const x = left + Math.floor((index - from) / perColumn) * wide;
    if (x < left - 1 || x > right) continue;
    pen.strokeStyle = palette.ink;
    pen.lineWidth = width;
    pen.strokeRect(x, top - 1, Math.max(4, wide), bottom - top + 2);
  }
}
