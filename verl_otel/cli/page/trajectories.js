// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The slowest trajectories of the run or of the chosen step; one of them with its turns and tools.

// A trajectory as one lane: its own critical path if known, else its activities.
function trajectoryLane(trajectory, group, shift = 0) {
  const words = `Trajectory ${name(trajectory.label)}: ${seconds(micros(trajectory.at[1]))}.`;
  const items = [];
  if (trajectory.path.length) {
    for (const row of trajectory.path.map(part))
      items.push({ ...pathItem(row), from: row.from + shift, to: row.to + shift, words: `${words} ${partWords(row)}` });
  } else {
    items.push({
      from: micros(trajectory.at[0]) + shift,
      to: micros(trajectory.at[0] + trajectory.at[1]) + shift,
      style: look.kind("trajectory"),
      text: "",
      words,
      thin: true,
    });
    for (const row of trajectory.doing)
      if (name(row[2]) !== "server") items.push({ ...doingItem(row), words: `${words} ${doingItem(row).words}` });
  }
  return { label: `trajectory ${name(trajectory.label)}`, group, items };
}

// An activity of a trajectory. Row: start, length, kind, name, process, turn, failed.
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

function spent(trajectory, kind) {
  const parts = trajectory.parts.filter((row) => name(row[0]) === kind);
  const sum = parts.reduce((all, row) => all + row[2], 0);
  const calls = parts.reduce((all, row) => all + row[3], 0);
  return { sum, text: parts.length ? `${sum.toFixed(2)}${calls > 1 ? ` (${calls}×)` : ""}` : "" };
}

function trajectoriesSection(section) {
  const body = make("div");
  const card = make("div", { class: "card" });
  let scope = run.slowest.length || !total ? "run" : "step";
  let index = -1;
  section.append(
    runOrStep(scope, (value) => {
      scope = value;
      show();
    }),
    body,
    card,
  );

  function show() {
    const shown = scope === "run" ? run.slowest : (run.details[index]?.slowest ?? []);
    card.replaceChildren();
    card.hidden = true;
    if (!shown.length) {
      body.replaceChildren(
        make(
          "p",
          { class: "soft" },
          scope === "run" ? "No trajectory was kept." : "The trajectories of this step were not kept.",
        ),
      );
      return;
    }
    const lanes = shown
      .slice(0, 20)
      .map((trajectory, place) => ({ ...trajectoryLane(trajectory, place, -micros(trajectory.at[0])), trajectory }));
    const view = laneChart(
      {
        label: "Slowest trajectories",
        axis: axisSeconds,
        end: Math.max(...shown.map((trajectory) => micros(trajectory.at[1]))),
        hint: "Each lane is a trajectory from its own start. ↑ ↓ between trajectories, ← → along one; Enter shows all of it.",
        enter: (item) => open(lanes[item.lane].trajectory),
      },
      lanes,
    );
    const kinds = [...new Set(lanes.flatMap((lane) => lane.items.map((item) => item.style)))];
    const styles = Object.values(KINDS).filter(([hue, pattern]) =>
      kinds.some((style) => style[0] === hue && style[1] === pattern),
    );
    body.replaceChildren(view.element, legend(styles.map((style) => [style, style[2]])), listOf(shown));
    open(shown[0], true);
  }

  function listOf(shown) {
    return dataTable(
      scope === "run" ? "Slowest trajectories of the run" : `Slowest trajectories of step ${stepName(index)}`,
      [
        { title: "trajectory", text: (trajectory) => name(trajectory.label) },
        {
          title: "step",
          number: true,
          value: (trajectory) => trajectory.step ?? -1,
          text: (trajectory) => (trajectory.step === null ? "?" : String(trajectory.step)),
        },
        {
          title: "seconds",
          number: true,
          value: (trajectory) => trajectory.at[1],
          text: (trajectory) => micros(trajectory.at[1]).toFixed(2),
        },
        ...["llm", "tool", "reward", "wait"].map((kind) => ({
          title: { llm: "LLM", tool: "tools", reward: "reward", wait: "waiting" }[kind],
          number: true,
          value: (trajectory) => spent(trajectory, kind).sum,
          text: (trajectory) => spent(trajectory, kind).text,
        })),
        {
          title: "turns",
          number: true,
          value: (trajectory) => trajectory.turns,
          text: (trajectory) => (trajectory.turns ? String(trajectory.turns) : ""),
        },
        {
          title: "tokens: prompt + response",
          number: true,
          value: (trajectory) => trajectory.tokens[1],
          text: (trajectory) =>
            trajectory.tokens[0] + trajectory.tokens[1] ? `${count(trajectory.tokens[0])} + ${count(trajectory.tokens[1])}` : "",
        },
        {
          title: "score",
          number: true,
          value: (trajectory) => trajectory.score ?? -Infinity,
          text: (trajectory) => number(trajectory.score),
        },
        { title: "finish", text: (trajectory) => name(trajectory.finish) },
        { title: "notes", text: (trajectory) => trajectory.marks.map(name).join(", ") },
      ],
      shown,
      {
        page: 10,
        act: (trajectory) => {
          open(trajectory);
          card.querySelector("h3").focus();
        },
      },
    );
  }

  function open(trajectory, quiet = false) {
    const begin = trajectory.at[0];
    const shift = -micros(begin);
    const rows = trajectory.doing.map((row) => ({ row, item: doingItem(row) }));
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
    if (trajectory.path.length) lanes.unshift({ ...trajectoryLane(trajectory, 0, shift), label: "what it waited for" });
    const view = laneChart(
      { label: `Trajectory ${name(trajectory.label)}`, axis: axisSeconds, end: micros(trajectory.at[1]) },
      lanes.length ? lanes : [trajectoryLane(trajectory, 0, shift)],
    );
    const longest = [...trajectory.parts]
      .sort((first, second) => second[2] - first[2])
      .map(
        (row) =>
          `${{ llm: "LLM calls", tool: "tool", reward: "reward", wait: "waiting (queue, transfer, own code)" }[name(row[0])] ?? name(row[0])} ${name(row[0]) === "tool" ? name(row[1]) : ""}`.trim() +
          ` ${seconds(row[2])}${row[3] > 1 ? ` in ${row[3]} calls` : ""}${row[4] === null ? "" : `, longest in turn ${row[4]}`}`,
      );
    card.hidden = false;
    card.replaceChildren(
      make("h3", { tabIndex: -1 }, "Trajectory ", bdi(name(trajectory.label)), `: ${seconds(micros(trajectory.at[1]))}`),
      make(
        "p",
        {},
        [
          name(trajectory.where) && `on ${name(trajectory.where)}`,
          trajectory.turns && counted(trajectory.turns, "turn"),
          trajectory.marks.map(name).join(", "),
          longest.join("; "),
        ]
          .filter(Boolean)
          .join(" · "),
      ),
      view.element,
      trajectory.left ? make("p", { class: "soft" }, `${counted(trajectory.left, "shorter call")} left out.`) : "",
      asTable("Its calls as a table", () =>
        dataTable(
          `Calls of trajectory ${name(trajectory.label)}`,
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
    if (!quiet) announce(`Trajectory ${name(trajectory.label)} is shown below.`);
  }

  return {
    show(chosen) {
      index = chosen;
      if (scope === "step" || !body.childElementCount) show();
    },
  };
}
