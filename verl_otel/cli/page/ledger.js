// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// What the GPUs did: productive (plain), overhead and idle (patterned), by cause, of the run or of the chosen step.

function ledgerSection(section) {
  const body = make("div");
  let which = run.devices.count || !total ? "run" : "step";
  let index = -1;
  section.append(
    runOrStep(which, (value) => {
      which = value;
      show();
    }),
    body,
  );

  // The sums of a step are known even where its GPUs are not.
  function ledger() {
    if (which === "run") return run.devices;
    const known = run.details[index]?.devices;
    if (known?.count) return known;
    if (index < 0 || !table.gpu.columns.length) return null;
    return {
      count: 0,
      rows: [],
      total: run.causes.map(([cause]) => {
        const at = table.gpu.keys.indexOf(cause);
        return at < 0 ? 0 : (table.gpu.columns[at][index] / table.unit) * 1e6;
      }),
    };
  }

  function show() {
    const found = ledger();
    const all = found ? found.total.reduce((sum, value) => sum + value, 0) : 0;
    if (!all) {
      body.replaceChildren(
        make(
          "p",
          { class: "soft" },
          which === "run"
            ? "What the GPUs of this run did is not known."
            : "What the GPUs did in this step is not known.",
        ),
      );
      return;
    }
    const states = {};
    found.total.forEach((value, place) => {
      const state = run.causes[place][1];
      states[state] = (states[state] ?? 0) + value;
    });
    const said = ["productive", "overhead", "idle"]
      .map((state) => `${state} ${percent((states[state] ?? 0) / all)}`)
      .join(" · ");
    const lanes = [
      { label: found.count ? `all ${found.count} GPUs` : "all GPUs", group: 0, items: items(found.total, "All GPUs") },
      ...found.rows.map((row, place) => ({
        label: name(row[0]),
        group: place + 1,
        items: items(row.slice(1), name(row[0])),
      })),
    ];
    const shown = run.causes
      .map(([cause, state], place) => [cause, state, found.total[place]])
      .filter(([, , value]) => value > 0);
    const made = laneChart(
      { label: "GPU time by cause", axis: () => percent, end: 1, hint: `All GPUs: ${said}.` },
      lanes,
    );
    body.replaceChildren(
      make("p", { class: "big" }, said, make("span", { class: "soft" }, ` of ${seconds(micros(all))} GPU time`)),
      ...(found.rows.length && found.rows.length < found.count
        ? [
            make(
              "p",
              { class: "soft" },
              `The ${found.rows.length} least productive of ${count(found.count)} GPUs; the first lane is all of them.`,
            ),
          ]
        : []),
      made.element,
      legend(
        shown.map(([cause, state, value]) => [
          look.cause(cause),
          look.cause(cause)[2],
          `${state}, ${percent(value / all)}`,
        ]),
      ),
      asTable("GPU time as a table", () => asRows(found, shown)),
    );
  }

  function items(values, label) {
    const all = values.reduce((sum, value) => sum + value, 0) || 1;
    let from = 0;
    return values
      .map((value, place) => {
        const [cause, state] = run.causes[place];
        const style = look.cause(cause);
        const item = {
          from,
          to: from + value / all,
          style,
          text: `${style[2]} ${percent(value / all)}`,
          brief: percent(value / all),
          words: `${label}: ${style[2]} (${state}) ${seconds(micros(value))}, ${percent(value / all)}.`,
        };
        from = item.to;
        return item;
      })
      .filter((item) => item.to > item.from);
  }

  function asRows(found, shown) {
    const places = shown.map(([cause]) => run.causes.findIndex(([each]) => each === cause));
    return dataTable(
      "GPU time in seconds, by cause",
      [
        { title: "GPU", text: (row) => row[0] },
        ...places.map((place) => ({
          title: `${look.cause(run.causes[place][0])[2]} (${run.causes[place][1]})`,
          number: true,
          value: (row) => row[1][place],
          text: (row) => micros(row[1][place]).toFixed(2),
        })),
      ],
      [["all", found.total], ...found.rows.map((row) => [name(row[0]), row.slice(1)])],
    );
  }

  return {
    show(chosen) {
      index = chosen;
      if (which === "step" || !body.childElementCount) show();
    },
  };
}
