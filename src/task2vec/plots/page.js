// The page of `task2vec map`: static/dom.js and static/map.js stand before this in the same script.

import { button, count, distance, facts, get, make, percent, short } from "./dom.js";
import { TaskMap, chooseLook, groupButtons, zoomButtons } from "./map.js";

const { tasks, groups } = JSON.parse(get("data").textContent);
const hidden = new Set();
const found = get("found"),
  search = get("search");
let chosen = null;
tasks.forEach((task, index) => Object.assign(task, { id: String(index), isOwn: false }));

const map = new TaskMap(get("map"), get("tip"), { describe, open });

function describe(task) {
  const near = task.nearest.slice(0, 3).map(([other, apart]) => `${tasks[other].name} (${distance(apart)})`);
  const nearest = near.length ? [make("div.word", `nearest: ${near.join(", ")}`)] : [];
  return [make("div.name", task.name), listFacts(task), ...nearest];
}

const listFacts = (task) =>
  facts([
    ["group", groups[task.group]],
    ["images", count(task.images)],
    ["classes", count(task.classes)],
    ["error", percent(task.error)],
    ["norm", short(task.norm)],
  ]);

function show() {
  const looks = groups.map((_, number) => chooseLook(number));
  const shown = tasks.filter(({ group }) => !hidden.has(group));
  if (chosen && hidden.has(chosen.group)) open(null);
  map.show(shown.map((task) => Object.assign(task, looks[task.group])));
  return looks;
}

function open(task) {
  chosen = task;
  map.choose(task ? [task.id] : [], task ? task.nearest.map(([other]) => String(other)) : []);
  const rows = (task?.nearest ?? []).map(([other, apart]) =>
    make("li", button(".link.word", tasks[other].name, () => open(tasks[other])), make("span.number", distance(apart))),
  );
  get("chosen").replaceChildren(
    ...(task ? [make("h2.name", task.name), listFacts(task), make("h3", "Nearest tasks"), make("ol.nearest", rows)] : []),
  );
}

function paintLegend() {
  const sizes = groups.map((_, number) => tasks.filter(({ group }) => group === number).length);
  const list = show().map((look, key) => ({ ...look, key, name: groups[key] || "all tasks", count: sizes[key] }));
  get("legend").replaceChildren(groupButtons(list, hidden, show));
}

function look() {
  const words = search.value.trim().toLowerCase();
  const hits = tasks.filter(({ name, group }) => words && `${name} ${groups[group]}`.toLowerCase().includes(words));
  const go = (task) => {
    found.hidden = true;
    if (hidden.delete(task.group)) paintLegend();
    open(task);
    get("map").focus();
  };
  const rows = hits.slice(0, 50).map((task) => make("li", button(".word", task.name, () => go(task))));
  found.replaceChildren(...rows, ...(rows.length ? [] : [make("li", "no matching task")]));
  found.hidden = !words;
}

search.addEventListener("input", look);
search.addEventListener("keydown", (event) => {
  const first = found.querySelector("button");
  if (!first || !["Enter", "ArrowDown"].includes(event.key)) return;
  event.preventDefault();
  if (event.key === "Enter") first.click();
  else first.focus();
});
get("finder").addEventListener("keydown", (event) => {
  if (event.key === "Escape") found.hidden = true;
});
document.addEventListener("pointerdown", (event) => {
  if (!get("finder").contains(event.target)) found.hidden = true;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintLegend);
get("stage").append(zoomButtons(map));
// For tests and the console: where a task stands on the canvas.
window.taskMap = Object.freeze({ count: tasks.length, where: (index) => map.where(tasks[index]) });
paintLegend();
