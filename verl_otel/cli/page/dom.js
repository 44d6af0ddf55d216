// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Elements, and how values are written. Text always becomes a text node: names from a run are never parsed as markup.

// What is to be shown of a nested list: nothing stands for what is left out.
export const filled = (children) => children.flat(4).filter((child) => (child ?? false) !== false && child !== "");

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, each] of Object.entries(value)) element.style.setProperty(name, each);
    else if (/^(class|role|scope|for|aria-.*|data-.*)$/.test(key)) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...filled(children));
  return element;
}

// An element of SVG.
export function shape(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);
export const bdi = (text) => make("bdi", {}, text);
// A sentence: a number and its unit stay in one line; arrows and minus signs are those of print.
export function prose(text) {
  const printed = text.replaceAll(" -> ", " → ").replace(/^\s*-(?=\d)/, "−");
  const joined = printed.replace(/(\d) (?=(?:ns|µs|ms|s|m|h|d|GPU|device|[KMGT]iB)\b)/g, "$1\u00a0");
  return bdi(joined.replace(/(\u00a0[hm]) (?=\d)|(\u00a0(?:GPU|device)) (?=m?s\b)/g, "$1$2\u00a0"));
}
export const uncapital = (text) => text.charAt(0).toLowerCase() + text.slice(1);
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
// Lets the browser draw and answer between two pieces of work.
export const pause = () => new Promise((resolve) => setTimeout(resolve));

export const button = (text, act, properties = {}) =>
  make("button", { type: "button", onclick: act, ...properties }, text);

export function section(id, title, ...content) {
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), content);
}

// A section whose title is not shown: what is in it says what it is.
export const untitled = (id, name, ...content) => make("section", { id, "aria-label": name }, content);

// One of a few values. An open list stays open: its choices are made again only when they differ.
export function select(name, act) {
  const element = make("select", { "aria-label": name, onchange: () => act(element.value) });
  const isNew = changes();
  element.offer = (options, chosen) => isNew(options) && element.replaceChildren(...options.map(([value, text]) =>
    make("option", { value, selected: value === chosen }, text)));
  return element;
}

// Facts by name; unknown ones are left out.
export function factList(facts) {
  const known = facts.filter(([, text]) => (text ?? "") !== "");
  return make("dl", { class: "facts" }, known.map(([title, text]) =>
    make("div", {}, make("dt", {}, bdi(title)), make("dd", {}, bdi(text)))));
}

// Sentences, one below the other.
export const listOf = (texts, look = "plain") =>
  (texts.length ? make("ul", { class: look }, texts.map((text) => make("li", {}, prose(text)))) : "");

// Blocks of a document: a title, and lines below it. Two spaces part the figures of a line, which stand below each
// other; advice is indented.
export function blocks(rows) {
  const kind = (line, parts) => (parts.length > 1 ? "figures-row" : line.startsWith("  ") ? "advice" : undefined);
  return rows.map(({ title, lines }) => [make("h3", {}, title), make("ul", { class: "plain" }, lines.map((line) => {
    const parts = line.trim().split(/ {2,}/);
    return make("li", { class: kind(line, parts) }, parts.map((part) => make("span", {}, prose(part))));
  }))]);
}

// Returns whether data differ from those before: what is unchanged is not drawn again, and keeps focus and place.
export function changes() {
  let known;
  return (data) => {
    const before = known;
    known = JSON.stringify(data);
    return known !== before;
  };
}

// A section whose content is made again when data differ.
export function part(id, title) {
  const body = make("div");
  const element = section(id, title, body);
  const isNew = changes();
  element.show = (data, content) => isNew(data) && body.replaceChildren(...filled([content()]));
  return element;
}

// A view that is made again as a whole when its data differ. load(run) -> data, draw(data, run) -> content.
export function whole(load, draw) {
  const element = make("div");
  const isNew = changes();
  return {
    element,
    async show(run) {
      const data = await load(run);
      if (isNew(data)) element.replaceChildren(...filled([draw(data, run)]));
    },
  };
}

// A part that is made when it is opened.
export function details(title, content) {
  const element = make("details", {}, make("summary", {}, title));
  element.addEventListener("toggle", () => {
    if (element.open && element.childElementCount === 1) element.append(...[content()].flat());
  });
  return element;
}

// An area in the hue and the pattern of a look.
export const area = (name, [hue, pattern], { style, ...properties } = {}, ...children) => make("i", {
  class: `${name} pattern-${pattern}`, style: { "background-color": `var(--${hue})`, ...style }, ...properties,
}, ...children);
export const swatch = (look) => area("swatch", look, { "aria-hidden": "true" });
export const legend = (looks, title = "") => make("ul", { class: "legend" },
  title ? make("li", { class: "soft" }, title) : "", looks.map((look) => make("li", {}, swatch(look), bdi(look[2]))));

// -- how values are written --

// A duration that is short and easy to compare; as the commands write it.
export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0) return `−${seconds(-value)}`;
  if (value < 0.0009995) return value === 0 ? "0 s" : `${Math.round(value * 1e6)} µs`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(2)} s`;
  const rounded = Math.round(value);
  const [hours, minutes, rest] = [Math.floor(rounded / 3600), Math.floor(rounded / 60) % 60, rounded % 60];
  const two = (part) => String(part).padStart(2, "0");
  return hours ? `${hours} h ${two(minutes)} m` : `${minutes} m ${two(rest)} s`;
}

// For axes: all labels of one axis in one unit; the steps between them are round in it.
export const ROUND_SECONDS = [
  ...[-6, -5, -4, -3, -2, -1, 0].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power)),
  10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400, 180000, 864000,
];
const UNITS = [[3600, "h", 3600], [60, "min", 60], [0.1, "s", 1], [1e-4, "ms", 1e-3], [0, "µs", 1e-6]];
export function axisSeconds(step) {
  const [, unit, factor] = UNITS.find(([least]) => step >= least);
  const words = axisNumber(step / factor);
  return (value) => `${words(value / factor)} ${unit}`;
}

// For axes: all labels of one axis with the same digits.
export function axisNumber(step) {
  let digits = 0;
  while (digits < 9 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  const few = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  const write = (value) => (Math.abs(value) >= 1e6 || step < 1e-6
    ? value.toExponential(1) : value.toLocaleString("en-US", few));
  return (value) => write(value).replace("-", "−");
}

// Halves are rounded to even, as by the commands.
export function percent(share) {
  if (share === null || share === undefined) return "";
  const nearest = Math.round(share * 100);
  const shown = nearest - share * 100 === 0.5 && nearest % 2 ? nearest - 1 : nearest;
  if (share >= 0.995 && share < 1) return "> 99%";
  return share > 0 && share < 0.005 ? "< 1%" : `${shown}%`;
}

export const count = (value) => value?.toLocaleString("en-US") ?? "";

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace(/-/g, "−");
  return String(+value.toPrecision(4)).replace("-", "−");
}

// A number with its noun in singular or plural: counted(1, "GPU") is "1 GPU".
export const counted = (value, noun, plural = `${noun}s`) => `${count(value)} ${value === 1 ? noun : plural}`;

export const clock = (time) =>
  (time ? `${new Date(time * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC` : "");

// How long ago a time was, in the largest unit that fits.
export function ago(time, now = Date.now() / 1000) {
  const age = Math.max(0, now - time);
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([least]) => age >= least) ?? [1, "s"];
  return `${Math.floor(age / size)} ${unit} ago`;
}

// -- tables --

// A column of figures; what is unknown is left out.
export function numbers(title, value, write = String) {
  const text = (row) => ((value(row) ?? null) === null ? "" : write(value(row)));
  return { title, number: true, value: (row) => value(row) ?? -Infinity, text };
}

// The same without 0.
export const figures = (title, value, write) => numbers(title, (row) => value(row) || null, write);

// A table that sorts by its heads and shows a page of rows at a time; columns that are empty in every row are left out.
// columns: {title, about, text(row) -> text or node, value(row) -> number or text, number: right-aligned, wide, change}
// look(row): the class of a row
export function dataTable(caption, all, rows, options = {}) {
  const { page = 25, sorted = null, onsort = () => {}, empty = "Nothing to show.", look } = options;
  if (!rows.length) return make("p", { class: "soft empty" }, empty);
  const columns = all.filter((column) => rows.some((row) => column.text(row) !== ""));
  let [by, shown] = [sorted, page];
  const body = make("tbody");
  const more = button("", () => {
    shown *= 4;
    fill();
  }, { class: "more" });
  const value = (column, row) => (column.value ? column.value(row) : column.text(row)) ?? "";
  const isLess = (a, b) => (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const kind = (column) => ["number", "wide", "change"].filter((each) => column[each]).join(" ") || undefined;
  const heads = columns.map((column) => {
    const act = () => {
      by = { title: column.title, down: by?.title === column.title ? !by.down : Boolean(column.number) };
      onsort(by);
      fill();
    };
    const isSorted = rows.length > 1 && !column.fixed;
    const title = isSorted ? button(column.title, act, { class: "sort" }) : column.title;
    return make("th", { scope: "col", class: kind(column), title: column.about }, title);
  });

  function cell(column, index, row) {
    const text = column.text(row);
    const content = typeof text === "string" && !column.number ? bdi(text) : text;
    const facts = { scope: index ? undefined : "row", class: kind(column), "data-title": column.title };
    return make(index ? "td" : "th", facts, content);
  }

  function fill() {
    const column = columns.find((each) => each.title === by?.title);
    const ordered = (a, b) => isLess(value(column, a), value(column, b)) * (by.down ? -1 : 1);
    const order = column ? [...rows].sort(ordered) : rows;
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    if (column) heads[columns.indexOf(column)].setAttribute("aria-sort", by.down ? "descending" : "ascending");
    body.replaceChildren(...order.slice(0, shown).map((row) =>
      make("tr", { class: look?.(row) || undefined }, columns.map((each, index) => cell(each, index, row)))));
    const left = order.length - shown;
    more.hidden = left <= 0;
    more.textContent = `Show ${count(Math.min(left, shown * 3))} more of ${count(order.length)}`;
  }

  fill();
  const title = make("caption", { class: "unseen" }, caption);
  const table = make("table", {}, title, make("thead", {}, make("tr", {}, heads)), body);
  const scroll = make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption }, table);
  return make("div", { class: "table" }, scroll, more);
}
