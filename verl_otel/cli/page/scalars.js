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
  ["Tokens a second and device", /^verl\.perf\.throughput$/],
  ["Validation", /^verl\.(validation\.score|val-core.*)$/],
];
// Those that two runs are compared by: the same without validation.
export const SHARED = new RegExp(GROUPS.slice(0, -1).map(([, pattern]) => pattern.source).join("|"));
// The healthy values, from low to high; null: that end is open.
export const bandText = ({ low, high }, write) =>
  (low === null ? `up to ${write(high)}` : high === null ? `from ${write(low)}` : `${write(low)} to ${write(high)}`);

const MOST_LINES = 8;
const MOST_FOUND = 40;

// A chart of some lines of scalars; update(lines) with those of its names. band: that of one of them.
function scalarChart({ title, lines: first, band, unit = number }) {
  let [xs, columns, shown, values] = [[], [], [], []];
  const isNew = changes();
  const key = make("ul", { class: "legend" });
  const bySteps = first.every((line) => line.by_steps);

  function nameOf(line) {
    const labels = Object.entries(line.labels).map(([label, value]) => `${label}=${value}`);
    return [line.whose ?? scalarName(line.name), ...labels].join(" ");
  }

  const valueAt = (place, index) => (columns[place][index] === null ? "–" : unit(columns[place][index]));
  const where = (index) => (bySteps ? `step ${number(xs[index])}` : `after ${seconds(xs[index])}`);
  const textOf = (line) => (shown.length > 1 ? `${nameOf(line)} ` : "");
  const view = chart({
    title, band: band && [band.low, band.high], where, height: 190, axis: bySteps ? "step" : "time", unit,
    class: "scalar", foot: key,
    label: bySteps ? "step" : "since the start",
    text: (index) =>
      `${where(index)}: ${shown.map((line, place) => textOf(line) + valueAt(place, index)).join(" · ")}`,
    moved: (index) => values.forEach((value, place) => {
      value.textContent = index < 0 ? "" : valueAt(place, index);
    }),
  });

  return {
    ...view,
    update(lines) {
      if (!isNew(lines)) return;
      shown = lines.filter((line) => line.y.some((value) => value !== null)).slice(0, MOST_LINES);
      xs = [...new Set(shown.flatMap((line) => line.x))].sort((a, b) => a - b);
      columns = shown.map((line) => {
        const at = new Map(line.x.map((x, index) => [x, line.y[index]]));
        return xs.map((x) => at.get(x) ?? null);
      });
      values = shown.map(() => make("output", { "aria-live": "off" }));
      key.replaceChildren(...shown.map((each, place) =>
        make("li", {}, lineMark(place), bdi(nameOf(each)), values[place])), band ? make("li", { class: "soft" },
        make("i", { class: "swatch in-band" }), `band of ${scalarName(band.scalar)}: ${bandText(band, number)}`) : "");
      view.update(xs, columns);
    },
  };
}

// Charts side by side, by their titles: update([{title, lines, band, unit}]).
export function chartGrid(empty = "") {
  const views = new Map();
  const note = make("p", { class: "soft empty", hidden: true }, empty);
  const element = make("div", { class: "charts" }, note);
  return {
    element,
    async update(wanted) {
      for (const [title, view] of views) {
        if (wanted.some((each) => each.title === title)) continue;
        view.destroy();
        view.element.remove();
        views.delete(title);
      }
      note.hidden = wanted.length > 0;
      for (const each of wanted) {
        if (!views.has(each.title)) {
          views.set(each.title, scalarChart(each));
          element.append(views.get(each.title).element);
        }
        views.get(each.title).update(each.lines);
        await pause();
      }
    },
  };
}

// Lines that are the same curve are one.
const distinct = (lines) => [...new Map(lines.map((line) => [JSON.stringify(line.y), line])).values()];

// The charts of how a run learns, and the search over all scalars. change(run): the choice is another one.
export function scalarCharts(chosen, change) {
  const learning = chartGrid("No reward, KL, loss or length has been logged yet.");
  const own = chartGrid();
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
      chosen[event.target.checked ? "add" : "delete"](each);
      change(run);
    };
    const box = (each) => make("input", { type: "checkbox", checked: chosen.has(each), onchange: choose(each) });
    const many = all.length > MOST_FOUND ? `, the first ${MOST_FOUND}` : "";
    const words = wanted ? `${counted(all.length, "scalar")} of ${count(run.scalars.length)}${many}`
      : `${counted(run.scalars.length, "scalar")}, named as verl writes them`;
    found.replaceChildren(make("p", { class: "soft" }, words), make("div", { class: "choices" },
      offered.map((each) => make("label", {}, box(each), " ", bdi(scalarName(each))))));
  }

  return {
    learning: learning.element,
    all: [make("div", { class: "toolbar" }, search, found), own.element],
    // The names of the scalars that are shown.
    wanted(described) {
      run = described;
      if (isOther(run.scalars)) pick();
      const grouped = run.scalars.filter((each) => GROUPS.some(([, pattern]) => pattern.test(each)));
      return [...new Set([...grouped, ...run.indicators.map((row) => row.scalar).filter(Boolean), ...chosen])];
    },
    async update(lines) {
      const bandOf = (some) => run.indicators.find((row) => !row.is_share && (row.low ?? row.high) !== null
        && some.some((line) => line.name === row.scalar));
      await learning.update(GROUPS.flatMap(([title, pattern]) => {
        const some = distinct(lines.filter((line) => pattern.test(line.name) && !line.labels.instance));
        return some.length ? [{ title, lines: some, band: bandOf(some) }] : [];
      }));
      await own.update([...chosen].map((each) =>
        ({ title: scalarName(each), lines: lines.filter((line) => line.name === each) })));
    },
  };
}
