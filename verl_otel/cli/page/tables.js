// SPDX-FileCopyrightText: The verl-otel authors
// SPDX-License-Identifier: Apache-2.0
// Tables with the data of every chart.

// A table that sorts by its heads and shows a page of rows at a time.
// columns: {title, value(row) -> number or text, text(row) -> text or node, number: right-aligned}
// Columns that are empty in every row are left out.
function dataTable(caption, allColumns, rows, { page = 25, act, sorted } = {}) {
  const columns = allColumns.filter((column) => rows.some((row) => column.text(row) !== ""));
  let order = [...rows];
  let shown = page;
  let by = sorted ? { ...sorted, column: columns.indexOf(allColumns[sorted.column]) } : { column: -1, down: false };
  const body = make("tbody");
  const more = make("p", { class: "more" });
  const value = (column, row) => (column.value ? column.value(row) : column.text(row));
  const heads = columns.map((column, index) => {
    const head = make("th", { scope: "col", class: column.number ? "number" : undefined });
    head.append(rows.length > 1 ? button(column.title, () => sort(index), { class: "sort" }) : column.title);
    return head;
  });
  function sort(index) {
    by = { column: index, down: by.column === index ? !by.down : Boolean(columns[index].number) };
    fillBody();
  }
  function fillBody() {
    if (by.column >= 0) {
      const column = columns[by.column];
      const compare = (a, b) =>
        typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      order = [...rows].sort((a, b) => compare(value(column, a), value(column, b)) * (by.down ? -1 : 1));
    }
    heads.forEach((head, index) => {
      if (index === by.column) head.setAttribute("aria-sort", by.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...order.slice(0, shown).map(rowOf));
    const left = order.length - shown;
    more.replaceChildren(
      ...(left > 0
        ? [
            `${count(shown)} of ${count(order.length)} rows. `,
            button(`Show ${count(Math.min(left, shown * 3))} more`, () => {
              shown *= 4;
              fillBody();
            }),
          ]
        : []),
    );
  }
  function rowOf(row) {
    const cells = columns.map((column, index) => {
      const text = column.text(row);
      const content = typeof text === "string" && !column.number ? bdi(text) : text;
      return make(
        index === 0 ? "th" : "td",
        { scope: index === 0 ? "row" : undefined, class: column.number ? "number" : undefined },
        content,
      );
    });
    if (act) cells[0].replaceChildren(button(columns[0].text(row), () => act(row), { class: "link" }));
    return make("tr", {}, ...cells);
  }
  fillBody();
  const element = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), body);
  return make(
    "div",
    {},
    make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption }, element),
    more,
  );
}

// The data of a chart as a table, created when it is opened.
function asTable(title, makeTable) {
  const details = make("details", { class: "as-table" }, make("summary", {}, ...[title].flat()));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(makeTable());
  });
  return details;
}

// Bars with text; a value of "most" fills the column.
function bars(caption, titles, rows, most = Math.max(...rows.map((row) => row.value), 1e-12)) {
  const body = rows.map((row) => {
    const bar = make("div", { class: "bar" });
    bar.style.inlineSize = `${(row.value / most) * 100}%`;
    bar.style.backgroundColor = `var(--${row.style[0]})`;
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, bdi(row.title)),
      make("td", { class: "number" }, row.text),
      make("td", { class: "number" }, row.note ?? ""),
      make("td", { class: "bars", "aria-hidden": "true" }, bar),
    );
  });
  return make(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    make(
      "table",
      { class: "bartable" },
      make("caption", {}, caption),
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          ...titles.map((title, place) => make("th", { scope: "col", class: place ? "number" : undefined }, title)),
          make("td"),
        ),
      ),
      make("tbody", {}, ...body),
    ),
  );
}
