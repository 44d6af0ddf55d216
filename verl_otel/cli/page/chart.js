// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// A canvas that can be used with keys, pointer and screen reader. It is a slider over its positions (WAI-ARIA Authoring Practices,
// "Slider"): one tab stop, arrows move, the value is announced as text. The same text is shown below it.

// options: label; height() in px; count(); text(position) -> words; draw(pen, state); hit(x, y, state) -> position or -1;
// choose(position); optional: enter(position); vertical(position, up) -> position; keys {key: position -> position};
// domain() -> [least, most], where(position) -> a place in it, narrowest: for zooming.
function chart(options) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const plot = make(
    "div",
    { class: "plot", tabIndex: 0, role: "slider", "aria-label": options.label, "aria-valuemin": 0 },
    canvas,
  );
  const readout = make("p", { class: "readout", "aria-hidden": "true" });
  const state = {
    at: options.at ?? -1,
    hover: -1,
    view: options.domain ? [...options.domain()] : null,
    width: 0,
    height: 0,
    drag: null,
  };
  const tools = options.domain
    ? make(
        "div",
        { class: "tools" },
        button("+", () => zoom(0.5), { "aria-label": `Zoom in: ${options.label}` }),
        button("−", () => zoom(2), { "aria-label": `Zoom out: ${options.label}` }),
        button("All", () => zoom(Infinity), { "aria-label": `Show all: ${options.label}` }),
      )
    : null;
  const element = make("div", { class: "chart" }, tools, plot, readout);
  let asked = 0;

  function draw() {
    asked = 0;
    const ratio = window.devicePixelRatio || 1;
    state.width = plot.clientWidth;
    if (!state.width) return;
    state.height = options.height(state.width);
    canvas.style.height = `${state.height}px`;
    canvas.width = Math.round(state.width * ratio);
    canvas.height = Math.round(state.height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    options.draw(pen, state);
    if (state.drag && Math.abs(state.drag[1] - state.drag[0]) > 6) {
      pen.strokeStyle = palette.ink;
      pen.strokeRect(Math.min(...state.drag), 0.5, Math.abs(state.drag[1] - state.drag[0]), state.height - 1);
    }
  }
  const redraw = () => {
    asked ||= requestAnimationFrame(draw);
  };

  function tell() {
    const shown = state.hover >= 0 ? state.hover : state.at;
    readout.textContent = shown >= 0 && shown < options.count() ? options.text(shown) : (options.hint ?? "");
    plot.setAttribute("aria-valuemax", Math.max(0, options.count() - 1));
    plot.setAttribute("aria-valuenow", Math.max(0, state.at));
    plot.setAttribute("aria-valuetext", state.at >= 0 ? options.text(state.at) : "nothing chosen");
  }

  function move(to, quiet = false) {
    if (!options.count()) return;
    state.at = Math.min(options.count() - 1, Math.max(0, to));
    state.hover = -1;
    if (state.view) follow();
    tell();
    redraw();
    if (!quiet) options.choose?.(state.at);
  }

  // Keep the chosen position in view.
  function follow() {
    const [least, most] = state.view;
    const place = options.where(state.at);
    if (place >= least && place <= most) return;
    const half = (most - least) / 2;
    look_at(place - half, place + half);
  }

  function look_at(from, to) {
    const [least, most] = options.domain();
    const span = Math.min(most - least, Math.max(options.narrowest ?? (most - least) / 5000, to - from));
    const begin = Math.min(most - span, Math.max(least, (from + to) / 2 - span / 2));
    state.view = [begin, begin + span];
    options.zoomed?.(state);
    tell();
    redraw();
  }

  function zoom(factor) {
    const [from, to] = state.view;
    const [least, most] = options.domain();
    if (factor === Infinity) {
      look_at(least, most);
      return;
    }
    const place = state.at >= 0 ? options.where(state.at) : (from + to) / 2;
    const centre = place >= from && place <= to ? place : (from + to) / 2;
    const half = ((to - from) * factor) / 2;
    look_at(centre - half, centre + half);
  }

  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !options.count()) return;
    const page = Math.max(1, Math.round(options.count() / 10));
    const at = Math.max(0, state.at);
    const moves = {
      ArrowRight: state.at + 1,
      ArrowLeft: state.at - 1,
      Home: 0,
      End: options.count() - 1,
      PageUp: at - page,
      PageDown: at + page,
      ArrowUp: options.vertical?.(at, true),
      ArrowDown: options.vertical?.(at, false),
      ...options.keys?.(event.key, at),
    };
    if (moves[event.key] !== undefined) move(moves[event.key]);
    else if (state.view && (event.key === "+" || event.key === "=")) zoom(0.5);
    else if (state.view && event.key === "-") zoom(2);
    else if (state.view && event.key === "0") zoom(Infinity);
    else if (options.enter && (event.key === "Enter" || event.key === " ")) options.enter(at);
    else return;
    event.preventDefault();
  });

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  plot.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && state.view && event.pointerType === "mouse") {
      state.drag = [place(event)[0], place(event)[0]];
      plot.setPointerCapture(event.pointerId);
    }
  });
  plot.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (state.drag) state.drag[1] = x;
    const before = state.hover;
    state.hover = options.hit(x, y, state);
    if (before !== state.hover || state.drag) {
      tell();
      redraw();
    }
  });
  plot.addEventListener("pointerleave", () => {
    state.hover = -1;
    tell();
    redraw();
  });
  plot.addEventListener("pointercancel", () => {
    state.drag = null;
    redraw();
  });
  plot.addEventListener("pointerup", (event) => {
    const drag = state.drag;
    state.drag = null;
    if (drag && Math.abs(drag[1] - drag[0]) > 6 && options.across) {
      look_at(...drag.map((x) => options.across(x, state)).sort((a, b) => a - b));
      return;
    }
    const index = options.hit(...place(event), state);
    if (index >= 0) {
      move(index);
      if (options.enter && event.detail > 1) options.enter(index);
    }
  });
  plot.addEventListener("focus", () => {
    if (state.at < 0) move(0, true);
  });
  new ResizeObserver(redraw).observe(plot);
  redraws.add(draw, plot);
  tell();
  return { element, plot, state, move, redraw, zoom, look_at, tell };
}

// Shortens a text to a width; the middle is removed, because names differ at their ends.
function fitting(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  const letters = [...text];
  let [least, most] = [0, letters.length];
  const cut = (kept) =>
    `${letters.slice(0, Math.ceil(kept / 2)).join("")}…${letters.slice(letters.length - Math.floor(kept / 2)).join("")}`;
  while (least < most) {
    const middle = (least + most + 1) >> 1;
    if (pen.measureText(cut(middle)).width <= room) least = middle;
    else most = middle - 1;
  }
  return cut(least);
}

// Draws a horizontal axis with its grid lines.
function drawAxis(pen, view, left, right, top, bottom, format) {
  const marks = ticks(view[0], view[1], Math.max(2, (right - left) / 90));
  const words = format(marks.step);
  pen.strokeStyle = palette.line;
  pen.fillStyle = palette.soft;
  pen.lineWidth = 1;
  for (const at of marks.at) {
    const x = Math.round(left + ((at - view[0]) / (view[1] - view[0])) * (right - left)) + 0.5;
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, bottom);
    pen.stroke();
    const text = words(at);
    const wide = pen.measureText(text).width;
    pen.fillText(text, Math.min(right - wide, Math.max(left, x - wide / 2)), bottom + 14);
  }
}
