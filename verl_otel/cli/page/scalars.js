// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Charts of scalars: those that show how a run learns, in groups, and those that a user looks for.

import { chart } from "./chart.js";
import { lineMark } from "./colours.js";
import { bdi, changes, count, counted, make, number, pause, seconds } from "./dom.js";

// As verl writes it.
export const scalarName = (name) => (name.startsWith("verl.") ? name.slice(5).replaceAll(".", "/") : name);

const GROUPS = [
  ["Reward", /^verl\.(critic\.rewards\.mean|average_reward)$/],
  ["Policy KL", /^verl\.actor\.(ppo_kl|kl_loss)$/],
  ["Losses", /^verl\.(actor\.pg_loss|critic\.vf_loss)$/],
  ["Entropy", /^verl\.actor\.entropy(_loss)?$/],
  ["Gradient norm", /^verl\.(actor|critic)\.grad_norm$/],
  ["Response length, tokens", /^verl\.response_length\.(mean|max)$/],
  ["Tokens a second and GPU", /^verl\.perf\.throughput$/],
  ["Validation", /^verl\.(validation\.score|val-core.*)$/],
];
// Those that two runs are compared by: the same without validation.
export const SHARED = new RegExp(GROUPS.slice(0, -1).map(([, pattern]) => pattern.source).join("|"));
const MOST_LINES = 8;
const MOST_FOUND = 40;

// A chart of some lines of scalars; update(lines) with those of its names.
export function scalarChart(title, { band = null, height = 190, names = null } = {}) {
  let [xs, columns, shown, values, view] = [[], [], [], [], null];
  const isNew = changes();
  const key = make("div");
  const element = make("div", { class: "scalar" });

  function nameOf(line) {
    const labels = Object.entries(line.labels).map(([label, value]) => `${label}=${value}`);
    return [names ? names(line) : scalarName(line.name), ...labels].join(" ");
  }

  const by = () => (shown.every((line) => line.by_steps) ? "step" : "time");
  const where = (index) => (by() === "step" ? `step ${number(xs[index])}` : `after ${seconds(xs[index])}`);
  const textOf = (line) => (shown.length > 1 ? `${nameOf(line)} ` : "");
  const valueAt = (index) => (line, place) => `${textOf(line)}${number(columns[place][index])}`;

  function begin() {
    view?.plot?.destroy();
    view = chart({
      title, height, band, axis: by(), unit: number, series: shown.map(() => ({})),
      label: by() === "step" ? "step" : "since the start",
      text: (index) => `${where(index)}: ${shown.map(valueAt(index)).join(" · ")}`,
      where,
      moved: (index) => values.forEach((value, place) => {
        value.textContent = index < 0 ? "" : number(columns[place][index]);
      }),
      foot: key,
    });
    view.lines = shown.length;
    element.replaceChildren(view.element);
  }

  return {
    element,
    update(lines) {
      if (!isNew(lines)) return;
      shown = lines.filter((line) => line.y.some((value) => value !== null)).slice(0, MOST_LINES);
      xs = [...new Set(shown.flatMap((line) => line.x))].sort((a, b) => a - b);
      columns = shown.map((line) => {
        const at = new Map(line.x.map((x, index) => [x, line.y[index]]));
        return xs.map((x) => at.get(x) ?? null);
      });
      if (!shown.length) {
        element.replaceChildren(make("figure", { class: "chart" },
          make("div", { class: "chart-head" }, make("figcaption", {}, bdi(title))),
          make("p", { class: "soft empty" }, "No finite value was logged.")));
        return;
      }
      values = shown.map(() => make("output", { "aria-live": "off" }));
      key.replaceChildren(make("ul", { class: "legend" }, shown.map((each, place) =>
        make("li", {}, lineMark(place), bdi(nameOf(each)), values[place]))));
      if (view?.lines !== shown.length) begin();
      view.update(xs, columns);
    },
  };
}

// Lines that are the same curve are one.
const distinct = (lines) => [...new Map(lines.map((line) => [JSON.stringify(line.y), line])).values()];

// The charts of how a run learns, and the search over all scalars. change(names): which ones were chosen.
export function scalarCharts(chosen, change) {
  const [groups, own] = [new Map(), new Map()];
  const learning = make("div", { class: "charts" });
  const ownGrid = make("div", { class: "charts" });
  const found = make("div", { class: "picker" });
  const search = make("input", {
    type: "search", id: "scalar-search", placeholder: "Search all scalars, for example kl or length",
    "aria-label": "Search all scalars", oninput: () => pick(),
  });
  const isOther = changes();
  let run = null;

  function pick() {
    const wanted = search.value.toLowerCase();
    const all = run.scalars.filter((each) => scalarName(each).toLowerCase().includes(wanted));
    const offered = wanted ? all.slice(0, MOST_FOUND) : run.scalars.filter((each) => chosen.has(each));
    const choose = (each) => (event) => {
      if (event.target.checked) chosen.add(each);
      else chosen.delete(each);
      change(chosen);
    };
    const box = (each) => make("input", { type: "checkbox", checked: chosen.has(each), onchange: choose(each) });
    const boxes = offered.map((each) => make("label", {}, box(each), " ", bdi(scalarName(each))));
    const many = all.length > MOST_FOUND ? `, the first ${MOST_FOUND}` : "";
    const words = wanted ? `${counted(all.length, "scalar")} of ${count(run.scalars.length)}${many}`
      : `${counted(run.scalars.length, "scalar")}, named as verl writes them`;
    found.replaceChildren(make("p", { class: "soft" }, words), make("div", { class: "choices" }, boxes));
  }

  return {
    learning,
    all: [make("div", { class: "toolbar" }, search, found), ownGrid],
    // The names of the scalars that are shown.
    wanted(described) {
      run = described;
      if (isOther(run.scalars)) pick();
      const grouped = run.scalars.filter((each) => GROUPS.some(([, pattern]) => pattern.test(each)));
      return [...new Set([...grouped, ...run.indicators.map((row) => row.scalar).filter(Boolean), ...chosen])];
    },
    async update(lines) {
      for (const [title, pattern] of GROUPS) {
        const some = distinct(lines.filter((line) => pattern.test(line.name) && !line.labels.instance));
        if (!some.length) continue;
        if (!groups.has(title)) {
          const row = run.indicators.find((each) => !each.is_share && some.some((line) => line.name === each.scalar));
          const band = row && (row.low !== null || row.high !== null) ? [row.low, row.high] : null;
          groups.set(title, scalarChart(title, { band }));
          learning.append(groups.get(title).element);
        }
        groups.get(title).update(some);
        await pause();
      }
      for (const each of chosen) {
        if (!own.has(each)) own.set(each, scalarChart(scalarName(each)));
        if (!own.get(each).element.isConnected) ownGrid.append(own.get(each).element);
        own.get(each).update(lines.filter((line) => line.name === each));
      }
      for (const [each, view] of own) if (!chosen.has(each)) view.element.remove();
      if (!groups.size) learning.replaceChildren(
        make("p", { class: "soft empty" }, "No reward, KL, loss or length has been logged yet."));
    },
  };
}
