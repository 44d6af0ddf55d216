// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Connects the sections, and keeps the chosen step in the address, so that it can be linked.

readPalette();
const parts = {
  step: stepSection(byId("step")),
  trajectories: trajectoriesSection(byId("trajectories")),
  gpu: gpuTimeSection(byId("gpu")),
};
const overview = stepsSection(byId("steps"), choose);
let waiting = 0;

function choose(index) {
  try {
    history.replaceState(null, "", addressOf(index));
  } catch {
    /* some browsers forbid it for files; the choice holds without */
  }
  cancelAnimationFrame(waiting);
  // A pressed arrow key passes many steps: only the last one is drawn.
  waiting = requestAnimationFrame(() => {
    for (const part of Object.values(parts)) part.show(index);
  });
}

// From a table or a link: the chart follows, and the reader is led to the step.
function lead(index) {
  overview.move(index);
  byId("step-title").focus({ preventScroll: true });
  byId("step").scrollIntoView({ block: "start" });
}

function worst() {
  if (run.verdicts.rows.length) return run.verdicts.rows[0][0];
  if (table.failed.length) return table.failed[0][0];
  let best = -1;
  for (let index = 0; index < total; index += 1)
    if (!startUp.has(index) && (best < 0 || table.seconds[index] > table.seconds[best])) best = index;
  return Math.max(0, best);
}

verdictsSection(byId("verdicts"), lead);
eventsSection(byId("events"));
scalarsSection(byId("scalars"));
costSection(byId("cost"));
if (overview) {
  const asked = stepOf(location.hash);
  if (asked >= 0) lead(asked);
  else {
    overview.state.at = worst();
    overview.tell();
    for (const part of Object.values(parts)) part.show(overview.state.at);
  }
} else {
  byId("step").append(make("p", { class: "soft" }, "There is no step to choose."));
  parts.trajectories.show(-1);
  parts.gpu.show(-1);
}
window.addEventListener("hashchange", () => {
  const index = stepOf(location.hash);
  if (index >= 0) lead(index);
});

// Prints use the light scheme.
const print = (on) => () => {
  document.documentElement.classList.toggle("paper", on);
  redraws.run();
};
window.addEventListener("beforeprint", print(true));
window.addEventListener("afterprint", print(false));
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)", "print"])
  matchMedia(query).addEventListener("change", () => redraws.run());
document.documentElement.dataset.ready = "yes";
