// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The page of one run: what is new is fetched every few seconds and added to what is shown.

readPalette();
const [runName] = NAMES;
const base = `${ROOT}api/runs/${encodeURIComponent(runName)}`;
byId("name").textContent = runName;
document.title = `${runName} · verl-otel`;
byId("report").href = `${location.pathname}/report`;

const table = { number: [], seconds: [], verdicts: [], failed: [], phases: {}, gpu: {} };
const phaseView = stackView("Time of each step by phase", look.phase);
const gpuView = stackView("Device time of each step by cause", look.cause);
const stepTable = make("div");
byId("steps-body").append(phaseView.element, stepTable);
byId("gpu-body").append(gpuView.element);

let settled = 0;
let shownRows = "";
async function updateSteps() {
  const rows = await fetchJson(`${base}/steps?first=${settled}`);
  const text = JSON.stringify(rows);
  if (text === shownRows) return;
  shownRows = text;
  for (const key of ["number", "seconds", "verdicts", "failed"]) splice(table[key], rows[key], rows.first);
  for (const group of ["phases", "gpu"]) {
    for (const key of new Set([...Object.keys(table[group]), ...Object.keys(rows[group])])) {
      table[group][key] ??= [];
      splice(table[group][key], rows[group][key] ?? rows.number.map(() => 0), rows.first);
    }
  }
  settled = rows.settled;
  phaseView.update(table.number, table.phases);
  gpuView.update(table.number, table.gpu);
  byId("gpu").hidden = !Object.keys(table.gpu).length;
  const isOpen = stepTable.firstElementChild?.open;
  stepTable.replaceChildren(stepTableOf(table));
  stepTable.firstElementChild.open = Boolean(isOpen);
}

// Scalars: the usual ones where the run has them; others by choice, each on a second axis if wanted.
const USUAL = [
  ["Reward", ["verl.critic.rewards.mean", "verl.critic.score.mean"]],
  ["KL", ["verl.actor.ppo_kl", "verl.actor.kl_loss", "verl.critic.kl"]],
  ["Losses", ["verl.actor.pg_loss", "verl.critic.vf_loss"]],
  ["Entropy and gradient norm", ["verl.actor.entropy", "verl.actor.grad_norm"], 1],
  ["Response length", ["verl.response_length.mean"]],
];
const grid = make("div", { class: "grid" });
const views = new Map();
const ownView = lineView("Chosen scalars");
const pickers = ["left axis", "right axis"].map((text) => {
  const select = make("select", { id: freshId("scalar"), onchange: () => updateScalars(true) });
  return { select, label: make("label", { for: select.id }, `${text}: `, select) };
});
byId("learning-body").append(grid, make("p", { class: "controls" }, ...pickers.map((picker) => picker.label)), ownView.element);

let scalarNames = [];
async function updateScalars() {
  const usual = USUAL.map(([title, names, right]) => [title, names.filter((each) => scalarNames.includes(each)), right]);
  const chosen = pickers.map((picker) => picker.select.value);
  const wanted = [...new Set([...usual.flatMap(([, names]) => names), ...chosen.filter(Boolean)])];
  const lines = wanted.length
    ? await fetchJson(`${base}/scalars?${wanted.map((each) => `name=${encodeURIComponent(each)}`).join("&")}`)
    : [];
  const lineOf = (each, right) =>
    lines
      .filter((line) => line.name === each && !Object.keys(line.labels).length)
      .map((line) => ({ title: each.replace(/^verl\./, ""), x: line.x, y: line.y, right }));
  for (const [title, names, right] of usual) {
    if (!names.length) continue;
    if (!views.has(title)) {
      views.set(title, lineView(title));
      grid.append(views.get(title).element);
    }
    views.get(title).update(names.flatMap((each, place) => lineOf(each, right !== undefined && place >= right)));
  }
  ownView.element.hidden = !chosen.some(Boolean);
  ownView.update(chosen.flatMap((each, place) => (each ? lineOf(each, place === 1) : [])));
}

function offerScalars(names) {
  if (names.join() === scalarNames.join()) return;
  scalarNames = names;
  for (const { select } of pickers) {
    const value = select.value;
    select.replaceChildren(make("option", { value: "" }, "none"), ...names.map((each) => make("option", { value: each }, each)));
    select.value = names.includes(value) ? value : "";
  }
}

poll(async () => {
  const state = await fetchJson(base);
  showState(state);
  for (const id of ["gpu-title", "gpu-link"]) byId(id).textContent = state.has_gpu ? "GPU time" : "Device time (CPU)";
  offerScalars(state.scalars);
  await Promise.all([updateSteps(), updateScalars()]);
});
