// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// The lists: verdicts, stragglers, events, unfinished work, cost.

// Evidence for late ranks.
const EVIDENCE = {
  arrival: "when a call reaches each rank",
  data: "when each rank begins to compute",
  tokens: "how many tokens each rank has",
  cpu: "CPU time of each rank",
};

function verdictsSection(section, choose) {
  const { rows, causes, count: all } = run.verdicts;
  if (!rows.length) section.append(make("p", {}, "Nothing delayed a step noticeably."));
  else {
    section.append(
      bars(
        "What steps would have been shorter by, by cause",
        ["cause", "seconds", "steps"],
        causes.map(([cause, label, steps, saved]) => {
          const style = look.kind(cause);
          return {
            title: label ? `${style[2]} ${label}` : style[2],
            value: saved,
            text: saved.toFixed(2),
            style,
            note: count(steps),
          };
        }),
      ),
      dataTable(
        all > rows.length ? `The worst ${count(rows.length)} of ${count(all)} verdicts` : "Verdicts",
        [
          { title: "step", number: true, value: (row) => row[0], text: (row) => stepName(row[0]) },
          { title: "shorter by, s", number: true, value: (row) => row[2], text: (row) => row[2].toFixed(2) },
          { title: "size of the cause, s", number: true, value: (row) => row[3], text: (row) => row[3].toFixed(2) },
          { title: "verdict", text: (row) => row[1] },
        ],
        rows,
        { page: 8, act: (row) => choose(row[0]), sorted: { column: 1, down: true } },
      ),
    );
  }
  if (run.stragglers.length)
    section.append(
      dataTable(
        "Late ranks",
        [
          { title: "rank", number: true, value: (row) => row[1], text: (row) => String(row[1]) },
          { title: "method", text: (row) => row[0] },
          { title: "process", text: (row) => row[2] },
          {
            title: "how often",
            number: true,
            value: (row) => row[3],
            text: (row) => `${count(row[3])} of ${counted(run.all, "step")}`,
          },
          { title: "late in all", number: true, value: (row) => row[4], text: (row) => seconds(row[4]) },
          { title: "at most", number: true, value: (row) => row[5], text: (row) => seconds(row[5]) },
          { title: "seen from", text: (row) => row[6] },
        ],
        run.stragglers,
        { page: 10 },
      ),
    );
  else section.append(make("p", {}, "No late rank was observed."));
  const unseen = run.blind.map((evidence) => EVIDENCE[evidence] ?? evidence);
  if (unseen.length)
    section.append(
      make(
        "p",
        { class: "soft" },
        `Not observable in this run: ${unseen.join("; ")}. Without it late ranks cannot be identified.`,
      ),
    );
}

// The page has no section where nothing happened.
function eventsSection(section) {
  if (!section) return;
  for (const [kind, at, text, detail] of run.events) {
    const more =
      detail && Object.keys(detail).length
        ? make("details", {}, make("summary", {}, "Everything that was written down"), tree(detail))
        : "";
    section.append(
      make(
        "div",
        { class: "event" },
        make(
          "p",
          {},
          make("strong", {}, kind === "crash" ? "✕ crash" : `◆ ${kind}`),
          " ",
          make("time", { dateTime: new Date(at).toISOString() }, clock(at)),
          " · ",
          bdi(text),
        ),
        more,
      ),
    );
  }
  for (const [process, dead, silent, work, all] of run.unfinished) {
    section.append(
      dataTable(
        `${process}: ${dead ? `dead, silent for ${seconds(silent)}` : "open at its last sign of life"}`,
        [
          { title: "open", text: (row) => row[0] },
          { title: "for", number: true, value: (row) => row[1], text: (row) => seconds(row[1]) },
          { title: "last child", text: (row) => row[2] },
        ],
        work,
      ),
      all > work.length ? make("p", { class: "soft" }, `and ${count(all - work.length)} more`) : "",
    );
  }
  if (run.validations.length)
    section.append(
      asTable(`${counted(run.validations.length, "validation")} as a table`, () =>
        dataTable(
          "Validations",
          [
            { title: "after step", number: true, value: (row) => row[0] ?? -1, text: (row) => String(row[0] ?? "?") },
            { title: "began", value: (row) => row[1], text: (row) => clock(run.start + row[1]) },
            { title: "seconds", number: true, value: (row) => row[2], text: (row) => (row[2] / 1000).toFixed(2) },
          ],
          run.validations,
        ),
      ),
    );
}

// Plain data as nested lists; texts of several lines (stacks) are preformatted.
function tree(thing) {
  if (typeof thing === "string" && thing.includes("\n"))
    return make("pre", { tabIndex: 0, role: "region", "aria-label": "text" }, thing);
  if (thing === null || typeof thing !== "object") return bdi(String(thing));
  const entries = Object.entries(thing);
  return make(
    "dl",
    { class: "tree" },
    ...entries.flatMap(([key, value]) => [make("dt", {}, bdi(key)), make("dd", {}, tree(value))]),
  );
}

function costSection(section) {
  const cost = run.cost;
  if (!cost?.gpu_seconds && !cost?.generated) section.append(make("p", { class: "soft" }, "What the tokens of this run cost is not known."));
  else {
    const wasted = cost.wasted.reduce((sum, row) => sum + row[1], 0);
    const facts = [
      [`${DEVICE_TIME} of the steps`, cost.gpu_seconds ? seconds(cost.gpu_seconds) : ""],
      ["tokens trained on", count(cost.trained)],
      [`${DEVICE_TIME} of a token trained on`, cost.trained && cost.gpu_seconds ? price(cost.gpu_seconds, cost.trained) : ""],
      // Not `wasted + cost.trained`: some wasted tokens were trained on.
      ["tokens wasted", `${count(wasted)}${cost.generated ? `, ${percent(wasted / cost.generated)} of all` : ""}`],
    ];
    section.append(factList(facts));
    if (wasted)
      section.append(
        bars(
          "Tokens that were of no use",
          ["why", "tokens", "share of all"],
          cost.wasted.map(([reason, tokens]) => ({
            title: reason.replaceAll("_", " "),
            value: tokens,
            text: count(tokens),
            style: ["orange"],
            note: percent(tokens / cost.generated),
          })),
        ),
      );
  }
  section.append(make("details", {}, make("summary", {}, "Facts of the run"), factList(run.facts)));
}
