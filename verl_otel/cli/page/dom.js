// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Elements, and how values are written. Text always becomes a text node: names from a run are never parsed as markup.

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (/^(class|role|scope|for|colspan|aria-.*|data-.*)$/.test(key)) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== "" && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);
export const bdi = (text) => make("bdi", {}, text);
// A sentence: a number and its unit stay in one line.
export const prose = (text) => bdi(text.replace(/(\d) (?=(?:ms|s|m|h|µs|GPU|GiB|MiB)\b)/g, "$1\u00a0").replace(/(\u00a0[hm]) (?=\d)/g, "$1\u00a0"));
let ids = 0;
export const freshId = (stem) => `${stem}-${(ids += 1)}`;

// Announced by screen readers; not visible.
export function announce(text) {
  byId("announcement").textContent = text;
}

export function button(text, act, properties = {}) {
  return make("button", { type: "button", onclick: act, ...properties }, text);
}

export function section(id, title, ...content) {
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), content);
}

// One of a few values: a row of radio buttons that looks like one control.
export function segmented(label, options, chosen, act) {
  const name = freshId("choice");
  return make("fieldset", { class: "segmented" }, make("legend", { class: "unseen" }, label),
    options.map(([value, text]) => {
      const input = make("input", { type: "radio", name, id: freshId("option"), checked: value === chosen, onchange: () => act(value) });
      return [input, make("label", { for: input.id }, text)];
    }));
}

// Facts by name; unknown ones are left out.
export function factList(facts) {
  const filled = facts.filter(([, text]) => text !== "" && text !== null && text !== undefined);
  return make("dl", { class: "facts" }, filled.map(([title, text]) => make("div", {}, make("dt", {}, bdi(title)), make("dd", {}, typeof text === "string" ? bdi(text) : text))));
}

// A part that is made when it is opened.
export function details(title, content) {
  const element = make("details", {}, make("summary", {}, title));
  element.addEventListener("toggle", () => {
    if (element.open && element.childElementCount === 1) element.append(...[content()].flat());
  });
  return element;
}

export function swatch(look) {
  return make("i", { class: `swatch hue-${look[0]} pattern-${look[1]}`, "aria-hidden": "true" });
}

export function legend(looks) {
  return make("ul", { class: "legend" }, looks.map((look) => make("li", {}, swatch(look), bdi(look[2]))));
}

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
export const ROUND_SECONDS = [...[-6, -5, -4, -3, -2, -1, 0].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power)), 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400, 180000, 864000];
export function axisSeconds(step) {
  const [, unit, factor] = [[3600, "h", 3600], [60, "min", 60], [0.1, "s", 1], [1e-4, "ms", 1e-3], [0, "µs", 1e-6]].find(([least]) => step >= least);
  const words = axisNumber(step / factor);
  return (value) => `${words(value / factor)} ${unit}`;
}

// For axes: all labels of one axis with the same digits.
export function axisNumber(step) {
  let digits = 0;
  while (digits < 9 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  const few = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return (value) => (Math.abs(value) >= 1e6 || step < 1e-6 ? value.toExponential(1) : value.toLocaleString("en-US", few)).replace("-", "−");
}

// Halves are rounded to even, as by the commands.
export function percent(share) {
  if (share === null || share === undefined) return "";
  const nearest = Math.round(share * 100);
  const shown = nearest - share * 100 === 0.5 && nearest % 2 ? nearest - 1 : nearest;
  if (share >= 0.995 && share < 1) return "> 99%";
  return share > 0 && share < 0.005 ? "< 1%" : `${shown}%`;
}

export function count(value) {
  return value === null || value === undefined ? "" : value.toLocaleString("en-US");
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace(/-/g, "−");
  return String(+value.toPrecision(4)).replace("-", "−");
}

// A number with its noun in singular or plural: counted(1, "GPU") is "1 GPU".
export const counted = (value, noun, plural = `${noun}s`) => `${count(value)} ${value === 1 ? noun : plural}`;

export function clock(time) {
  return time ? `${new Date(time * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC` : "";
}

// How long ago a time was, in the largest unit that fits.
export function ago(time, now = Date.now() / 1000) {
  const age = Math.max(0, now - time);
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([least]) => age >= least) ?? [1, "s"];
  return `${Math.floor(age / size)} ${unit} ago`;
}

// -- tables --

// A table that sorts by its heads and shows a page of rows at a time; columns that are empty in every row are left out.
// columns: {title, text(row) -> text or node, value(row) -> number or text, number: right-aligned, wide}
export function dataTable(caption, all, rows, { page = 25, sorted = null, onsort = () => {}, empty = "Nothing to show.", quiet = false } = {}) {
  const columns = all.filter((column) => !rows.length || column.keep || rows.some((row) => column.text(row) !== ""));
  let [by, shown] = [sorted, page];
  const body = make("tbody");
  const more = make("p", { class: "more" });
  const value = (column, row) => (column.value ? column.value(row) : column.text(row)) ?? "";
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const lookOf = (column) => [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || undefined;
  const heads = columns.map((column) => {
    const act = () => {
      by = { title: column.title, down: by?.title === column.title ? !by.down : Boolean(column.number) };
      onsort(by);
      fill();
    };
    const title = column.head ?? column.title;
    return make("th", { scope: "col", class: lookOf(column) }, rows.length > 1 && column.title && !column.fixed ? button(title, act, { class: "sort" }) : title);
  });
  function cell(column, index, row) {
    const text = column.text(row);
    const content = typeof text === "string" && !column.number ? bdi(text) : text;
    return make(index ? "td" : "th", { scope: index ? undefined : "row", class: lookOf(column), "data-title": column.title }, content);
  }
  function fill() {
    const column = columns.find((each) => each.title === by?.title);
    const order = column ? [...rows].sort((a, b) => compare(value(column, a), value(column, b)) * (by.down ? -1 : 1)) : rows;
    columns.forEach((each, index) => {
      if (each === column) heads[index].setAttribute("aria-sort", by.down ? "descending" : "ascending");
      else heads[index].removeAttribute("aria-sort");
    });
    body.replaceChildren(...order.slice(0, shown).map((row) => make("tr", {}, columns.map((each, index) => cell(each, index, row)))));
    const left = order.length - shown;
    more.replaceChildren(...(left > 0 ? [button(`Show ${count(Math.min(left, shown * 3))} more of ${count(order.length)}`, () => {
      shown *= 4;
      fill();
    })] : []));
  }
  fill();
  if (!rows.length) return make("p", { class: "soft empty" }, empty);
  const table = make("table", {}, make("caption", { class: quiet ? "unseen" : undefined }, caption), make("thead", {}, make("tr", {}, heads)), body);
  return make("div", { class: "table" }, make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption }, table), more);
}
