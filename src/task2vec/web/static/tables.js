// Two tables: all tasks of the map, for readers who cannot see it; and all models, with predictions for the open task.

import { readModels, readRecommendation } from "./api.js";
import { button, count, distance, get, make, millions, percent, plural, points, range, short } from "./dom.js";
import { chosenShots, markShots, shotsSwitch } from "./panel.js";
import { empty, explain, fill, formatOrigin, ownStar, sortable } from "./parts.js";
import { findPoint, isOwn, open, state, watch } from "./state.js";

const MOST = 500;
let words = "";

export function startTables() {
  watch((changed) => {
    if (state.view === "list" && (changed.has("view") || changed.has("points"))) showList();
    if (state.view === "models" && (changed.has("view") || changed.has("task"))) showModels();
  });
}

const text = (name, value, cell) => ({ name, value, cell, isText: true });
const number = (name, value, show, title) => ({ name, value, title, cell: (row) => show(value(row)) });

const tasks = [
  text(
    "task",
    (task) => task.name,
    (task) => {
      const click = () => {
        open(task.id);
        get("panel").focus();
      };
      const link = button(".link.word", task.name, click);
      return isOwn(task) ? make("span", ownStar(), link) : link;
    },
  ),
  text("dataset", (task) => task.dataset),
  text("taxon", (task) => task.taxon),
  text("origin", (task) => (isOwn(task) ? formatOrigin(task.origin) : "bundled")),
  number("images", (task) => task.images, count),
  number("classes", (task) => task.classes, count),
  number("head error", (task) => task.head_error, percent),
  number("norm", (task) => task.norm, short),
];

function showList() {
  const place = get("view-list");
  if (!state.points.length) return place.replaceChildren(empty("There are no tasks here yet."));
  const table = make("div"),
    note = make("p.quiet", { "aria-live": "polite" });
  const show = () => {
    const isMatch = (value) => value?.toLowerCase().includes(words.toLowerCase());
    const rows = state.points.filter(({ name, dataset, taxon }) => !words || [name, dataset, taxon].some(isMatch));
    note.textContent = plural(rows.length, "task") + (rows.length > MOST ? `; the first ${MOST} are shown: filter the list to see others` : "");
    table.replaceChildren(sortable(tasks, rows, { caption: "Tasks on the map, yours first", by: null, most: MOST }));
  };
  const onInput = (event) => {
    words = event.target.value;
    show();
  };
  const filter = make("input", { type: "search", id: "list-filter", value: words, on: { input: onInput } });
  const label = make("label", { htmlFor: "list-filter" }, "filter");
  place.replaceChildren(make("h2", "All tasks"), make("p.row", label, filter), note, table);
  show();
}

const common = [text("model", (one) => one.name), text("kind", (one) => one.kind)];
const params = number("params", (one) => one.params, millions);
const network = text("network", (one) => one.network);
// A mean over few tasks is no rank: it is shown, and comes last however the table is sorted.
const mean = {
  ...number("mean error", (one) => (one.is_few ? null : one.mean_error), percent, "over the tasks it was measured on"),
  cell: (one) => percent(one.mean_error),
};
const general = [
  ...common,
  network,
  mean,
  number("tasks", (one) => one.tasks, count),
  params,
  number("GMACs per image", (one) => one.gmacs, short, "billions of multiply-accumulate operations"),
  text("fine-tuned on", (one) => one.source_task),
  text("weights", (one) => one.weights_origin),
];
const ofTask = [
  number("rank", (one) => one.rank, count),
  text("model", (one) => one.model),
  number("error", (one) => one.error, percent, "measured test error"),
  { name: "95% interval", value: (one) => one.low, cell: (one) => range(one.low, one.high) },
  number("gap", (one) => one.gap, points, "how much higher than the lowest error, in percentage points"),
  text("tie", (one) => (one.is_choice ? "recommended" : one.is_tied ? "tie" : null)),
  params,
  number("GMACs", (one) => one.gmacs, short, "billions of multiply-accumulate operations for one image"),
  text("pretraining", (one) => one.pretraining || null),
  text("licence", (one) => one.license),
  text("why", (one) => one.failure || (one.error === null ? one.reason : null)),
];

function showModels() {
  const body = make("div"),
    id = state.task;
  const read = async (signal) => {
    if (id) return { all: [], task: await readRecommendation(id, signal) };
    const all = await readModels(chosenShots.value, signal);
    markShots(choice, all.shots);
    return { all: all.models, task: null };
  };
  const show = ({ all, task }) => (all.length || task ? table(all, task) : empty("No models are known."));
  const load = () => fill(body, read, show, "Loading the models …");
  const choice = shotsSwitch(load);
  get("view-models").replaceChildren(make("h2", "Models"), ...(id ? [] : [choice]), body);
  load();
}

function table(all, task) {
  const rows = task ? task.rows : all;
  const name = task && findPoint(task.task)?.name;
  const of = name ? `“${name}”` : "the open task";
  const note = task
    ? `${task.is_measured ? "Measured on" : "To be measured on"} ${of}. Click a column to sort.`
    : "Mean test error of each model over the tasks it was measured on; models measured on less than half as many tasks " +
      "as others come last. Open a task to see the models for it.";
  return [
    make("p.quiet", note),
    task ? null : explain([...new Set(rows.map(({ kind }) => kind))].sort(), "What the kinds of models mean"),
    sortable(task ? ofTask : general, rows, { caption: "Models", by: task ? 0 : 3 }),
  ];
}
