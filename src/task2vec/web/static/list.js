// The tasks of the map as a list: the same points for who cannot see or use the map.

import { button, get, make } from "./dom.js";
import { empty } from "./notices.js";
import { open, state, watch } from "./state.js";
import { sortable } from "./table.js";
import { count, origin, percent, plural, short } from "./words.js";

const MOST = 500;
const place = get("view-list");
let words = "";

export function startList() {
  watch((_, changed) => {
    if (state.view === "list" && (changed.has("view") || changed.has("points"))) show();
  });
}

const columns = [
  {
    name: "task",
    isText: true,
    value: (task) => task.name,
    cell: (task) => button(task.name, () => choose(task.id), { className: "link word" }),
  },
  { name: "dataset", isText: true, value: (task) => task.dataset },
  { name: "taxon", isText: true, value: (task) => task.taxon },
  { name: "origin", isText: true, value: (task) => origin(task.origin) },
  { name: "images", value: (task) => task.images, cell: (task) => count(task.images) },
  { name: "classes", value: (task) => task.classes, cell: (task) => count(task.classes) },
  { name: "head error", value: (task) => task.head_error, cell: (task) => percent(task.head_error) },
  { name: "norm", value: (task) => task.norm, cell: (task) => short(task.norm) },
];

function choose(id) {
  open(id);
  get("panel").focus();
}

function show() {
  if (!state.points.length) return place.replaceChildren(empty("There are no tasks here yet."));
  const table = make("div"),
    note = make("p", { className: "quiet", attributes: { "aria-live": "polite" } });
  const fill = () => {
    const wanted = words.toLowerCase();
    const rows = state.points.filter(
      (task) => [task.name, task.dataset, task.taxon].some((text) => text?.toLowerCase().includes(wanted)) || !wanted,
    );
    note.textContent =
      rows.length > MOST
        ? `${plural(rows.length, "task")}; the first ${MOST} are shown: filter to see others`
        : plural(rows.length, "task");
    table.replaceChildren(sortable(columns, rows, { caption: "Tasks of the map", most: MOST }));
  };
  const filter = make("input", {
    type: "search",
    id: "list-filter",
    value: words,
    on: {
      input: (event) => {
        words = event.target.value;
        fill();
      },
    },
  });
  place.replaceChildren(
    make("h2", {}, "All tasks"),
    make("p", { className: "row" }, make("label", { htmlFor: "list-filter" }, "filter"), filter),
    note,
    table,
  );
  fill();
}
