// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The slowest trajectories of the run or of the chosen step; one of them with its turns and tools.

// A trajectory as one lane: its own critical path where it is known, else what was done for it.
function trajectoryLane(each, group, shift = 0) {
  const words = `Trajectory ${name(each.label)}: ${seconds(micros(each.at[1]))}.`;
  const items = [];
  if (each.path.length) {
    for (const row of each.path.map(part))
      items.push({ ...pathItem(row), from: row.from + shift, to: row.to + shift, words: `${words} ${partWords(row)}` });
  } else {
    items.push({
      from: micros(each.at[0]) + shift,
      to: micros(each.at[0] + each.at[1]) + shift,
      style: look.kind("trajectory"),
      text: "",
      words,
      thin: true,
    });
    for (const row of each.doing)
      if (name(row[2]) !== "server") items.push({ ...doingItem(row), words: `${words} ${doingItem(row).words}` });
  }
  return { label: `trajectory ${name(each.label)}`, group, items };
}

// Something done for a trajectory. Row: start, length, kind, name, process, turn, failed.
function doingItem([from, length, kind, label, process, turn, broken]) {
  const [hue, pattern, words] = look.kind(name(kind) === "llm" ? "llm" : name(kind));
  const text = [name(kind) === "llm" ? "LLM call" : words, name(label)].filter(Boolean).join(" ");
  return {
    from: micros(from),
    to: micros(from + length),
    style: [hue, pattern],
    text,
    brief: name(kind) === "tool" ? name(label) : name(kind),
    failed: Boolean(broken),
    words: `${text}: ${seconds(micros(length))}${turn === null ? "" : `, turn ${turn}`}${name(process) ? `, on ${name(process)}` : ""}${broken ? ", FAILED" : ""}.`,
  };
}

function spent(each, kind) {
  const mine = each.parts.filter((row) => name(row[0]) === kind);
  const sum = mine.reduce((all, row) => all + row[2], 0);
  const calls = mine.reduce((all, row) => all + row[3], 0);
  return { sum, text: mine.length ? `${sum.toFixed(2)}${calls > 1 ? ` (${calls}×)` : ""}` : "" };
}

function trajectoriesSection(section) {
  const body = make("div");
  const one = make("div", { class: "card" });
  let which = run.slowest.length || !total ? "run" : "step";
  let index = -1;
  section.append(
    runOrStep(which, (value) => {
      which = value;
      show();
    }),
    body,
    one,
  );

  function show() {
    const found = which === "run" ? run.slowest : (run.details[index]?.slowest ?? []);
    one.replaceChildren();
    one.hidden = true;
    if (!found.length) {
      body.replaceChildren(
        make(
          "p",
          { class: "soft" },
          which === "run" ? "No trajectory was kept." : "The trajectories of this step were not kept.",
        ),
      );
      return;
    }
    const lanes = found
      .slice(0, 20)
      .map((each, place) => ({ ...trajectoryLane(each, place, -micros(each.at[0])), each }));
    const made = laneChart(
      {
        label: "Slowest trajectories",
        axis: axisSeconds,
        end: Math.max(...found.map((each) => micros(each.at[1]))),
        hint: "Each lane is a trajectory from its own start. ↑ ↓ between trajectories, ← → along one; Enter shows all of it.",
        enter: (item) => open(lanes[item.lane].each),
      },
      lanes,
    );
    const kinds = [...new Set(lanes.flatMap((lane) => lane.items.map((item) => item.style)))];
    const known = Object.values(KINDS).filter(([hue, pattern]) =>
      kinds.some((style) => style[0] === hue && style[1] === pattern),
    );
    body.replaceChildren(made.element, legend(known.map((style) => [style, style[2]])), listOf(found));
    open(found[0], true);
  }

  function listOf(found) {
    return dataTable(
      which === "run" ? "Slowest trajectories of the run" : `Slowest trajectories of step ${stepName(index)}`,
      [
        { title: "trajectory", text: (each) => name(each.label) },
        {
          title: "step",
          number: true,
          value: (each) => each.step ?? -1,
          text: (each) => (each.step === null ? "?" : String(each.step)),
        },
        { title: "seconds", number: true, value: (each) => each.at[1], text: (each) => micros(each.at[1]).toFixed(2) },
        ...["llm", "tool", "reward", "wait"].map((kind) => ({
          title: { llm: "LLM", tool: "tools", reward: "reward", wait: "waiting" }[kind],
          number: true,
          value: (each) => spent(each, kind).sum,
          text: (each) => spent(each, kind).text,
        })),
        {
          title: "turns",
          number: true,
          value: (each) => each.turns,
          text: (each) => (each.turns ? String(each.turns) : ""),
        },
        {
          title: "tokens: prompt + response",
          number: true,
          value: (each) => each.tokens[1],
          text: (each) =>
            each.tokens[0] + each.tokens[1] ? `${count(each.tokens[0])} + ${count(each.tokens[1])}` : "",
        },
        { title: "score", number: true, value: (each) => each.score ?? -Infinity, text: (each) => number(each.score) },
        { title: "finish", text: (each) => name(each.finish) },
        { title: "notes", text: (each) => each.marks.map(name).join(", ") },
      ],
      found,
      {
        page: 10,
        act: (each) => {
          open(each);
          one.querySelector("h3").focus();
        },
      },
    );
  }

  function open(each, quiet = false) {
    const begin = each.at[0];
    const shift = -micros(begin);
    const rows = each.doing.map((row) => ({ row, item: doingItem(row) }));
    for (const { item } of rows) {
      item.from += shift;
      item.to += shift;
    }
    const byLabel = new Map();
    for (const { row, item } of rows) {
      const key = name(row[2]) === "server" ? `server ${name(row[4])}` : item.text;
      if (!byLabel.has(key)) byLabel.set(key, { label: key, group: 1, items: [] });
      byLabel.get(key).items.push(item);
    }
    const lanes = [...byLabel.values()].slice(0, 16);
    if (each.path.length) lanes.unshift({ ...trajectoryLane(each, 0, shift), label: "what it waited for" });
    const made = laneChart(
      { label: `Trajectory ${name(each.label)}`, axis: axisSeconds, end: micros(each.at[1]) },
      lanes.length ? lanes : [trajectoryLane(each, 0, shift)],
    );
    const longest = [...each.parts]
      .sort((first, second) => second[2] - first[2])
      .map(
        (row) =>
          `${{ llm: "LLM calls", tool: "tool", reward: "reward", wait: "waiting (queue, transfer, own code)" }[name(row[0])] ?? name(row[0])} ${name(row[0]) === "tool" ? name(row[1]) : ""}`.trim() +
          ` ${seconds(row[2])}${row[3] > 1 ? ` in ${row[3]} calls` : ""}${row[4] === null ? "" : `, longest in turn ${row[4]}`}`,
      );
    one.hidden = false;
    one.replaceChildren(
      make("h3", { tabIndex: -1 }, "Trajectory ", bdi(name(each.label)), `: ${seconds(micros(each.at[1]))}`),
      make(
        "p",
        {},
        [
          name(each.where) && `on ${name(each.where)}`,
          each.turns && `${each.turns} turns`,
          each.marks.map(name).join(", "),
          longest.join("; "),
        ]
          .filter(Boolean)
          .join(" · "),
      ),
      made.element,
      each.left ? make("p", { class: "soft" }, `${count(each.left)} shorter calls are left out.`) : "",
      asTable("Its calls as a table", () =>
        dataTable(
          `Calls of trajectory ${name(each.label)}`,
          [
            { title: "from", number: true, value: ({ item }) => item.from, text: ({ item }) => seconds(item.from) },
            {
              title: "seconds",
              number: true,
              value: ({ row }) => row[1],
              text: ({ row }) => micros(row[1]).toFixed(3),
            },
            { title: "what", text: ({ item }) => item.text },
            {
              title: "turn",
              number: true,
              value: ({ row }) => row[5] ?? -1,
              text: ({ row }) => (row[5] === null ? "" : String(row[5])),
            },
            { title: "process", text: ({ row }) => name(row[4]) },
            { title: "outcome", text: ({ row }) => (row[6] ? "FAILED" : "") },
          ],
          rows,
        ),
      ),
    );
    if (!quiet) say(`Trajectory ${name(each.label)} is shown below.`);
  }

  return {
    show(chosen) {
      index = chosen;
      if (which === "step" || !body.childElementCount) show();
    },
  };
}
