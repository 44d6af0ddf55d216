// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Creates elements and legends. Text always becomes a text node: names from a run are never parsed as markup.

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class" || key.startsWith("aria-") || key === "role" || key === "scope" || key === "for")
      element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const byId = (id) => document.getElementById(id);
let ids = 0;
const freshId = (stem) => `${stem}-${(ids += 1)}`;
const bdi = (text) => make("bdi", {}, text);

// Announced by screen readers; not visible.
function announce(text) {
  byId("announcement").textContent = text;
}

function button(text, act, properties = {}) {
  return make("button", { type: "button", onclick: act, ...properties }, text);
}

// A list of facts by name; unknown ones are left out.
function factList(facts) {
  const filled = facts.filter(([, text]) => text);
  return make(
    "dl",
    { class: "facts" },
    ...filled.flatMap(([title, text]) => [make("dt", {}, bdi(title)), make("dd", {}, bdi(text))]),
  );
}

// A group of exclusive choices.
function choice(label, options, chosen, act) {
  const group = freshId("choice");
  const set = make("fieldset", { class: "choice" }, make("legend", {}, label));
  for (const [value, text] of options) {
    const input = make("input", {
      type: "radio",
      name: group,
      value,
      id: freshId("option"),
      checked: value === chosen,
      onchange: () => act(value),
    });
    set.append(make("label", { for: input.id }, input, " ", text));
  }
  return set;
}

// Whether a section is about the whole run or the chosen step.
function runOrStep(chosen, act) {
  const options = [
    ["run", "the whole run"],
    ["step", "the chosen step"],
  ];
  return choice("Of", options, chosen, act);
}

// A legend: [style, text, note].
function legend(entries) {
  const list = make("ul", { class: "legend" });
  for (const [style, text, note] of entries) {
    const swatch = make("canvas", { width: 32, height: 24, class: "swatch", "aria-hidden": "true" });
    const draw = () => {
      const pen = swatch.getContext("2d");
      pen.setTransform(2, 0, 0, 2, 0, 0);
      pen.fillStyle = fill(pen, style);
      pen.fillRect(0, 0, 16, 12);
    };
    redraws.add(draw, swatch);
    draw();
    list.append(make("li", {}, swatch, " ", bdi(text), note ? make("span", { class: "soft" }, ` ${note}`) : ""));
  }
  return list;
}

// Redraws charts when the scheme, the width or the medium changes; drops those that have left the page.
const redraws = {
  all: new Map(),
  add(draw, element) {
    this.all.set(draw, element);
  },
  run() {
    readPalette();
    for (const [draw, element] of this.all) {
      if (element.isConnected) draw();
      else this.all.delete(draw);
    }
  },
};
