// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The chosen step: what delayed it, its critical path as a waterfall, possible savings.

function stepSection(section) {
  const body = make("div");
  section.append(body);
  return {
    show(index) {
      byId("step-title").textContent =
        `Step ${stepName(index)}: ${seconds(stepSeconds(index))}${failed.has(index) ? `, ${failed.get(index)}` : ""}`;
      const detail = run.details[index];
      body.replaceChildren(
        facts(index, detail),
        ...held(index),
        ...(detail
          ? waterfall(index, detail)
          : [
              make(
                "p",
                { class: "soft" },
                `The page has room for the waterfalls of ${counted(Object.keys(run.details).length, "step")}: the worst, and some of all. Of this one it keeps the sums; verl-otel explain --step ${stepName(index)} says the rest.`,
              ),
            ]),
        ...groups(index),
        ...(detail ? [...savings(index, detail), ...stragglers(detail)] : []),
      );
    },
  };
}

function facts(index, detail) {
  const [gpu, trained] = [table.gpu_seconds[index], table.trained[index]];
  const lengths = table.quantiles[index] ?? [];
  const rows = [
    ["began", clock(run.start + table.start[index])],
    ["trajectories trained on", count(table.members[index])],
    [
      "how long they took: shortest · median · 95 % · 99 % · longest",
      lengths.length ? lengths.map((length) => seconds(length / table.unit)).join(" · ") : "",
    ],
    [
      DEVICE_TIME,
      !gpu
        ? ""
        : `${seconds(gpu)}${trained ? ` · ${counted(trained, "token")} trained on · ${price(gpu, trained)}` : ""}`,
    ],
    [
      "followed by a validation of",
      run.validations
        .filter(([after]) => after === table.number[index])
        .map(([, , length]) => seconds(length / 1000))
        .join(", "),
    ],
    ["clocks may be apart by", detail?.doubt ? seconds(detail.doubt) : ""],
  ];
  return factList(rows);
}

function held(index) {
  return (verdictsOf.get(index) ?? []).map((row) => make("p", { class: "finding" }, row[1]));
}

function waterfall(index, detail) {
  const stepLength = stepSeconds(index);
  const path = detail.path.map(part);
  if (!path.length)
    return [make("p", { class: "soft" }, "The critical path of this step was not kept; its sums are below.")];
  const lanes = [];
  lanes.push({ label: "phase", group: 0, items: phaseItems(path, stepLength) }, ...pathLanes(path, stepLength));
  for (const trajectory of detail.slowest) lanes.push(trajectoryLane(trajectory, 2));
  const words = { gen: "gen begins", rollouts: "rollouts ended", noticed: "trainer noticed" };
  const marks = Object.entries(detail.marks)
    .map(([key, at]) => [micros(at), words[key], key === "rollouts"])
    .filter(([at]) => at >= 0 && at <= stepLength)
    .sort((a, b) => a[0] - b[0]);
  const styles = path.map(({ kind }) => [kind, [look.kind(kind), look.kind(kind)[2]]]);
  const shown = [...new Map(styles).values()];
  const view = laneChart(
    {
      label: `Waterfall of step ${stepName(index)}`,
      axis: axisSeconds,
      end: stepLength,
      marks,
      connected: 1,
      hint: "The critical path: at each moment what everything waited for.",
    },
    lanes,
  );
  return [
    make("h3", {}, "Critical path"),
    make(
      "p",
      { class: "soft" },
      "What everything waited for, from the first moment to the last: each part begins where the one before ends. Below it the slowest trajectories.",
      detail.parts > path.length
        ? ` ${count(detail.parts)} parts are drawn as ${count(path.length)}: short neighbours are put together.`
        : "",
    ),
    view.element,
    legend(shown),
    legend([
      ...new Map(
        path.map((segment) => [
          segment.phase || "no phase",
          [look.phase(segment.phase || "no phase"), `phase ${segment.phase || "none"}`],
        ]),
      ).values(),
    ]),
    detail.whole
      ? ""
      : make(
          "p",
          { class: "soft" },
          "This step is kept in brief: its short parts are put together and calls are left out.",
        ),
    asTable("The critical path as a table", () =>
      pathTable(`Critical path of step ${stepName(index)}`, path, stepLength),
    ),
  ];
}

function groups(index) {
  const { keys, columns } = table.groups;
  const rest = (row) => (row.kind === "other" ? 1 : 0);
  const rows = keys
    .map(([kind, label], column) => ({ kind, label, value: columns[column][index] / table.unit }))
    .filter((row) => row.value >= 0.005 * stepSeconds(index))  // smaller ones round to 0 %
    .sort((a, b) => rest(a) - rest(b) || b.value - a.value);
  if (!rows.length) return [];
  return [
    bars(
      "What the critical path consists of",
      ["what", "seconds", "share"],
      rows.map(({ kind, label, value }) => {
        const words = kind === "other" ? "everything else" : look.kind(kind)[2];
        return {
          title: label ? `${words} ${label}` : words,
          value,
          text: value.toFixed(2),
          style: look.kind(kind),
          note: percent(value / stepSeconds(index)),
        };
      }),
    ),
  ];
}

function savings(index, detail) {
  const stepLength = stepSeconds(index);
  const worthy = detail.savings.filter(([, , value]) => value >= 0.005 * stepLength);
  if (!worthy.length)
    return detail.savings.length
      ? [make("p", { class: "soft" }, "No trajectory, tool or replica alone made this step noticeably longer.")]
      : [];
  const words = { slowest: "the slowest trajectory", "1%": "the slowest 1 %", "5%": "the slowest 5 %" };
  return [
    bars(
      "By how much it would have been shorter",
      ["if these had been as fast as the others", "seconds", "trajectories"],
      worthy.map(([what, members, value]) => ({
        title: words[name(what)] ?? name(what),
        value,
        text: value.toFixed(2),
        style: ["vermillion"],
        note: count(members),
      })),
      stepLength,
    ),
  ];
}

function stragglers(detail) {
  if (!detail.stragglers.length) return [];
  return [
    dataTable(
      "Ranks that came late",
      [
        { title: "rank", number: true, value: (row) => row[1], text: (row) => String(row[1]) },
        { title: "method", text: (row) => name(row[0]) },
        { title: "process", text: (row) => name(row[2]) },
        { title: "later than the median by", number: true, value: (row) => row[3], text: (row) => seconds(row[3]) },
        { title: "seen from", text: (row) => name(row[4]) },
      ],
      detail.stragglers,
    ),
  ];
}
