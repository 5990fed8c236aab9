// The panel of the open task: what it is, what it is like, what to use.

import { readNearest, readTask } from "./api.js";
import { showComparison } from "./compare.js";
import { bring, button, facts, get, make, tell } from "./dom.js";
import { explain } from "./glossary.js";
import { showNeighbours } from "./map.js";
import { empty, fill } from "./notices.js";
import { showRecommendation } from "./recommendation.js";
import { go, open, state, watch } from "./state.js";
import { shareBar } from "./bars.js";
import { count, distance, origin, percent, plural, range, short } from "./words.js";

const CLASSES = 12;
const panel = get("panel");

export function startPanel() {
  watch((_, changed) => {
    if (!changed.has("task") && !changed.has("with")) return;
    const isArrival = changed.has("status"); // by an address: the page is read from its top
    show().then(() => {
      if (state.task && !isArrival) bring(panel);
    });
  });
  show();
}

async function show() {
  document.title = "task2vec: the space of tasks";
  if (!state.task) {
    panel.replaceChildren(
      empty("Click a task on the map, or find one by its name, to see what it is like and which model suits it."),
    );
    return;
  }
  if (state.with) {
    const body = make("div");
    panel.replaceChildren(body);
    return showComparison(body, state.task, state.with);
  }
  const body = make("div");
  panel.replaceChildren(body);
  const id = state.task;
  return fill(
    body,
    (signal) => readTask(id, signal),
    (task) => describe(task),
    "Opening the task …",
  );
}

function describe(task) {
  // A link may name a task of another space than the one on the screen.
  if (task.space && state.space && task.space !== state.space) go({ space: task.space });
  document.title = `${task.name} – task2vec`;
  tell(`${task.name} is open`);
  return [
    make(
      "div",
      { className: "head" },
      make("h2", { className: "name" }, task.name),
      button("×", () => go({ task: null, with: null }), {
        className: "plain",
        attributes: { "aria-label": "Close the task" },
      }),
    ),
    facts([
      ["origin", origin(task.origin)],
      ["dataset", task.dataset],
      ["images", count(task.images)],
      ["classes", count(task.class_total)],
      ["head error", [percent(task.head_error), interval(task.head_error_interval)].filter(Boolean).join(" ")],
      ["norm", short(task.norm)],
      ["noise", distance(task.noise)],
      ["embedded", task.made],
    ]),
    explain([origin(task.origin), "head error", "norm", task.noise === null ? "" : "noise"]),
    make(
      "div",
      { className: "actions" },
      button("Compare with …", () => go({ isPicking: true })),
      button("Show in the matrix", () => go({ view: "matrix" })),
    ),
    nearest(task),
    showRecommendation(task.id),
    classes(task),
    settings(task),
  ].filter(Boolean);
}

const interval = (ends) => (ends ? `(${range(ends[0], ends[1])})` : null);

function nearest(task) {
  const body = make("div");
  fill(
    body,
    (signal) => readNearest(task.id, 10, signal),
    (answer) => {
      showNeighbours(answer.neighbours.slice(0, 6).map(({ id }) => id));
      return answer.neighbours.length ? neighbours(answer) : empty("There is no other task in this space yet.");
    },
    "Looking for its neighbours …",
  );
  return make(
    "section",
    { id: "nearest", attributes: { "aria-label": "Nearest tasks" } },
    make("h3", {}, "Nearest tasks"),
    body,
  );
}

function neighbours({ noise, neighbours: list }) {
  const rows = list.map((one) =>
    make(
      "li",
      {},
      button(one.name, () => open(one.id), { className: "link word" }),
      one.is_within_noise
        ? make(
            "span",
            { className: "tag", title: "no farther than two estimates of one task may lie apart" },
            "within noise",
          )
        : null,
      make("span", { className: "number" }, distance(one.distance)),
      button("⇄", () => go({ with: one.id }), {
        className: "plain small",
        attributes: { "aria-label": `Compare with ${one.name}`, title: "Compare" },
      }),
    ),
  );
  const told =
    noise === null || noise === undefined
      ? null
      : make(
          "p",
          { className: "quiet" },
          `Two estimates of one task lie about ${distance(noise)} apart: smaller differences say nothing.`,
        );
  return [make("ol", { className: "nearest" }, rows), told].filter(Boolean);
}

function classes(task) {
  if (!task.classes?.length) return null;
  const list = [...task.classes].sort((a, b) => b.count - a.count),
    top = list[0].count || 1;
  const row = ({ name, count: number }) =>
    make(
      "li",
      {},
      make("span", { className: "word" }, name),
      make("span", { className: "number" }, count(number)),
      shareBar(number, top, plural(number, "image")),
    );
  const rest = list.slice(CLASSES),
    left = task.class_total - list.length;
  return make(
    "section",
    { attributes: { "aria-label": "Classes" } },
    make("h3", {}, plural(task.class_total, "class", "classes")),
    make("ul", { className: "counts" }, list.slice(0, CLASSES).map(row)),
    rest.length
      ? make(
          "details",
          {},
          make("summary", {}, `${count(rest.length)} more`),
          make("ul", { className: "counts" }, rest.map(row)),
        )
      : null,
    left > 0 ? make("p", { className: "quiet" }, `and ${count(left)} that are not listed here`) : null,
  );
}

function settings(task) {
  const pairs = Object.entries(task.settings ?? {}).filter(([, value]) => value !== null);
  if (!pairs.length) return null;
  return make(
    "details",
    {},
    make("summary", {}, "How it was embedded"),
    facts(pairs.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)])),
  );
}
