// The table of all experts; with an open task, what is predicted for it stands beside each.

import { readExperts, readRecommendation } from "./api.js";
import { get, make } from "./dom.js";
import { explain } from "./glossary.js";
import { empty, fill } from "./notices.js";
import { chosenTrain, markTrain, trainSwitch } from "./recommendation.js";
import { findPoint, state, watch } from "./state.js";
import { sortable } from "./table.js";
import { count, distance, millions, percent, points, range, short } from "./words.js";

const place = get("view-experts");

export function startExperts() {
  watch((_, changed) => {
    if (state.view === "experts" && (changed.has("view") || changed.has("task"))) show();
  });
}

function show() {
  const body = make("div"),
    id = state.task;
  const load = () =>
    fill(
      body,
      async (signal) => {
        const task = id ? await readRecommendation(id, chosenTrain.value, signal) : null;
        const all = await readExperts(task?.train ?? chosenTrain.value, signal);
        markTrain(choice, task?.train ?? all.train);
        return { all: all.experts, task };
      },
      ({ all, task }) => (all.length || task ? table(all, task) : empty("No experts are known.")),
      "Reading the experts …",
    );
  const choice = trainSwitch(load);
  place.replaceChildren(make("h2", {}, "Experts"), choice, body);
  load();
}

function table(all, task) {
  const known = new Map(all.map((expert) => [expert.name, expert]));
  const rows = task ? task.experts.map((expert) => ({ ...known.get(expert.name), ...expert })) : all;
  const name = task ? quoted(findPoint(task.task)?.name) : null;
  const words = task
    ? `Predicted for ${name}: sort by any column.`
    : "Their mean errors over the tasks that they were measured on. Open a task to see what is predicted for it.";
  return [
    make("p", { className: "quiet" }, words),
    explain([...new Set(rows.map(({ kind }) => kind))].sort(), "What the kinds mean"),
    sortable(task ? ofTask : general, rows, { caption: "Experts", by: task ? 0 : 3 }),
  ].filter(Boolean);
}

const quoted = (text) => (text ? `“${text}”` : "the open task");

const common = [
  { name: "expert", isText: true, value: (one) => one.name },
  { name: "kind", isText: true, value: (one) => one.kind },
];
const size = { name: "parameters", value: (one) => one.parameters, cell: (one) => millions(one.parameters) };
const network = { name: "network", isText: true, value: (one) => one.network };
const mean = {
  name: "mean error",
  title: "over the tasks it was measured on",
  value: (one) => one.mean_error,
  cell: (one) => percent(one.mean_error),
};
const lesson = { name: "learned from", isText: true, value: (one) => one.lesson };
const general = [
  ...common,
  network,
  mean,
  { name: "tasks", value: (one) => one.tasks, cell: (one) => count(one.tasks) },
  size,
  {
    name: "cost",
    title: "of one image, in billions of multiplications",
    value: (one) => one.cost,
    cell: (one) => (typeof one.cost === "number" ? short(one.cost) : one.cost),
  },
  lesson,
];
const ofTask = [
  { name: "rank", value: (one) => one.rank },
  ...common,
  { name: "error", title: "predicted", value: (one) => one.error, cell: (one) => percent(one.error) },
  { name: "interval", value: (one) => one.low, cell: (one) => range(one.low, one.high) },
  {
    name: "best?",
    title: "chance to be the best of all",
    value: (one) => one.chance,
    cell: (one) => percent(one.chance, 0),
  },
  { name: "gain", title: "points under the static choice", value: (one) => one.gain, cell: (one) => points(one.gain) },
  mean,
  size,
  network,
  { name: "nearest task", isText: true, value: (one) => one.nearest },
  { name: "distance", value: (one) => one.distance, cell: (one) => distance(one.distance) },
  lesson,
];
