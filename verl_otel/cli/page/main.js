// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Puts the sections together and keeps the chosen step: in the address, so that a link can lead to it.

readPalette();
const parts = {
  step: stepSection(byId("step")),
  trajectories: trajectoriesSection(byId("trajectories")),
  gpu: ledgerSection(byId("gpu")),
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
  // A held arrow key passes many steps: only the one that it rests on is drawn.
  waiting = requestAnimationFrame(() => {
    for (const each of Object.values(parts)) each.show(index);
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
  if (table.failed.length) return table.failed[0];
  return longestOf(0, total);
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
    for (const each of Object.values(parts)) each.show(overview.state.at);
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

// Paper is white, whatever the screen is.
const print = (on) => () => {
  document.documentElement.classList.toggle("paper", on);
  redraws.run();
};
window.addEventListener("beforeprint", print(true));
window.addEventListener("afterprint", print(false));
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)", "print"])
  matchMedia(query).addEventListener("change", () => redraws.run());
document.documentElement.dataset.ready = "yes";
