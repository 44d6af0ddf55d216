// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// What a run does now, and its trajectories, events and log lines. Unchanged parts are not made again: they keep focus and place.

const shownParts = new Map();
function replace(id, data, build) {
  const text = JSON.stringify(data);
  if (shownParts.get(id) === text) return;
  shownParts.set(id, text);
  byId(id).replaceChildren(...[build(data)].flat());
}

function showState(state) {
  const mark = byId("state");
  mark.textContent = state.read < 0.999 ? `${state.state || "?"}, ${percent(state.read)} read` : state.state || "?";
  mark.className = `state state-${["failed", "crashed"].includes(state.state) ? "failed" : "other"}`;
  const title = state.state === "running" ? "Now" : "At its end";
  byId("now-title").textContent = title;
  byId("now-link").textContent = title;
  replace("headline", state.headline, (lines) => lines.map((line) => make("p", {}, bdi(line))));
  replace("now-body", { ...state, slowest: 0, events: 0, scalars: 0, headline: 0, end: 0, log: 0 }, nowOf);
  replace("trajectories-body", { open: state.open, slowest: state.slowest, samples: state.samples }, trajectoriesOf);
  replace("events-body", { events: state.events, missing: state.missing, unfinished: state.unfinished, log: state.log }, eventsOf);
}

function nowOf(state) {
  const last = state.last_step;
  const current = state.open.find((work) => work.name === "verl.step");
  const waiting = state.open.filter((work) => work.name === "verl.trajectory").length;
  return [
    ...state.findings.map((line) =>
      make("p", { class: "finding" }, bdi(line.text), line.next ? make("span", { class: "soft" }, " To do: ", bdi(line.next), ".") : ""),
    ),
    factList([
      ["current step", current ? `${current.step ?? "?"}, for ${seconds(current.age)}, in ${current.last_child || "no phase"}` : ""],
      ["last step", last ? `${last.number ?? "?"}, ${seconds(last.seconds)}${last.failed ? `, ${last.failed}` : ""}` : "none has ended"],
      ["its verdict", last ? last.verdicts.join("; ") || "nothing unusual" : ""],
      ["open trajectories", waiting ? count(waiting) : ""],
      ["samples of the last step", last && last.number !== null && state.samples.includes("training") ? make("a", { href: `${ROOT}run/${encodeURIComponent(runName)}/samples/training/${last.number}` }, "prompts and responses") : ""],
      ["alarms", state.findings.length ? "" : "none"],
    ]),
    ...indicatorsOf(state),
  ];
}

// The five core indicators with the bands of the run's profile.
function indicatorsOf({ profile, indicators }) {
  const rows = indicators.filter((row) => row.value !== null);
  const shown = (row, value) => (value === null ? "" : row.is_share ? percent(value) : number(value));
  const band = (row) =>
    row.low === null && row.high === null ? "" : row.low === null ? `up to ${shown(row, row.high)}` : row.high === null ? `from ${shown(row, row.low)}` : `${shown(row, row.low)} to ${shown(row, row.high)}`;
  if (!rows.length) return [];
  return [
    dataTable(`Core indicators, profile ${profile}`, [
      { title: "indicator", text: (row) => row.name },
      { title: "last value", number: true, value: (row) => row.value, text: (row) => shown(row, row.value) },
      { title: "healthy", text: band },
      { title: "state", text: (row) => (row.state === "below" || row.state === "above" ? make("b", {}, `${row.state} its band`) : row.state) },
    ], rows),
  ];
}

// The samples of a trajectory's group, where verl writes them.
function samplesLink(row, text) {
  if (row.step === null) return text;
  return make("a", { href: `${ROOT}run/${encodeURIComponent(runName)}/samples/training/${row.step}/${encodeURIComponent(row.uid)}` }, bdi(text));
}

function trajectoriesOf({ open, slowest, samples }) {
  const has = samples.includes("training");
  const openRows = open.filter((work) => work.name === "verl.trajectory");
  return [
    openRows.length
      ? dataTable("Open trajectories, the oldest first", [
          { title: "sample", text: (row) => row.uid || "?" },
          { title: "step", number: true, value: (row) => row.step ?? -1, text: (row) => (row.step === null ? "" : String(row.step)) },
          { title: "for", number: true, value: (row) => row.age, text: (row) => seconds(row.age) },
          { title: "last part", text: (row) => row.last_child },
        ], openRows, { page: 10 })
      : make("p", { class: "soft" }, "No trajectory is open."),
    dataTable("Slowest trajectories", [
      { title: "trajectory", text: (row) => (has ? samplesLink(row, row.label) : row.label), value: (row) => row.label },
      { title: "step", number: true, value: (row) => row.step ?? -1, text: (row) => (row.step === null ? "" : String(row.step)) },
      { title: "seconds", number: true, value: (row) => row.seconds, text: (row) => row.seconds.toFixed(2) },
      { title: "turns", number: true, value: (row) => row.turns, text: (row) => String(row.turns || "") },
      { title: "score", number: true, value: (row) => row.score ?? -Infinity, text: (row) => number(row.score) },
      { title: "longest part", text: (row) => longestPart(row) },
    ], slowest, { page: 10 }),
  ];
}

function longestPart(row) {
  const part = [...row.parts].sort((a, b) => b.seconds - a.seconds)[0];
  return part ? `${part.kind} ${part.name} ${seconds(part.seconds)}` : "";
}

function eventsOf({ events, missing, unfinished, log }) {
  const dead = unfinished.filter((row) => row.dead);
  return [
    ...[...events].reverse().map((event) =>
      make("p", { class: "event" }, make("b", {}, `${event.kind}${event.resolved ? ", over" : ""} `), make("span", { class: "soft" }, clock(event.time * 1000), " "), bdi(event.text)),
    ),
    ...dead.map((row) => make("p", { class: "finding" }, bdi(`${row.process} stopped writing ${seconds(row.silent)} before the others.`))),
    events.length || dead.length ? "" : make("p", { class: "soft" }, "No stall and no crash was reported."),
    log?.length ? make("h3", {}, "Log, newest first") : "",
    log?.length ? make("pre", { tabIndex: 0, role: "region", "aria-label": "Log" }, [...log].reverse().join("\n")) : "",
    missing.length ? make("details", {}, make("summary", {}, `What is missing (${count(missing.length)})`), ...missing.map((text) => make("p", {}, bdi(text)))) : "",
  ].filter(Boolean);
}

function stepTableOf(table) {
  const rows = table.number.map((_, index) => index).reverse();
  return asTable("Steps as a table", () =>
    dataTable("Steps, the newest first", [
      { title: "step", number: true, value: (index) => table.number[index] ?? -1, text: (index) => String(table.number[index] ?? "?") },
      { title: "seconds", number: true, value: (index) => table.seconds[index], text: (index) => table.seconds[index].toFixed(2) },
      { title: "verdicts", number: true, value: (index) => table.verdicts[index], text: (index) => String(table.verdicts[index] || "") },
      { title: "outcome", text: (index) => table.failed[index] },
      ...Object.keys(table.phases).slice(0, 12).map((key) => ({
        title: key, number: true, value: (index) => table.phases[key][index], text: (index) => table.phases[key][index].toFixed(2),
      })),
    ], rows, { page: 10 }),
  );
}
