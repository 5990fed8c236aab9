// The panel of the open task: what it is, its nearest tasks, which model to start from, and the report on it.

import { readNearest, readRecommendation, readTask, reportAddress } from "./api.js";
import { showComparison } from "./compare.js";
import { button, count, distance, facts, get, isNumber, make, millions, percent, plural, range, short } from "./dom.js";
import { announce, bring, empty, explain, fill, formatOrigin, intervalBar, shareBar, withCode } from "./parts.js";
import { TABS, address, go, open, state, watch } from "./state.js";

const CLASSES = 12,
  MODELS = 6;
const SHOTS = ["half", "20", "10", "5", "2"];
const panel = get("panel");
let showNeighbours = () => {},
  showTab = () => {};
// The server chooses by the number of images, until the reader does.
export const chosenShots = { value: null };

export function startPanel(onNeighbours) {
  showNeighbours = onNeighbours;
  watch((changed) => {
    if (changed.has("tab") || changed.has("status")) showTab();
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
  const { task: id, with: other } = state,
    body = make("div");
  panel.replaceChildren(body);
  if (!id) return body.append(empty("Click a task on the map, or search for one, to see its neighbours and the recommended models."));
  if (other) return showComparison(body, id, other);
  return fill(body, (signal) => readTask(id, signal), describe, "Loading the task …");
}

function describe(task) {
  // A link may name a task of another space than the current one.
  if (task.space !== state.space) go({ space: task.space });
  document.title = `${task.name} – task2vec`;
  announce(`${task.name} is open`);
  const close = button(".plain", "×", () => go({ task: null, with: null }), { "aria-label": "Close the task" });
  return [make("div.head", make("h2.name", task.name), close), ...makeTabs(task)];
}

/** The tabs of a task and their panels; the report is looked for whenever its tab is opened and it is not there. */
function makeTabs(task) {
  const press = ({ key }) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!step) return;
    go({ tab: TABS.at((TABS.indexOf(state.tab) + step) % TABS.length) });
    get(`tab-${state.tab}`).focus();
  };
  const tab = (name, text) =>
    button("", text, () => go({ tab: name }), { id: `tab-${name}`, role: "tab", "aria-controls": `tabpanel-${name}` });
  const tabpanel = (name, ...children) =>
    make("div", { id: `tabpanel-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}` }, ...children);
  const tabs = [tab("overview", "Overview"), tab("report", "Report")],
    panels = [tabpanel("overview", overview(task)), tabpanel("report")];
  showTab = () => {
    TABS.forEach((name, number) => {
      const isOpen = name === state.tab;
      tabs[number].setAttribute("aria-selected", String(isOpen));
      tabs[number].tabIndex = isOpen ? 0 : -1;
      panels[number].hidden = !isOpen;
    });
    if (state.tab === "report" && !panels[1].querySelector("iframe"))
      fill(panels[1], (signal) => readTask(task.id, signal), report, "Looking for a report …");
  };
  showTab();
  return [make("div.tabs", { role: "tablist", "aria-label": "About the task", on: { keydown: press } }, tabs), ...panels];
}

/** The report in a frame that runs no scripts, or how to make one. */
function report(task) {
  if (task.origin === "bundled")
    return empty("A report is made from images, but this task is bundled with task2vec without its images.");
  const missing = `There is no report on this task yet. Make one from its images, where DIR is the library “${state.status?.library}”:`;
  if (!task.has_report)
    return [make("p", missing), make("pre", { tabIndex: 0 }, make("code", "task2vec report FOLDER --library DIR"))];
  const src = reportAddress(task.id);
  return [
    make("p", make("a", { href: src, target: "_blank", rel: "noopener" }, "Open in a new window")),
    make("iframe.report", { sandbox: "", title: `Report on ${task.name}`, src }),
  ];
}

function overview(task) {
  const interval = task.head_error_interval ? `(${range(...task.head_error_interval)})` : null;
  const settings = Object.entries(task.settings).filter(([, value]) => value !== null);
  return [
    facts([
      ["origin", formatOrigin(task.origin)],
      ["dataset", task.dataset],
      ["images", count(task.images)],
      ["classes", count(task.classes)],
      ["head error", [percent(task.head_error), interval].filter(Boolean).join(" ")],
      ["norm", short(task.norm)],
      ["noise", distance(task.noise) ?? "unknown"],
      ["added", task.added],
    ]),
    explain([formatOrigin(task.origin), "head error", "norm", "noise"]),
    make(
      "div.actions",
      button("", "Compare with …", () => go({ isPicking: true })),
      button("", "Show in the matrix", () => go({ view: "matrix" })),
    ),
    nearest(task),
    recommendation(task.id),
    classes(task),
    make(
      "details",
      make("summary", "How it was embedded"),
      facts(settings.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)])),
    ),
  ];
}

function nearest(task) {
  const body = make("div");
  const row = (one) =>
    make(
      "li",
      button(".link.word", one.name, () => open(one.id)),
      one.is_within_noise ? make("span.tag", "within noise") : null,
      make("span.number", distance(one.distance)),
      button(".plain.small", "⇄", () => go({ with: one.id }), { "aria-label": `Compare with ${one.name}`, title: "Compare" }),
    );
  const show = ({ noise, neighbours }) => {
    showNeighbours(neighbours.slice(0, 6).map(({ id }) => id));
    if (!neighbours.length) return empty("There is no other task in this space yet.");
    const text = `Two estimates of one task are about ${distance(noise)} apart by chance; smaller distances are noise.`;
    return [make("ol.nearest", neighbours.map(row)), isNumber(noise) ? make("p.quiet", text) : null];
  };
  fill(body, (signal) => readNearest(task.id, 10, signal), show, "Searching for neighbours …");
  return make("section", { id: "nearest", "aria-label": "Nearest tasks" }, make("h3", "Nearest tasks"), body);
}

function classes(task) {
  if (!task.class_counts.length) return null;
  const list = [...task.class_counts].sort((a, b) => b.count - a.count),
    top = list[0].count || 1;
  const row = ({ name, count: images }) =>
    make("li", make("span.word", name), make("span.number", count(images)), shareBar(images, top, plural(images, "image")));
  const rows = list.map(row),
    rest = rows.splice(CLASSES),
    unlisted = task.classes - list.length;
  return make(
    "section",
    { "aria-label": "Classes" },
    make("h3", plural(task.classes, "class", "classes")),
    make("ul.counts", rows),
    rest.length ? make("details", make("summary", `${count(rest.length)} more`), make("ul.counts", rest)) : null,
    unlisted > 0 ? make("p.quiet", `and ${count(unlisted)} more that are not listed here`) : null,
  );
}

const formatShots = (value) => (value === "half" ? "half of the images" : `${value} per class`);

/** Buttons for the number of training images, which changes the best model. */
export function shotsSwitch(onChange) {
  const press = (value) => {
    chosenShots.value = value;
    markShots(group, value);
    onChange();
  };
  const buttons = SHOTS.map((value) => button("", formatShots(value), () => press(value), { value }));
  const group = make("div.switch", { role: "group", "aria-label": "Training images" }, buttons);
  markShots(group, chosenShots.value);
  return group;
}

export function markShots(group, value) {
  for (const one of group.children) one.setAttribute("aria-pressed", String(one.value === value));
}

function recommendation(id) {
  const body = make("div");
  fill(body, (signal) => readRecommendation(id, signal), showModels, "Looking up models …");
  return make(
    "section",
    { id: "recommendation", "aria-label": "Recommended models" },
    make("h3", "Which model to start from"),
    body,
  );
}

/** The models that were measured, or those to measure first. */
function showModels(answer) {
  const models = (answer.is_measured ? answer.rows.filter(({ error }) => isNumber(error)) : answer.rows).slice(0, MODELS),
    top = Math.max(...models.map(({ high }) => high ?? 0)) * 1.02 || 1;
  const tags = (one) => [one.is_choice ? "recommended" : null, one.is_tied ? "tie" : null].filter(Boolean);
  const row = (one) =>
    make(
      "li",
      make("span.mark", String(one.rank)),
      make("span.word", one.model, tags(one).map((text) => make("span.tag", text))),
      make("span.number", { title: range(one.low, one.high) ?? "" }, isNumber(one.error) ? percent(one.error) : millions(one.params)),
      isNumber(one.error)
        ? intervalBar(one, top, `${one.model}: test error ${percent(one.error)}, 95% interval ${range(one.low, one.high)}`, one.is_choice)
        : make("span.quiet.why", one.reason),
    );
  const code = (title, text) => make("details", make("summary", title), make("pre", { tabIndex: 0 }, make("code", text)));
  const chosen = answer.rows.find(({ is_choice }) => is_choice);
  return [
    make("p.sentence", withCode(answer.verdict)),
    make("ol.models", models.map(row)),
    make(
      "p.quiet",
      answer.is_measured
        ? `Dot: measured test error; bar: its 95% interval; the scale ends at ${percent(top, 0)}. `
        : "In the order in which they should be measured, with their parameters. ",
      make("a", { href: address("models") }, `All ${answer.rows.length} models in a table`),
    ),
    explain([...new Set(models.flatMap(tags))]),
    chosen?.load ? code(`How to get ${chosen.model}`, chosen.load) : null,
    answer.is_measured ? null : code("How to measure them", answer.command),
    answer.notes.length ? make("ul.notes.quiet", answer.notes.map((text) => make("li", withCode(text)))) : null,
  ];
}
