// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Bars in lanes over one axis: the waterfall of a step, trajectories, the time of GPUs.

// options: label, axis(step) -> value -> text, end, marks: [[place, words]], enter(item)
// lanes: [{label, group, items: [{from, to, style, text, words}]}]. Arrow keys walk through a group's items in their order in
// time, over all its lanes; up and down lead to the lane above and below.
function laneChart(options, lanes) {
  const items = [];
  const groups = [...new Set(lanes.map((lane) => lane.group))];
  for (const group of groups) {
    const groupItems = [];
    lanes.forEach((lane, index) => {
      if (lane.group === group) for (const item of lane.items) groupItems.push(Object.assign(item, { lane: index, group }));
    });
    items.push(...groupItems.sort((a, b) => a.from - b.from));
  }
  items.forEach((item, index) => {
    item.index = index;
  });
  lanes.forEach((lane) => lane.items.sort((a, b) => a.from - b.from));
  const narrow = (width) => width < 620;
  const layout = (width) =>
    narrow(width) ? { left: 0, lane: 36, bar: 17, down: 16 } : { left: 190, lane: 24, bar: 18, down: 3 };
  const top = options.marks?.length ? 18 : 4;
  const end = options.end;

  const across = (x, state) => {
    const { left } = layout(state.width);
    return state.view[0] + ((x - left) / (state.width - left - 2)) * (state.view[1] - state.view[0]);
  };
  const laneAt = (y, state) => Math.floor((y - top) / layout(state.width).lane);

  function nearest(lane, place) {
    let best = -1;
    let least = Infinity;
    for (const item of lane?.items ?? []) {
      const away = place < item.from ? item.from - place : place > item.to ? place - item.to : 0;
      if (away < least || (away === least && away === 0)) [best, least] = [item.index, away];
    }
    return [best, least];
  }

  const view = chart({
    ...options,
    count: () => items.length,
    text: (index) => items[index].words,
    height: (width) => top + lanes.length * layout(width).lane + 22,
    domain: () => [0, end],
    where: (index) => (items[index].from + items[index].to) / 2,
    across,
    hit(x, y, state) {
      const [index, distance] = nearest(lanes[laneAt(y, state)], across(x, state));
      const slack = (4 / state.width) * (state.view[1] - state.view[0]);
      return distance <= slack ? index : -1;
    },
    vertical(index, up) {
      for (let lane = items[index].lane + (up ? -1 : 1); lane >= 0 && lane < lanes.length; lane += up ? -1 : 1) {
        if (lanes[lane].items.length) return nearest(lanes[lane], (items[index].from + items[index].to) / 2)[0];
      }
      return index;
    },
    enter: options.enter && ((index) => options.enter(items[index])),
    draw: (pen, state) =>
      drawLanes(pen, state, { lanes, items, layout: layout(state.width), top, narrow: narrow(state.width), options }),
  });
  return view;
}

function drawLanes(pen, state, { lanes, items, layout, top, narrow, options }) {
  const { left, lane: high, bar, down } = layout;
  const right = state.width - 2;
  const [from, to] = state.view;
  const x = (place) => left + ((place - from) / (to - from)) * (right - left);
  const bottom = top + lanes.length * high;
  drawAxis(pen, state.view, left, right, top, bottom, options.axis);
  drawMarks(pen, options.marks, x, left, right, bottom);
  lanes.forEach((lane, index) => {
    const y = top + index * high;
    pen.save();
    pen.beginPath();
    pen.rect(left, y, right - left, high);
    pen.clip();
    for (const item of lane.items)
      if (item.to >= from && item.from <= to)
        drawBar(pen, item, x, left, y + down + (item.thin ? bar / 4 : 0), item.thin ? bar / 2 : bar);
    pen.restore();
  });
  if (options.connected !== undefined)
    drawPath(
      pen,
      items.filter((item) => item.group === options.connected),
      x,
      left,
      right,
      (lane) => top + lane * high + down + bar / 2,
    );
  lanes.forEach((lane, index) => {
    const text = fitting(pen, lane.label, narrow ? right - 8 : left - 12);
    if (narrow) onPlate(pen, text, 0, top + index * high, 15);
    else {
      pen.fillStyle = palette.ink;
      pen.fillText(text, 2, top + index * high + down + 13);
    }
  });
  for (const [index, width] of [
    [state.hover, 1.5],
    [state.at, 2.5],
  ]) {
    const item = items[index];
    if (!item) continue;
    const [begin, stop] = [Math.max(left, x(item.from)), Math.min(right, x(item.to))];
    if (stop < left || begin > right) continue;
    pen.strokeStyle = palette.ink;
    pen.lineWidth = width;
    pen.strokeRect(begin - 1, top + item.lane * high + down - 1, Math.max(3, stop - begin + 2), bar + 2);
  }
}

function drawBar(pen, item, x, left, y, high) {
  const begin = x(item.from);
  const wide = Math.max(1, x(item.to) - begin);
  pen.fillStyle = fill(pen, item.style);
  pen.fillRect(begin, y, wide > 3 ? wide - 0.7 : wide, high);
  if (item.failed) {
    pen.strokeStyle = palette.ink;
    pen.setLineDash([3, 2]);
    pen.strokeRect(begin + 0.5, y + 0.5, Math.max(1, wide - 1), high - 1);
    pen.setLineDash([]);
  }
  if (!item.text || wide < 24 || high < 12) return;
  const visible = Math.max(begin, left);
  const text = [item.text, item.brief].find(
    (text) => text && pen.measureText(text).width + 14 < begin + wide - visible,
  );
  if (text) onPlate(pen, text, visible + 3, y + 2, high - 4);
}

function drawMarks(pen, marks, x, left, right, bottom) {
  let free = left;
  for (const [place, words, before] of marks ?? []) {
    const at = x(place);
    if (at < left || at > right) continue;
    pen.strokeStyle = palette.ink;
    pen.lineWidth = 1;
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(at, 14);
    pen.lineTo(at, bottom);
    pen.stroke();
    pen.setLineDash([]);
    const wide = pen.measureText(words).width;
    const begin = before ? at - wide - 3 : Math.min(right - wide, at + 3);
    pen.fillStyle = palette.ink;
    if (begin >= free) {
      pen.fillText(words, begin, 11);
      free = begin + wide + 8;
    }
  }
}

// Text on a plate is readable on every pattern and over every line.
function onPlate(pen, text, x, y, high) {
  pen.fillStyle = palette.paper;
  pen.fillRect(x, y, pen.measureText(text).width + 6, high);
  pen.fillStyle = palette.ink;
  pen.fillText(text, x + 3, y + high / 2 + 4);
}

// Where the critical path changes lanes.
function drawPath(pen, path, x, left, right, y) {
  pen.strokeStyle = palette.ink;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let index = 1; index < path.length; index += 1) {
    const at = x(path[index].from);
    if (path[index].lane === path[index - 1].lane || at < left || at > right) continue;
    pen.moveTo(at, y(path[index - 1].lane));
    pen.lineTo(at, y(path[index].lane));
  }
  pen.stroke();
}
