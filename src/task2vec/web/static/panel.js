// The panel of the open task: what it is, its nearest tasks, which model to start from, and the report on it.

import { readNearest, readRecommendation, readTask, reportAddress } from "./api.js";
import { showComparison } from "./compare.js";
import { button, count, distance, facts, get, isNumber, make, millions, percent, plural, range, short } from "./dom.js";
import { announce, bring, empty, explain, fill, formatOrigin, intervalBar, shareBar, sortable, withCode } from "./parts.js";
import { scatter } from "./scatter.js";
import { TABS, address, go, open, state, watch } from "./state.js";

const CLASSES = 12,
  MODELS = 6,
  LETTERS = "abcdefgh";
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
  const show = (answer) => {
    markShots(choice, answer.shots);
    return showModels(answer);
  };
  const load = () =>
    fill(body, (signal) => readRecommendation(id, chosenShots.value, signal), show, "Computing a recommendation …");
  const choice = shotsSwitch(load);
  load();
  return make(
    "section",
    { id: "recommendation", "aria-label": "Recommended models" },
    make("h3", "Which model to start from"),
    choice,
    body,
  );
}

function showModels(answer) {
  const predicted = [...answer.rows, ...answer.others].filter(({ error }) => isNumber(error)),
    models = predicted.slice(0, MODELS),
    baseline = predicted.find((one) => one.is_average_best);
  if (baseline && !models.includes(baseline)) models.push(baseline);
  const tags = (one) => [
    ...(one.is_average_best ? ["average best"] : []),
    ...(isNumber(one.measured) ? ["measured"] : []),
    ...(answer.others.includes(one) ? ["train it"] : []),
  ];
  const key = (one) => String(one.rank + (answer.others.includes(one) ? answer.rows.length : 0));
  const candidates = models.map((one) => ({ ...one, key: key(one), training: "linear head", tags: tags(one) })),
    zoo = answer.zoo.map((one, number) => ({ ...one, key: LETTERS[number], training: "fine-tuned", isZoo: true, tags: [] })),
    all = [...candidates, ...zoo],
    top = Math.max(...all.map(({ high, error }) => high ?? error)) * 1.02 || 1;
  const row = (one) => {
    const interval = range(one.low, one.high);
    const label = `${one.model}: test error ${percent(one.error)}, ${interval ? `90% interval ${interval}` : "no interval"}`;
    return make(
      "li",
      mark(one),
      make("span.word", one.model, one.tags.map((text) => make("span.tag", text))),
      make("span.number", { title: interval ?? "" }, percent(one.error)),
      intervalBar(one, top, label, one.key === "1"),
    );
  };
  const generic = models.some(({ model }) => model.startsWith("generic")) ? ["generic"] : [],
    trained = formatShots(answer.shots).replace("per class", "images per class");
  const code = (title, lines) =>
    make("details", make("summary", title), make("pre", { tabIndex: 0 }, make("code", lines.join("\n"))));
  return [
    make(answer.is_confident ? "p.sentence" : "p.sentence.is-unsure", withCode(answer.verdict)),
    ...answer.curves.map((text) => make("p.curve", text)),
    make("ol.models", candidates.map(row)),
    make(
      "p.quiet",
      `Dot: predicted test error; bar: its 90% interval; the scale ends at ${percent(top, 0)}. `,
      `Based on ${answer.known}: test errors of linear classifiers on ${trained}, predicted by “${answer.strategy}”. `,
      make("a", { href: address("models") }, `All ${answer.rows.length + answer.others.length} models in a table`),
    ),
    explain([...new Set(models.flatMap(tags)), ...generic]),
    models.length ? code(`How to get ${models[0].model}`, [models[0].load]) : null,
    ...(zoo.length
      ? [
          make("h3", "Models of the zoo to fine-tune"),
          make("ol.models.zoo", zoo.map(row)),
          make("p.quiet", `Ranked by published errors, which were not measured on tasks like yours. Predicted with ${trained}.`),
          code("How to get them", zoo.map(({ load }) => load)),
        ]
      : []),
    ...showSizes(all, top),
    answer.notes.length ? make("ul.notes.quiet", answer.notes.map((text) => make("li", withCode(text)))) : null,
  ];
}

const mark = ({ key, isZoo }) => make(isZoo ? "span.mark.is-zoo" : "span.mark", key);

/** Errors against parameters as a figure, and the same as a table. */
function showSizes(all, top) {
  const sized = all.filter(({ params }) => params > 0),
    kinds = [sized.find(({ isZoo }) => !isZoo), sized.find(({ isZoo }) => isZoo)].filter(Boolean),
    numbers = (name, read, show) => ({ name, value: read, cell: (one) => show(read(one)) });
  if (sized.length < 2) return [];
  const columns = [
    { name: "model", value: (one) => one.model, isText: true },
    numbers("error", (one) => one.error, percent),
    { name: "90% interval", value: (one) => one.low, cell: (one) => range(one.low, one.high) },
    numbers("params", (one) => one.params, millions),
    { name: "training", value: (one) => one.training, isText: true },
    numbers("pixels", (one) => one.size, count),
    numbers("images/s", (one) => one.cpu_speed, short),
  ];
  const label = `Predicted test errors of ${sized.length} models against their parameters; the table below has the numbers`;
  return [
    make("h3", "Error and size"),
    scatter(sized, top, label),
    make(
      "p.quiet",
      kinds.flatMap((one) => [mark(one), one.isZoo ? " zoo, fine-tuned. " : " candidates, linear head. "]),
      "Height: predicted test error; line: its 90% interval. Models of almost equal size are drawn side by side.",
    ),
    make("details", make("summary", "These models in a table"), sortable(columns, all, { caption: "Errors and sizes", by: 1 })),
  ];
}
