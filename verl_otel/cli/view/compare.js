// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: their scalars in one chart each, and the differences with their significance.

readPalette();
const [first, second] = NAMES;
byId("name").textContent = `${first} and ${second}`;
const both = [first, second];
const apiOf = (run) => `${ROOT}api/runs/${encodeURIComponent(run)}`;
const grid = make("div", { class: "grid" });
byId("learning-body").append(grid);
const views = new Map();
const PREFERRED = /^verl\.(critic\.(rewards|score)\.mean|actor\.(pg_loss|kl_loss|ppo_kl|entropy|grad_norm)|response_length\.mean)$/;

const steps = both.map(() => ({ settled: 0, number: [], seconds: [] }));
let shown = "";

async function updateSteps(run, known) {
  const rows = await fetchJson(`${apiOf(run)}/steps?first=${known.settled}`);
  for (const key of ["number", "seconds"]) splice(known[key], rows[key], rows.first);
  known.settled = rows.settled;
}

poll(async () => {
  const states = await Promise.all(both.map((run) => fetchJson(apiOf(run))));
  const names = [...new Set(states.flatMap((state) => state.scalars))].filter((each) => PREFERRED.test(each));
  const query = names.map((each) => `name=${encodeURIComponent(each)}`).join("&");
  const lines = await Promise.all(both.map((run) => (query ? fetchJson(`${apiOf(run)}/scalars?${query}`) : [])));
  await Promise.all(both.map((run, place) => updateSteps(run, steps[place])));
  show("seconds of a step", steps.map((each, place) => ({ title: both[place], x: each.number.map((value, index) => value ?? index), y: each.seconds })));
  for (const each of names)
    show(each.replace(/^verl\./, ""), lines.flatMap((found, place) => found.filter((line) => line.name === each && !Object.keys(line.labels).length).map((line) => ({ title: both[place], x: line.x, y: line.y }))));
  const compared = await fetchJson(`${ROOT}api/compare/${both.map(encodeURIComponent).join("/")}`);
  if (JSON.stringify(compared) === shown) return;
  shown = JSON.stringify(compared);
  byId("rows-body").replaceChildren(
    ...compared.notes.map((text) => make("p", {}, bdi(text))),
    dataTable("Typical step of each run", [
      { title: "what", text: (row) => row.name },
      { title: "first", number: true, value: (row) => row.a.typical ?? 0, text: (row) => number(row.a.typical) },
      { title: "second", number: true, value: (row) => row.b.typical ?? 0, text: (row) => number(row.b.typical) },
      { title: "change", number: true, value: (row) => row.change ?? 0, text: (row) => (row.change === null ? "" : `${(row.change * 100).toFixed(1)} %`) },
      { title: "unit", text: (row) => row.unit },
      { title: "significant", text: (row) => (row.significant ? "yes" : "") },
    ], compared.rows),
  );
});

function show(title, lines) {
  if (!views.has(title)) {
    views.set(title, lineView(title));
    grid.append(views.get(title).element);
  }
  views.get(title).update(lines);
}
