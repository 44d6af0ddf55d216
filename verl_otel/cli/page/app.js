// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The way in: which view the address names, what stands above it, and one clock for all of it.

import { forgetCharts, redrawCharts } from "./chart.js";
import { readPalette } from "./colours.js";
import { bdi, byId, clock, make } from "./dom.js";
import { compareView } from "./compare.js";
import { homeView, runHref, stateDot } from "./home.js";
import { runView } from "./run.js";
import { samplesView, stepView, trajectoryView } from "./step.js";
import { isLive, looks, ownRun } from "./source.js";

const EVERY = 2000;
const OFTEN = 1000; // where steps are shorter than SHORT seconds
const SHORT = 5;
let view = null;
let shownPath = null;
let timer = 0;
let turnNumber = 0;
const NOTHING = { at: 0, error: "", status: null, until: "" };
let last = NOTHING;

// A change of the address that the view has made itself: it is not opened again.
function go(hash) {
  history.replaceState(null, "", hash);
  shownPath = pathOf();
}

const pathOf = () => (location.hash.slice(1) || "/").split("?")[0];

function findView() {
  const [path, query = ""] = (location.hash.slice(1) || "/").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const params = new URLSearchParams(query);
  const [kind, name, part, ...rest] = parts;
  if (!isLive && (kind !== "run" || name !== ownRun)) return runView(ownRun, params, go);
  if (kind === "compare" && part) return compareView(name, part);
  if (kind !== "run") return homeView(params, go);
  if (part === "step" && rest.length > 1) return trajectoryView(name, ...rest);
  if (part === "step" && rest.length) return stepView(name, rest[0]);
  if (part === "samples") return samplesView(name, ...rest);
  return runView(name, params, go);
}

function showTop() {
  const run = last.status?.run;
  const crumbs = view.crumbs?.() ?? [];
  const current = (place) => (place === crumbs.length - 1 ? "page" : undefined);
  const items = crumbs.map(([text, href], place) =>
    make("li", {}, make("a", { href, "aria-current": current(place) }, bdi(text))));
  const isStall = (event) => event.kind === "stall" && !event.resolved;
  const stalled = run?.state === "running" && run.explain.events.some(isStall);
  byId("top").replaceChildren(
    make("a", { class: "brand", href: isLive ? "#/" : runHref(ownRun) }, make("i", { class: "logo" }), "verl-otel"),
    make("nav", { "aria-label": "Where you are" }, make("ol", {}, items)),
    run ? stateDot({ state: run.state, stalled }) : "",
    make("p", { id: "freshness", class: last.error ? "stale" : undefined, role: "status" }, freshness()));
}

// One clock: until which step the page has been made, and when that was.
function freshness() {
  const { status, error, at, until } = last;
  const run = status?.run;
  if (error) return `No answer (${error})${at ? `; this is of ${clock(at / 1000)}` : ""}. Trying again.`;
  if (!isLive) return run ? `ended ${clock(run.explain.end)}` : "";
  const part = run && run.read < 0.999 ? `, ${Math.floor(run.read * 100)}% of the files` : "";
  if (run && run.age === null && run.state !== "running") return `${until}, the last one`;
  const age = Math.round((Date.now() - at) / 1000 + (run?.age ?? 0));
  const when = at ? (age < 2 ? "now" : `${age} s ago`) : "loading …";
  return until ? `${until}${part}, ${when}` : at ? `updated ${when}` : when;
}

// While steps arrive there are more of them than the page shows.
function untilOf({ run, steps }) {
  if (!run) return "";
  return steps.count ? `analysed until ${steps.title(steps.count - 1).toLowerCase()}` : "no step has ended yet";
}

async function turn() {
  clearTimeout(timer);
  const mine = (turnNumber += 1);
  if (!document.hidden || !last.at) {
    const own = view;
    try {
      const status = await own.refresh();
      if (own !== view || mine !== turnNumber) return;
      last = { at: Date.now(), error: "", status, until: untilOf(status) };
    } catch (error) {
      if (own !== view || mine !== turnNumber) return;
      last = { ...last, error: error.message };
      if (!isLive) throw error;
    }
    showTop();
    byId("loading")?.remove();
    document.documentElement.dataset.ready = "yes";
  }
  const isShort = last.status?.run?.state === "running" && last.status.steps.seconds.at(-1) < SHORT;
  if (isLive) timer = setTimeout(turn, isShort ? OFTEN : EVERY);
}

function open() {
  if (view && pathOf() === shownPath) return;
  forgetCharts();
  view = findView();
  last = NOTHING;
  document.title = view.title === "verl-otel" ? view.title : `${view.title} · verl-otel`;
  byId("main").replaceChildren(make("p", { id: "loading", class: "loading" }, "Loading …"), view.element);
  if (shownPath !== null) {
    window.scrollTo(0, 0);
    byId("main").focus({ preventScroll: true });
    byId("announcement").textContent = view.title; // for screen readers
  }
  shownPath = pathOf();
  showTop();
  turn();
}

function onTheme() {
  readPalette();
  redrawCharts();
}

readPalette();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onTheme);
// Paper is white, also where the screen is dark.
for (const [event, isPaper] of [["beforeprint", true], ["afterprint", false]]) {
  window.addEventListener(event, () => {
    document.documentElement.classList.toggle("paper", isPaper);
    onTheme();
  });
}
window.addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => !document.hidden && isLive && turn());
if (isLive) setInterval(() => last.at && !document.hidden && (byId("freshness").textContent = freshness()), 1000);
document.body.append(make("footer", {}, `verl-otel ${looks.version}`));
open();
