// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The way in: which view the address names, what stands above it, and one clock for all of it.

import { forgetCharts, redrawCharts } from "./chart.js";
import { readPalette } from "./colours.js";
import { bdi, byId, clock, make } from "./dom.js";
import { compareView } from "./compare.js";
import { compareHref, homeView, runHref, stateDot } from "./home.js";
import { runView } from "./run.js";
import { samplesTitle, samplesView, stepView, trajectoryView } from "./step.js";
import { getRun, isLive, looks, ownRun, stepsOf } from "./source.js";

const EVERY = 2000;
const OFTEN = 1000; // where steps are shorter than SHORT seconds
const SHORT = 5;
const NOTHING = { at: 0, error: "", run: null };
let view = null; // {element, show(run), name of the run, crumbs}
let last = NOTHING;
let shownPath = null;
let timer = 0;
let turnNumber = 0;

// A change of the address that the view has made itself: it is not opened again.
function go(hash) {
  history.replaceState(null, "", hash);
  shownPath = pathOf();
}

const pathOf = () => (location.hash.slice(1) || "/").split("?")[0];

function findView() {
  const query = new URLSearchParams(location.hash.split("?")[1]);
  const [kind, first, part, ...rest] = pathOf().split("/").filter(Boolean).map(decodeURIComponent);
  const [key, id, group] = rest;
  if (isLive && kind === "compare" && part) {
    return { ...compareView(first, part), crumbs: [[`${first} and ${part}`, compareHref([first, part])]] };
  }
  if (isLive && (kind !== "run" || !first)) return { ...homeView(query, go), crumbs: [] };
  const isOwn = isLive || (kind === "run" && first === ownRun);
  const name = isLive ? first : ownRun;
  const crumbs = [[name, runHref(name)]];
  if (!isOwn || !key) return { ...runView(name, query, go), name, crumbs };
  if (part === "samples") {
    crumbs.push([samplesTitle(key, id), runHref(name, part, key, id)]);
    return { ...samplesView(name, key, id, group), name, crumbs };
  }
  crumbs.push([`Step ${key}`, runHref(name, part, key)]);
  if (!id) return { ...stepView(name, key), name, crumbs };
  crumbs.push(["Trajectory", runHref(name, part, key, id)]);
  return { ...trajectoryView(name, key, id), name, crumbs };
}

function showTop() {
  const { run } = last;
  const { crumbs } = view;
  const items = crumbs.map(([text, href], place) =>
    make("li", {}, make("a", { href, "aria-current": place === crumbs.length - 1 && "page" }, bdi(text))));
  const isStall = (event) => event.kind === "stall" && !event.resolved;
  const stalled = run?.state === "running" && run.explain.events.some(isStall);
  byId("top").replaceChildren(
    make("a", { class: "brand", href: isLive ? "#/" : runHref(ownRun), "aria-label": "verl-otel" },
      make("i", { class: "logo" }), make("span", {}, "verl-otel")),
    make("nav", { "aria-label": "Where you are" }, make("ol", {}, items)),
    run ? stateDot({ state: run.state, stalled }) : "",
    make("p", { id: "freshness", class: last.error && "stale", role: "status" }, freshness()));
}

// One clock: until which step the page has been made, and when that was.
function freshness() {
  const { run, error, at } = last;
  if (error) return `No answer (${error})${at ? `; this is of ${clock(at / 1000)}` : ""}. Trying again.`;
  if (!isLive) return run ? `ended ${clock(run.explain.end)}` : "";
  const age = Math.round((Date.now() - at) / 1000 + (run?.age ?? 0));
  const when = at ? (age < 2 ? "now" : `${age} s ago`) : "loading …";
  if (!run) return at ? `updated ${when}` : when;
  const steps = stepsOf(view.name); // while steps arrive there are more of them than the page shows
  const until = steps.count ? `analysed until ${steps.title(steps.count - 1).toLowerCase()}` : "no step has ended yet";
  if (run.age === null && run.state !== "running") return `${until}, the last one`;
  return `${until}${run.read < 0.999 ? `, ${Math.floor(run.read * 100)}% of the files` : ""}, ${when}`;
}

async function turn() {
  clearTimeout(timer);
  const mine = (turnNumber += 1);
  if (!document.hidden || !last.at) {
    const own = view;
    const isOver = () => own !== view || mine !== turnNumber;
    try {
      const run = own.name === undefined ? null : await getRun(own.name);
      if (isOver()) return;
      await own.show(run);
      if (isOver()) return;
      last = { at: Date.now(), error: "", run };
    } catch (error) {
      if (isOver()) return;
      last = { ...last, error: error.message };
      if (!isLive) throw error;
    }
    showTop();
    byId("loading")?.remove();
    document.documentElement.dataset.ready = "yes";
  }
  const isShort = last.run?.state === "running" && stepsOf(view.name).seconds.at(-1) < SHORT;
  if (isLive) timer = setTimeout(turn, isShort ? OFTEN : EVERY);
}

function open() {
  if (view && pathOf() === shownPath) return;
  forgetCharts();
  view = findView();
  last = NOTHING;
  const title = view.crumbs.map(([text]) => text).reverse().join(" · ") || "Runs";
  document.title = `${title} · verl-otel`;
  byId("main").replaceChildren(make("p", { id: "loading", class: "loading" }, "Loading …"), view.element);
  if (shownPath !== null) {
    window.scrollTo(0, 0);
    byId("main").focus({ preventScroll: true });
    byId("announcement").textContent = title; // for screen readers
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
