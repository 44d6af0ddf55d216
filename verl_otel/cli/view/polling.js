// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Fetches JSON from the server of the page every few seconds, and shows the age of what is shown.

const EVERY = 5000;

// A proxy may serve these pages below a path of its own: addresses are relative to what comes before those of the pages.
const ROUTES = [
  /^(.*\/)run\/([^/]+)\/samples\/([^/]+)\/([^/]+)(?:\/([^/]+))?$/,
  /^(.*\/)compare\/([^/]+)\/([^/]+)$/,
  /^(.*\/)run\/([^/]+)$/,
  /^(.*\/)[^/]*$/,
];
const [, ROOT, ...PARTS] = ROUTES.map((route) => location.pathname.match(route)).find(Boolean);
const NAMES = PARTS.map((part) => (part === undefined ? undefined : decodeURIComponent(part)));
for (const link of document.querySelectorAll("a.home")) link.href = ROOT;

async function fetchJson(path) {
  const reply = await fetch(path, { headers: { Accept: "application/json" }, cache: "no-store" });
  if (!reply.ok) throw new Error((await reply.text()).trim() || `status ${reply.status}`);
  return reply.json();
}

// Rows from `first` on replace what is shown from there on: the last steps change until the next ones have ended.
function splice(shown, next, first) {
  shown.length = Math.min(shown.length, first);
  while (shown.length < first) shown.push(0);
  shown.push(...next);
}

// Calls update() at once and then every few seconds; a hidden page waits until it is seen again. The last state stays on an error.
function poll(update) {
  const line = byId("freshness");
  let timer = 0;
  let shown = "";
  async function turn() {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        await update();
        shown = `${new Date().toISOString().slice(11, 19)} UTC`;
        line.textContent = `Updated ${shown}, every ${EVERY / 1000} s.`;
        line.classList.remove("stale");
      } catch (error) {
        line.textContent = `No answer (${error.message})${shown ? `; this is of ${shown}` : ""}. Trying again.`;
        line.classList.add("stale");
      }
      document.documentElement.dataset.ready = "yes";
    }
    timer = setTimeout(turn, EVERY);
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) turn();
  });
  turn();
}
