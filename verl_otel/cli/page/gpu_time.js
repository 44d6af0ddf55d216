// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// GPU time: productive (plain), overhead and idle (patterned), by cause, of the run or of the chosen step.

function gpuTimeSection(section) {
  const body = make("div");
  const [heading, allDevices] = run.gpu ? ["GPU time", "All GPUs"] : ["Device time (CPU)", "All devices"];
  let scope = run.devices.count || !total ? "run" : "step";
  let index = -1;
  section.append(
    runOrStep(scope, (value) => {
      scope = value;
      show();
    }),
    body,
  );

  // The sums of a step are known even where its GPUs are not.
  function deviceTimes() {
    if (scope === "run") return run.devices;
    const devices = run.details[index]?.devices;
    if (devices?.count) return devices;
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
    const times = deviceTimes();
    const all = times ? times.total.reduce((sum, value) => sum + value, 0) : 0;
    if (!all) {
      body.replaceChildren(
        make(
          "p",
          { class: "soft" },
          scope === "run"
            ? `What the ${DEVICE}s of this run did is not known.`
            : `What the ${DEVICE}s did in this step is not known.`,
        ),
      );
      return;
    }
    const states = {};
    times.total.forEach((value, place) => {
      const state = run.causes[place][1];
      states[state] = (states[state] ?? 0) + value;
    });
    const summary = ["productive", "overhead", "idle"]
      .map((state) => `${state} ${percent((states[state] ?? 0) / all)}`)
      .join(" · ");
    const lanes = [
      // One device needs no lane for all.
      ...(times.rows.length === 1 && times.count === 1
        ? []
        : [{ label: times.count ? `all ${counted(times.count, DEVICE)}` : `all ${DEVICE}s`, group: 0, items: items(times.total, allDevices) }]),
      ...times.rows.map((row, place) => ({
        label: name(row[0]),
        group: place + 1,
        items: items(row.slice(1), name(row[0])),
      })),
    ];
    const shown = run.causes
      .map(([cause, state], place) => [cause, state, times.total[place]])
      .filter(([, , value]) => value > 0);
    const view = laneChart(
      { label: `${heading} by cause`, axis: () => percent, end: 1, hint: `${allDevices}: ${summary}.` },
      lanes,
    );
    body.replaceChildren(
      make("p", { class: "big" }, summary, make("span", { class: "soft" }, ` of ${seconds(micros(all))} ${DEVICE_TIME}`)),
      ...(times.rows.length && times.rows.length < times.count
        ? [
            make(
              "p",
              { class: "soft" },
              `The ${times.rows.length} least productive of ${counted(times.count, DEVICE)}; the first lane is all of them.`,
            ),
          ]
        : []),
      view.element,
      legend(
        shown.map(([cause, state, value]) => [
          look.cause(cause),
          look.cause(cause)[2],
          `${state}, ${percent(value / all)}`,
        ]),
      ),
      asTable(`${heading} as a table`, () => asRows(times, shown)),
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

  function asRows(times, shown) {
    const places = shown.map(([cause]) => run.causes.findIndex(([name]) => name === cause));
    return dataTable(
      `${heading} in seconds, by cause`,
      [
        { title: DEVICE, text: (row) => row[0] },
        ...places.map((place) => ({
          title: `${look.cause(run.causes[place][0])[2]} (${run.causes[place][1]})`,
          number: true,
          value: (row) => row[1][place],
          text: (row) => micros(row[1][place]).toFixed(2),
        })),
      ],
      [["all", times.total], ...times.rows.map((row) => [name(row[0]), row.slice(1)])],
    );
  }

  return {
    show(chosen) {
      index = chosen;
      if (scope === "step" || !body.childElementCount) show();
    },
  };
}
