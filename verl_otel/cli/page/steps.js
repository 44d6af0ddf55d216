// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// All steps as columns. Where a column is narrower than a few pixels it stands for several steps: the stack is their mean, the line
// goes from the shortest to the longest, the tick is their median.

const NARROWEST = 5;
const STACKS = [
  ["phases", "phases", (key) => look.phase(key)],
  [
    "groups",
    "critical path",
    ([kind, name]) => {
      const [hue, pattern, words] = look.kind(kind);
      return kind === "other" ? [...look.phase("other")] : [hue, pattern, name ? `${words} ${name}` : words];
    },
  ],
  ["gpu", DEVICE_TIME, (key) => look.cause(key)],
];

function stepsSection(section, choose) {
  if (!total) {
    section.append(make("p", {}, "No step has ended yet."));
    return null;
  }
  const available = STACKS.filter(([key]) => table[key].columns.length);
  let stack = available[0] ?? STACKS[0];
  let clipped = true;
  const legendBox = make("div");
  const brokenBox = make("p", { class: "soft" });
  const limit = () => (clipped ? clipLimit(stack[0]) : Infinity);

  const columns = (state) => {
    const plot = { left: 52, right: state.width - 4, top: 20, bottom: state.height - 20 };
    const [from, to] = [Math.floor(state.view[0]), Math.ceil(state.view[1])];
    const perColumn = Math.max(1, Math.ceil(((to - from) * NARROWEST) / (plot.right - plot.left)));
    return { ...plot, from, to, perColumn, wide: ((plot.right - plot.left) / (to - from)) * perColumn };
  };
  const overview = chart({
    label: "Steps of the run",
    hint: "Choose a step: click, or arrow keys. v: next delayed or slow step. + and −: zoom.",
    height: (width) => (width < 620 ? 220 : 260),
    count: () => total,
    text: stepWords,
    domain: () => [0, total],
    narrowest: Math.min(total, 8),
    where: (index) => index + 0.5,
    across: (x, state) => {
      const plot = columns(state);
      return plot.from + ((x - plot.left) / plot.wide) * plot.perColumn;
    },
    hit(x, y, state) {
      const plot = columns(state);
      if (x < plot.left || x > plot.right) return -1;
      const begin = plot.from + Math.floor((x - plot.left) / plot.wide) * plot.perColumn;
      return Math.min(total - 1, longestOf(begin, Math.min(plot.to, begin + plot.perColumn)));
    },
    keys: (key, at) => ({ v: nextHeld(at, 1), V: nextHeld(at, -1) }),
    choose,
    enter: () => byId("step-title").focus(),
    draw: (pen, state) => drawSteps(pen, state, columns(state), stack, limit()),
  });

  function showBroken() {
    brokenBox.textContent = brokenWords(stack[0], limit());
    brokenBox.hidden = !brokenBox.textContent;
  }

  function showLegend() {
    const [key, , style] = stack;
    const sums = table[key].columns.map((column) => column.reduce((sum, value) => sum + value, 0));
    const all = sums.reduce((sum, value) => sum + value, 0) || 1;
    legendBox.replaceChildren(
      legend(
        table[key].keys.map((stackKey, index) => {
          const keyStyle = style(stackKey);
          return [keyStyle, keyStyle[2], percent(sums[index] / all)];
        }),
      ),
    );
  }
  const tools = make("div", { class: "controls" });
  if (available.length > 1)
    tools.append(
      choice(
        "Columns show",
        available.map(([key, words]) => [key, words]),
        stack[0],
        (key) => {
          stack = STACKS.find(([name]) => name === key);
          showLegend();
          showBroken();
          overview.redraw();
        },
      ),
    );
  if (available.some(([key]) => clipLimit(key) < Infinity)) {
    const box = make("input", {
      type: "checkbox",
      id: freshId("full"),
      onchange: (event) => {
        clipped = !event.target.checked;
        showBroken();
        overview.redraw();
      },
    });
    tools.append(make("label", { for: box.id }, box, " full height of the longest steps"));
  }
  const jump = make("input", { type: "number", id: "jump", min: 0, class: "jump" });
  const go = () => {
    const index = table.number.indexOf(Number(jump.value));
    if (index >= 0) overview.move(index);
    else announce(`There is no step ${jump.value}`);
  };
  jump.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go();
  });
  tools.append(make("span", {}, make("label", { for: "jump" }, "Step "), jump, " ", button("Go", go)));
  if (run.kept < run.all)
    section.append(
      make(
        "p",
        { class: "soft" },
        `Of each ${Math.ceil(run.all / run.kept)} neighbours the slowest is shown: ${count(run.kept)} of ${count(run.all)} steps.`,
      ),
    );
  section.append(
    tools,
    overview.element,
    brokenBox,
    legendBox,
    make(
      "p",
      { class: "soft keys" },
      "▼ delayed · ▽ slow without a known cause · ✕ failed or interrupted · ◆ stall or crash. Keys: ← → step, PgUp PgDn a tenth, v next delayed or slow step, + − 0 zoom, Enter to the chosen step. Drag to zoom.",
    ),
    asTable("The steps as a table", stepsTable),
  );
  showLegend();
  showBroken();
  return overview;

  function stepsTable() {
    const phases = table.phases;
    return dataTable(
      "Steps: seconds of each phase",
      [
        { title: "step", number: true, value: (index) => table.number[index] ?? -1, text: stepName },
        { title: "seconds", number: true, value: stepSeconds, text: (index) => stepSeconds(index).toFixed(2) },
        ...phases.keys.map((key, column) => ({
          title: key,
          number: true,
          value: (index) => phases.columns[column][index],
          text: (index) => (phases.columns[column][index] / table.unit).toFixed(2),
        })),
        {
          title: "would have been shorter by",
          number: true,
          value: (index) => savedOf(index),
          text: (index) => (savedOf(index) ? seconds(savedOf(index)) : ""),
        },
      ],
      table.number.map((_, index) => index),
      { act: (index) => overview.move(index) },
    );
  }
}

const savedOf = (index) => table.saved[index] / table.unit;

function stepWords(index) {
  const parts = table.phases.keys
    .map((key, column) => [key, table.phases.columns[column][index]])
    .filter(([, value]) => value > 0)
    .sort((a, b) => b[1] - a[1])
    .slice(0, 3)
    .map(([key, value]) => `${key} ${seconds(value / table.unit)}`);
  const held = verdictsOf.get(index)?.[0];
  const notes = `${failed.has(index) ? `, ${failed.get(index)}` : ""}${startUp.has(index) ? ", with start-up" : ""}${unexplained.has(index) ? ", slow without a known cause" : ""}`;
  return `Step ${stepName(index)}: ${seconds(stepSeconds(index))}${notes}. ${parts.join(", ")}.${held ? ` Delayed by ${held[4]} ${held[5]}: ${seconds(held[2])}.` : ""}`;
}

function longestOf(from, to) {
  let best = from;
  for (let index = from; index < to; index += 1) if (table.seconds[index] > table.seconds[best]) best = index;
  return best;
}

function nextHeld(at, by) {
  for (let index = at + by; index >= 0 && index < total; index += by)
    if (verdictsOf.has(index) || failed.has(index) || unexplained.has(index)) return index;
  return at;
}

// The height of a step's column: its seconds, or the time of all devices until the next step.
function heightOf(key, index) {
  const { columns } = table[key];
  return (key === "gpu" ? columns.reduce((sum, column) => sum + column[index], 0) : table.seconds[index]) / table.unit;
}

// Start-up, or one very long step, must not shrink all others. Returns the height of the axis, above which columns are drawn broken.
const clipLimits = new Map();
function clipLimit(key) {
  if (!clipLimits.has(key)) clipLimits.set(key, findClipLimit(key));
  return clipLimits.get(key);
}

function findClipLimit(key) {
  const heights = table.seconds.map((_, index) => heightOf(key, index));
  const others = heights.filter((_, index) => !startUp.has(index)).sort((a, b) => a - b);
  if (!others.length) return Infinity;
  const longest = others[others.length - 1];
  const usual = others[Math.floor(others.length * 0.98)];
  if (total >= 20 && longest > 3 * usual) return usual * 1.5;
  return heights.some((height) => height > 3 * longest) ? longest * 1.15 : Infinity;
}

// Which columns are broken, in words.
function brokenWords(key, limit) {
  const broken = table.seconds.map((_, index) => index).filter((index) => heightOf(key, index) > limit);
  if (!broken.length) return "";
  const named = broken
    .slice(0, 3)
    .map((index) => `step ${stepName(index)} (${seconds(heightOf(key, index))}${startUp.has(index) ? ", with start-up" : ""})`);
  if (broken.length > named.length) named.push(`${count(broken.length - named.length)} more`);
  return `Drawn broken, so that the others can be compared: ${named.join(", ")}.`;
}

// Steps in which a stall or crash was seen.
const eventSteps = new Set(
  run.events
    .map((event) => {
      let step = -1;
      const at = event[1] - run.start;
      for (let index = 0; index < total && table.start[index] <= at; index += 1) step = index;
      return step;
    })
    .filter((index) => index >= 0),
);
