// A table that can be sorted by each of its columns: a button in every heading, the order told by aria-sort.

import { button, make, tell } from "./dom.js";

const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);

/**
 * A sortable table.
 * columns: [{ name, value(row), cell(row)?, isText?, title? }]; by: the column that it is sorted by first.
 */
export function sortable(columns, rows, { caption, by = 0, isDown = false, most = Infinity }) {
  const body = make("tbody");
  const heads = columns.map((column, number) =>
    make(
      "th",
      { scope: "col", className: column.isText ? "" : "number", title: column.title ?? "" },
      button(column.name, () => sort(number, by === number ? !isDown : false)),
    ),
  );
  const table = make(
    "table",
    { className: "sortable" },
    make("caption", { className: "unseen" }, caption),
    make("thead", {}, make("tr", {}, heads)),
    body,
  );

  function sort(number, toDown) {
    [by, isDown] = [number, toDown];
    show();
    tell(`sorted by ${columns[by].name}, ${isDown ? "largest" : "smallest"} first`);
  }

  function show() {
    const { value } = columns[by];
    // What is not known goes last, whichever way it is sorted.
    const known = rows.filter((row) => value(row) !== null && value(row) !== undefined);
    const unknown = rows.filter((row) => value(row) === null || value(row) === undefined);
    known.sort((a, b) => (isDown ? -1 : 1) * compare(value(a), value(b)));
    heads.forEach((head, number) =>
      head.setAttribute("aria-sort", number !== by ? "none" : isDown ? "descending" : "ascending"),
    );
    body.replaceChildren(
      ...[...known, ...unknown].slice(0, most).map((row) =>
        make(
          "tr",
          {},
          columns.map((column) =>
            make("td", { className: column.isText ? "word" : "number" }, (column.cell ?? column.value)(row) ?? "–"),
          ),
        ),
      ),
    );
  }

  show();
  return make("div", { className: "wide", tabIndex: 0, attributes: { role: "region", "aria-label": caption } }, table);
}
