// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The scalars of the trainer: small charts of the chosen series. A long series is drawn as its mean within the band from minimum to
// maximum.

// The series that are shown first, in this order.
const FIRST = [
  /average_reward$/,
  /reward.*mean$/,
  /score.*mean$/,
  /pg_loss$/,
  /vf_loss$/,
  /kl_loss$/,
  /reward_kl_penalty$/,
  /ppo_kl$/,
  /entropy$/,
  /grad_norm$/,
  /response_length\.mean$/,
  /throughput$/,
  /actor\.lr$/,
];
const CHARTS = 8;

function scalarsSection(section) {
  const { axes, lines } = run.scalars;
  if (!lines.length) {
    section.append(make("p", { class: "soft" }, "The run logged no scalar."));
    return;
  }
  const all = lines.map(([label, tags, axis, odd, points, mean, least, most], index) => ({
    index,
    title: tags ? `${label} {${tags}}` : label,
    bySteps: axes[axis][0],
    xs: axes[axis].slice(1),
    odd,
    points,
    mean,
    least: least ?? mean,
    most: most ?? mean,
  }));
  const shown = new Set();
  for (const wanted of FIRST) {
    if (shown.size >= CHARTS) break;
    const match = all.find((line) => wanted.test(line.title) && !shown.has(line));
    if (match) shown.add(match);
  }
  for (const line of all) if (shown.size < Math.min(4, all.length)) shown.add(line);
  const grid = make("div", { class: "grid" });
  const search = make("input", { type: "search", id: "filter", oninput: list });
  const choices = make("div", { class: "choices", role: "group", "aria-label": "Scalars that can be shown" });
  section.append(
    make(
      "details",
      { class: "picker" },
      make("summary", {}, `Choose from ${count(all.length)} scalars`),
      make(
        "p",
        {},
        make("label", { for: "filter" }, "Filter "),
        search,
        " ",
        button("Show none", () => {
          shown.clear();
          draw();
          list();
        }),
      ),
      choices,
    ),
    grid,
  );

  function list() {
    const wanted = search.value.toLowerCase();
    const matches = all.filter((line) => line.title.toLowerCase().includes(wanted));
    choices.replaceChildren(
      ...matches.slice(0, 200).map((line) => {
        const box = make("input", {
          type: "checkbox",
          id: freshId("line"),
          checked: shown.has(line),
          onchange: () => {
            if (box.checked) shown.add(line);
            else shown.delete(line);
            draw();
          },
        });
        return make("label", { for: box.id }, box, " ", bdi(line.title));
      }),
      matches.length > 200 ? make("p", { class: "soft" }, `and ${count(matches.length - 200)} more: filter`) : "",
    );
  }

  const charts = new Map();
  function draw() {
    for (const line of shown) if (!charts.has(line)) charts.set(line, lineChart(line));
    grid.replaceChildren(...[...shown].map((line) => charts.get(line)));
  }
  list();
  draw();
}

function lineChart(line) {
  const finite = (values) => values.filter((value) => value !== null);
  const lowest = Math.min(...finite(line.least));
  const highest = Math.max(...finite(line.most));
  const empty = !Number.isFinite(lowest);
  const spare = (highest - lowest) * 0.06 || Math.abs(highest) * 0.1 || 1;
  const [bottomValue, topValue] = [lowest - spare, highest + spare];
  const [first, last] = [line.xs[0], line.xs[line.xs.length - 1]];
  const at = (value) => (line.bySteps ? `step ${value}` : seconds(value));
  const band = line.least !== line.mean;
  const words = (index) =>
    `${at(line.xs[index])}: ${number(line.mean[index])}${band ? ` (${number(line.least[index])} to ${number(line.most[index])})` : ""}`;
  const geometry = (state) => {
    const plot = { left: 50, right: state.width - 6, top: 6, bottom: state.height - 20 };
    plot.x = (value) =>
      last > first
        ? plot.left + ((value - first) / (last - first)) * (plot.right - plot.left)
        : (plot.left + plot.right) / 2;
    plot.y = (value) => plot.bottom - ((value - bottomValue) / (topValue - bottomValue)) * (plot.bottom - plot.top);
    return plot;
  };
  const view = chart({
    label: line.title,
    height: () => 130,
    count: () => line.xs.length,
    text: words,
    hint: empty
      ? "No value of it is a number."
      : `First ${number(finite(line.mean)[0])}, last ${number(finite(line.mean).at(-1))}${line.odd ? `; ${count(line.odd)} of ${count(line.points)} are no numbers` : ""}`,
    hit(x, y, state) {
      const plot = geometry(state);
      let best = 0;
      line.xs.forEach((value, index) => {
        if (Math.abs(plot.x(value) - x) < Math.abs(plot.x(line.xs[best]) - x)) best = index;
      });
      return best;
    },
    draw(pen, state) {
      if (!empty) drawLine(pen, state, geometry(state), line, [bottomValue, topValue], [first, last]);
    },
  });
  return make(
    "figure",
    { class: "scalar" },
    make("figcaption", {}, bdi(line.title)),
    view.element,
    asTable(["As a table", make("span", { class: "unseen" }, `: ${line.title}`)], () =>
      dataTable(
        line.title,
        [
          {
            title: line.bySteps ? "step" : "seconds",
            number: true,
            value: (index) => line.xs[index],
            text: (index) => number(line.xs[index]),
          },
          ...(band
            ? [
                ["mean", line.mean],
                ["minimum", line.least],
                ["maximum", line.most],
              ]
            : [["value", line.mean]]
          ).map(([title, values]) => ({
            title,
            number: true,
            value: (index) => values[index] ?? -Infinity,
            text: (index) => number(values[index]),
          })),
        ],
        line.xs.map((_, index) => index),
        { page: 10 },
      ),
    ),
  );
}

function drawLine(pen, state, plot, line, [bottomValue, topValue], ends) {
  const { left, right, top, bottom, x, y } = plot;
  pen.fillStyle = palette.soft;
  for (const value of ticks(bottomValue, topValue, 3).at) {
    pen.fillStyle = palette.line;
    pen.fillRect(left, Math.round(y(value)), right - left, 1);
    pen.fillStyle = palette.soft;
    const text = number(value);
    pen.fillText(text, left - 5 - pen.measureText(text).width, y(value) + 4);
  }
  const words = ends.map((value) => (line.bySteps ? String(value) : seconds(value)));
  pen.fillText(words[0], left, bottom + 15);
  if (words[1] !== words[0]) pen.fillText(words[1], right - pen.measureText(words[1]).width, bottom + 15);
  pen.strokeStyle = palette.blue;
  pen.fillStyle = palette.blue;
  if (line.least !== line.mean) {
    pen.globalAlpha = 0.25;
    line.xs.forEach((value, index) => {
      if (line.least[index] !== null)
        pen.fillRect(
          x(value) - 1,
          y(line.most[index]),
          Math.max(1, (right - left) / line.xs.length),
          Math.max(1, y(line.least[index]) - y(line.most[index])),
        );
    });
    pen.globalAlpha = 1;
  }
  pen.lineWidth = 1.8;
  pen.beginPath();
  let down = false;
  line.mean.forEach((value, index) => {
    if (value === null) {
      down = false;
      return;
    }
    if (down) pen.lineTo(x(line.xs[index]), y(value));
    else pen.moveTo(x(line.xs[index]), y(value));
    if (!down || line.xs.length < 40) pen.fillRect(x(line.xs[index]) - 2, y(value) - 2, 4, 4);
    down = true;
  });
  pen.stroke();
  const chosen = state.hover >= 0 ? state.hover : state.at;
  if (chosen >= 0) {
    pen.strokeStyle = palette.ink;
    pen.lineWidth = 1;
    pen.strokeRect(x(line.xs[chosen]), top, 0.5, bottom - top);
    if (line.mean[chosen] !== null) {
      pen.fillStyle = palette.ink;
      pen.beginPath();
      pen.arc(x(line.xs[chosen]), y(line.mean[chosen]), 4, 0, 7);
      pen.fill();
    }
  }
}
