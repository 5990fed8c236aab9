// The start of the page: reads the status and the map, and keeps views, address, theme and map in step.

import { readMap, readStatus } from "./api.js";
import { button, count, facts, get, make, percent, short, unfold } from "./dom.js";
import { colourPoints, startLegend } from "./legend.js";
import { TaskMap, isDark, zoomButtons } from "./map.js";
import { startMatrix } from "./matrix.js";
import { startPanel } from "./panel.js";
import { bring, empty, formatOrigin, problem, waiting, withCode } from "./parts.js";
import { startSearch } from "./search.js";
import { VIEWS, address, go, isOwn, open, readHash, state, watch } from "./state.js";
import { startTables } from "./tables.js";

const notice = get("map-state");
const map = new TaskMap(get("map"), get("tip"), {
  describe: (point) => [
    make("div.name", point.name),
    facts([
      ["dataset", point.dataset],
      ["taxon", point.taxon],
      ["images", count(point.images)],
      ["classes", count(point.classes)],
      ["head error", percent(point.head_error)],
      ["norm", short(point.norm)],
      ["origin", formatOrigin(point.origin)],
    ]),
  ],
  open: (point) => {
    if (point) open(point.id);
    else if (!state.isPicking) go({ task: null, with: null });
  },
});
const showMap = (options) => map.show(colourPoints(options), options);
let control = null;

function say(...children) {
  notice.hidden = !children.length;
  notice.replaceChildren(...children);
}

/** Reads the map of the current space; the old one stays until the new one is there. */
async function loadMap() {
  control?.abort();
  control = new AbortController();
  if (!state.points.length) say(waiting("Loading the map …"));
  const onWait = ({ stage, done }) => say(waiting(`Computing the map: ${stage}, ${percent(done, 0)} …`));
  try {
    const { points, method } = await readMap(state.space, { onWait, signal: control.signal });
    if (points.length) say();
    else say(empty("There are no tasks yet.", "Embed a folder: task2vec embed FOLDER"));
    go({ points, method });
  } catch (error) {
    if (error.name === "AbortError") return;
    say(problem(error, loadMap));
    if (!error.what) throw error;
  }
}

function showFirstStep() {
  const hasNone = state.points.length > 0 && !state.points.some(isOwn);
  const text = "All tasks on this map are bundled with task2vec. To see yours among them, run `task2vec embed FOLDER`.";
  get("first-step").hidden = !hasNone;
  get("first-step").replaceChildren(...withCode(text));
}

function showView() {
  for (const view of VIEWS) get(`view-${view}`).hidden = view !== state.view;
  for (const link of document.querySelectorAll("[data-view]")) {
    link.href = address(link.dataset.view);
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  get("keys").hidden = state.view !== "map";
  document.body.dataset.view = state.view;
}

function showPicking() {
  get("picking").hidden = !state.isPicking;
  const cancel = button("", "Cancel", () => go({ isPicking: false }));
  get("picking").replaceChildren("Pick the second task on the map, in the list, or by searching. ", cancel);
}

/** Embeddings by different probes, image sizes or methods are not comparable, so each space has its own map. */
function showSpaces() {
  get("spaces")?.remove();
  const spaces = state.status?.spaces ?? [];
  if (spaces.length < 2) return;
  const onChange = (event) => go({ space: event.target.value, task: null, with: null, points: [] });
  const options = spaces.map(({ id, name, tasks }) =>
    make("option", { value: id, selected: id === state.space }, `${name} (${tasks})`),
  );
  const meaning =
    "Tasks are comparable if they were embedded by the same network, at the same image size, with the same method (in " +
    "brackets). Such tasks form a space, and each space has its own map.";
  get("legend").before(
    make(
      "div",
      { id: "spaces" },
      make("p.row", make("label", { htmlFor: "space" }, "space"), make("select", { id: "space", on: { change: onChange } }, options)),
      unfold("What is a space?", make("p", meaning)),
    ),
  );
}

/** Light or dark: the system's setting, until the reader chooses. */
function startTheme(onChange) {
  const KEY = "task2vec-theme";
  const show = () => {
    const other = isDark() ? "light" : "dark";
    get("theme").textContent = other === "dark" ? "☾" : "☀";
    get("theme").title = `Switch to ${other}`;
    get("theme").setAttribute("aria-label", `Switch to ${other}`);
    onChange();
  };
  const set = (theme) => {
    document.documentElement.style.colorScheme = theme;
    show();
  };
  get("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      /* storage may be forbidden: then the choice is not remembered */
    }
    set(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  let chosen = "";
  try {
    chosen = localStorage.getItem(KEY) ?? "";
  } catch {
    /* as above */
  }
  set(["light", "dark"].includes(chosen) ? chosen : "");
}

function follow(changed) {
  showView();
  showPicking();
  if (changed.has("isPicking") && state.isPicking) bring(get("picking"));
  if (changed.has("points")) showFirstStep();
  if (changed.has("status") || changed.has("space")) showSpaces();
  if (changed.has("space") && !changed.has("status")) loadMap();
  if (changed.has("points")) showMap({ isNew: changed.has("space") || map.isWhole });
  if (changed.has("task") || changed.has("with")) map.choose([state.task, state.with].filter(Boolean));
  map.redraw();
}

async function start() {
  startLegend(showMap);
  startPanel((ids) => map.choose([state.task, state.with].filter(Boolean), ids));
  startSearch();
  startTables();
  const repaint = startMatrix();
  watch(follow);
  get("view-map").append(zoomButtons(map));
  startTheme(() => {
    if (state.points.length) showMap();
    repaint();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    get("content").focus();
  });
  addEventListener("popstate", () => go({ isPicking: false, ...readHash() }));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.isPicking) go({ isPicking: false });
  });
  // Something may have been embedded from the command line meanwhile.
  addEventListener("focus", async () => {
    const status = await readStatus().catch(() => null);
    if (!status?.revision || !state.status || status.revision === state.status.revision) return;
    go({ status });
    await loadMap();
  });
  window.task2vec = Object.freeze({ whereIs, state }); // for tests and the console
  const asked = readHash();
  try {
    const status = await readStatus(),
      { spaces } = status;
    const known = spaces.find(({ id }) => id === asked.space) ?? spaces.find((one) => one.is_default) ?? spaces[0];
    go({ ...asked, status, space: known?.id ?? null });
    showView();
  } catch (error) {
    showView();
    return say(problem(error, () => location.reload()));
  }
  await loadMap();
}

/** Where a task stands on the screen. */
function whereIs(id) {
  const point = map.find(id),
    box = map.canvas.getBoundingClientRect();
  if (!point) return null;
  const [x, y] = map.where(point);
  return [box.left + x, box.top + y];
}

start();
