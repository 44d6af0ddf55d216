// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Prompts and responses of a step, from verl's own files: all groups, or the samples of one group side by side.

readPalette();
const [runName, kind, step, group] = NAMES;
const runAddress = `${ROOT}run/${encodeURIComponent(runName)}`;
const stepAddress = `${runAddress}/samples/${kind}/${step}`;
byId("name").textContent = runName;
byId("run").href = runAddress;
byId("step").href = stepAddress;
const words = { tool_call: "calls a tool", tool_response: "the tool answers", text: "" };

function sampleCard(sample, place) {
  const title = `Response ${sample.rollout_index ?? place}`;
  return make("article", { class: "sample", "aria-label": title },
    make("h3", {}, title, sample.score === null ? "" : `: score ${number(sample.score)}`),
    ...sample.parts.map((part) =>
      make("div", {}, words[part.kind] ? make("p", { class: "soft" }, words[part.kind]) : "", make("pre", {}, bdi(part.text)))),
    factList([["expected", sample.expected ?? ""], ...Object.entries(sample.facts)]),
  );
}

let shown = "";
poll(async () => {
  const query = `step=${encodeURIComponent(step)}&kind=${encodeURIComponent(kind)}${group === undefined ? "" : `&group=${encodeURIComponent(group)}`}`;
  const rows = await fetchJson(`${ROOT}api/runs/${encodeURIComponent(runName)}/samples?${query}`);
  if (JSON.stringify(rows) === shown) return;
  shown = JSON.stringify(rows);
  const what = `${kind === "validation" ? "Validation at step" : "Step"} ${step}`;
  byId("samples-title").textContent = group === undefined ? `${what}: samples` : `${what}: sample ${group}`;
  document.title = `${what} · ${runName} · verl-otel`;
  byId("samples-body").replaceChildren(
    ...(!rows.length
      ? [make("p", { class: "soft" }, "verl has written no samples of this step: trainer.rollout_data_dir switches that on, and its folder must be readable here.")]
      : group === undefined
        ? [groupTable(rows)]
        : [make("h3", {}, "Prompt"), make("pre", { tabIndex: 0, role: "region", "aria-label": "Prompt" }, bdi(rows[0].prompt)), make("div", { class: "samples" }, ...rows.map(sampleCard))]),
  );
});

function groupTable(rows) {
  return dataTable(counted(rows.length, "prompt"), [
    { title: "sample", text: (row) => make("a", { href: `${stepAddress}/${encodeURIComponent(row.group)}` }, bdi(row.group)), value: (row) => row.group },
    { title: "responses", number: true, value: (row) => row.samples, text: (row) => count(row.samples) },
    { title: "lowest score", number: true, value: (row) => row.scores[0] ?? -Infinity, text: (row) => number(row.scores[0]) },
    { title: "highest score", number: true, value: (row) => row.scores[1] ?? -Infinity, text: (row) => number(row.scores[1]) },
    { title: "prompt", text: (row) => row.prompt },
  ], rows);
}
