// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Charts whose data is replaced while they are shown: lines on one or two axes, and stacked columns.

const LINE_STYLES = [["blue", []], ["vermillion", [6, 3]], ["green", [2, 3]], ["purple", [8, 2, 2, 2]]];
const finiteOf = (values) => values.filter((value) => value !== null && Number.isFinite(value));

// Lines over a common axis. update(lines): [{title, x, y, right: on the second axis}].
function lineView(label, { height = 170, unit = "step" } = {}) {
  let lines = [];
  let xs = [];
  const scales = [null, null];
  const valueAt = (line, x) => line.y[line.x.indexOf(x)] ?? null;
  const words = (index) =>
    `${unit} ${number(xs[index])}: ${lines.map((line) => `${lines.length > 1 ? `${line.title} ` : ""}${number(valueAt(line, xs[index]))}`).join(", ")}`;
  const box = (state) => ({ left: 54, right: state.width - (scales[1] ? 54 : 8), top: 8, bottom: state.height - 20 });
  const xOf = (state, x) => {
    const { left, right } = box(state);
    const [first, last] = [xs[0], xs[xs.length - 1]];
    return last > first ? left + ((x - first) / (last - first)) * (right - left) : (left + right) / 2;
  };
  const view = chart({
    label,
    height: () => height,
    count: () => xs.length,
    text: words,
    hint: "← → along the line.",
    hit(x, y, state) {
      let best = xs.length ? 0 : -1;
      for (let index = 1; index < xs.length; index += 1)
        if (Math.abs(xOf(state, xs[index]) - x) < Math.abs(xOf(state, xs[best]) - x)) best = index;
      return best;
    },
    draw(pen, state) {
      if (!xs.length) return;
      const { left, right, top, bottom } = box(state);
      drawAxis(pen, [xs[0], Math.max(xs[xs.length - 1], xs[0] + 1)], left, right, top, bottom, () => number);
      scales.forEach((scale, side) => scale && drawScale(pen, scale, side, box(state)));
      lines.forEach((line, place) => drawOne(pen, state, line, LINE_STYLES[place % LINE_STYLES.length]));
      const shown = state.hover >= 0 ? state.hover : state.at;
      if (shown < 0) return;
      pen.setLineDash([]);
      pen.fillStyle = palette.ink;
      pen.fillRect(Math.round(xOf(state, xs[shown])), top, 1, bottom - top);
    },
  });

  function drawScale(pen, [least, most], side, { left, right, top, bottom }) {
    for (const value of ticks(least, most, 3).at) {
      const y = bottom - ((value - least) / (most - least)) * (bottom - top);
      const text = number(value);
      pen.fillStyle = palette.line;
      if (!side) pen.fillRect(left, Math.round(y), right - left, 1);
      pen.fillStyle = palette.soft;
      pen.fillText(text, side ? right + 5 : left - 5 - pen.measureText(text).width, y + 4);
    }
  }

  function drawOne(pen, state, line, [hue, dash]) {
    const { top, bottom } = box(state);
    const [least, most] = scales[line.right ? 1 : 0];
    pen.strokeStyle = pen.fillStyle = palette[hue];
    pen.lineWidth = 1.6;
    pen.setLineDash(dash);
    pen.beginPath();
    let down = false;
    line.x.forEach((x, index) => {
      const value = line.y[index];
      if (value === null) {
        down = false;
        return;
      }
      const [px, py] = [xOf(state, x), bottom - ((value - least) / (most - least)) * (bottom - top)];
      if (down) pen.lineTo(px, py);
      else pen.moveTo(px, py);
      if (line.x.length < 3) pen.fillRect(px - 2, py - 2, 4, 4);
      down = true;
    });
    pen.stroke();
    pen.setLineDash([]);
  }

  const key = make("ul", { class: "legend" });
  function update(next) {
    lines = next.filter((line) => line.x.length);
    xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    [false, true].forEach((right, side) => {
      const values = finiteOf(lines.filter((line) => Boolean(line.right) === right).flatMap((line) => line.y));
      if (!values.length) {
        scales[side] = lines.some((line) => Boolean(line.right) === right) ? [0, 1] : null;
        return;
      }
      const [least, most] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
      const spare = (most - least) * 0.06 || Math.abs(most) * 0.1 || 1;
      scales[side] = [least - spare, most + spare];
    });
    key.replaceChildren(
      ...lines.map((line, place) => {
        const mark = make("span", { class: `line line-${LINE_STYLES[place % 4][0]}`, "aria-hidden": "true" }, "━ ");
        return make("li", {}, mark, bdi(line.title), line.right ? " (right)" : "");
      }),
    );
    view.tell();
    view.redraw();
  }
  return { element: make("figure", { class: "scalar" }, make("figcaption", {}, bdi(label)), view.element, key), update };
}

// Stacked columns; of more rows than fit, neighbours are shown by their mean. update(names, rows): {keys: [values]}.
function stackView(label, styleOf, { height = 200 } = {}) {
  let names = [];
  let keys = [];
  let columns = {};
  let size = 1;
  const heightOf = (index) => keys.reduce((sum, key) => sum + mean(columns[key], index), 0);
  const mean = (values, index) => {
    const part = values.slice(index * size, (index + 1) * size);
    return part.reduce((sum, value) => sum + value, 0) / Math.max(1, part.length);
  };
  const many = () => Math.ceil(names.length / size);
  const words = (index) => {
    const last = Math.min(names.length, (index + 1) * size) - 1;
    const which = last > index * size ? `steps ${names[index * size]} to ${names[last]}, mean` : `step ${names[last]}`;
    const parts = keys.map((key) => [key, mean(columns[key], index)]).filter(([, value]) => value > 0);
    parts.sort((a, b) => b[1] - a[1]);
    return `${which}: ${seconds(heightOf(index))}: ${parts.slice(0, 6).map(([key, value]) => `${styleOf(key)[2] ?? key} ${seconds(value)}`).join(", ")}`;
  };
  const view = chart({
    label,
    height: () => height,
    count: many,
    text: words,
    hint: "← → between steps.",
    hit: (x, y, state) => Math.max(-1, Math.min(many() - 1, Math.floor(((x - 54) / (state.width - 62)) * many()))),
    draw(pen, state) {
      if (!names.length) return;
      const [left, right, top, bottom] = [54, state.width - 8, 8, state.height - 20];
      const wide = (right - left) / many();
      const tall = Array.from({ length: many() }, (_, index) => heightOf(index));
      const usual = [...tall].sort((a, b) => a - b)[Math.floor(tall.length * 0.98)] || 1;
      const most = Math.min(Math.max(...tall), usual * 1.5) * 1.05 || 1;
      const marks = ticks(0, most, 4);
      const text = axisSeconds(marks.step);
      for (const value of marks.at) {
        const y = bottom - (value / most) * (bottom - top);
        pen.fillStyle = palette.line;
        pen.fillRect(left, Math.round(y), right - left, 1);
        pen.fillStyle = palette.soft;
        pen.fillText(text(value), left - 5 - pen.measureText(text(value)).width, y + 4);
      }
      for (let index = 0; index < many(); index += 1) {
        let base = bottom;
        for (const key of keys) {
          const part = (mean(columns[key], index) / most) * (bottom - top);
          pen.fillStyle = fill(pen, styleOf(key));
          pen.fillRect(left + index * wide, Math.max(top, base - part), Math.max(1, wide - (wide > 4 ? 1 : 0)), Math.min(part, base - top));
          base = Math.max(top, base - part);
        }
      }
      pen.fillStyle = palette.soft;
      pen.fillText(String(names[0]), left, bottom + 15);
      const last = String(names[names.length - 1]);
      if (names.length > 1) pen.fillText(last, right - pen.measureText(last).width, bottom + 15);
      const shown = state.hover >= 0 ? state.hover : state.at;
      if (shown >= 0) {
        pen.strokeStyle = palette.ink;
        pen.strokeRect(left + shown * wide, top, Math.max(1, wide), bottom - top);
      }
    },
  });
  const key = make("div");
  let drawnKeys = "";
  return {
    element: make("div", {}, view.element, key),
    update(nextNames, nextColumns) {
      names = nextNames;
      columns = nextColumns;
      keys = Object.keys(columns);
      size = Math.max(1, Math.ceil(names.length / 400));
      if (keys.join() !== drawnKeys) {
        drawnKeys = keys.join();
        key.replaceChildren(legend(keys.map((each) => [styleOf(each), styleOf(each)[2] ?? each])));
      }
      view.tell();
      view.redraw();
    },
  };
}
