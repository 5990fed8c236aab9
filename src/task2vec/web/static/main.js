// Where the page begins: reads what is there, keeps views, address and map together.

import { readMap, readStatus } from "./api.js";
import { startEmbed } from "./embed.js";
import { startExperts } from "./experts.js";
import { bring, button, get, make, tell } from "./dom.js";
import { notify, startJobs } from "./jobs.js";
import { startLegend } from "./legend.js";
import { startList } from "./list.js";
import { redraw, startMap, whereIs } from "./map.js";
import { startMatrix } from "./matrix.js";
import { empty, problem, waiting, withCode } from "./notices.js";
import { startSearch } from "./search.js";
import { startSpaces } from "./spaces.js";
import { VIEWS, address, go, open, readHash, state, watch } from "./state.js";
import { startPanel } from "./task.js";
import { startTheme } from "./theme.js";
import { percent } from "./words.js";

const place = get("map-state");
let control = null;

function say(...children) {
  place.hidden = !children.length;
  place.replaceChildren(...children);
}

/** Reads the map of the space that is looked at; the one on the screen stays until the new one is there. */
async function loadMap() {
  control?.abort();
  control = new AbortController();
  const { signal } = control;
  if (!state.points.length) say(waiting("Reading the map …"));
  const onWait = ({ stage, done }) =>
    say(
      waiting(
        `The map is being made: ${stage ?? "laying out"}${typeof done === "number" ? `, ${percent(done, 0)}` : ""} …`,
      ),
    );
  try {
    const map = await readMap(state.space, { onWait, signal });
    if (map.points.length) say();
    else say(empty("There are no tasks yet.", "Embed a folder here, or run task2vec demo."));
    go({ points: map.points, method: map.method ?? null });
  } catch (error) {
    if (error.name === "AbortError") return;
    say(problem(error, loadMap));
    if (!error.what) throw error;
  }
}

function showFirstStep() {
  const isEmpty = state.points.length > 0 && !state.points.some(({ origin }) => origin === "library");
  get("first-step").hidden = !isEmpty;
  if (!isEmpty) return;
  get("first-step").replaceChildren(
    "None of your tasks is on this map yet: all of these come with task2vec. ",
    ...(state.status?.can_embed
      ? ["To see yours among them, ", make("a", { href: address("embed") }, "embed a folder"), "."]
      : withCode("To see yours among them: `task2vec embed DIR`, or start again with `task2vec serve --root DIR`.")),
  );
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
  if (!state.isPicking) return;
  get("picking").replaceChildren(
    "Pick the second task: on the map, in the list, or by searching. ",
    button("Cancel", () => go({ isPicking: false })),
  );
}

async function onJobEnd(job) {
  if (job.state !== "done") return;
  tell(`${job.name} is embedded`);
  await loadMap();
  if (!job.task) return;
  const show = () => open(job.task, { view: "map" });
  // A task that was begun on another page is told, not forced on who reads something else.
  if (job.isOurs) show();
  else notify(make("span", { className: "word" }, `“${job.name}” is embedded.`), { name: "Open it", run: show });
}

async function start() {
  startTheme();
  startMap();
  for (const begin of [
    startLegend,
    startPanel,
    startSearch,
    startList,
    startMatrix,
    startExperts,
    startEmbed,
    startSpaces,
  ])
    begin();
  watch((_, changed) => {
    showView();
    showPicking();
    if (changed.has("isPicking") && state.isPicking) bring(get("picking"));
    if (changed.has("points") || changed.has("status")) showFirstStep();
    if (changed.has("space") && !changed.has("status")) loadMap();
    if (changed.has("view")) redraw();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    get("content").focus();
  });
  addEventListener("popstate", () => go({ isPicking: false, ...readHash() }));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.isPicking) go({ isPicking: false });
  });
  // Something may have been embedded from the command line while nobody looked.
  addEventListener("focus", async () => {
    const status = await readStatus().catch(() => null);
    if (!status?.revision || !state.status || status.revision === state.status.revision) return;
    go({ status });
    await loadMap();
  });
  window.task2vec = Object.freeze({ whereIs, state });
  const asked = readHash();
  try {
    const status = await readStatus();
    const known =
      status.spaces.find(({ id }) => id === asked.space) ??
      status.spaces.find((one) => one.is_default) ??
      status.spaces[0];
    go({ ...asked, status, space: known?.id ?? null });
    showView();
  } catch (error) {
    showView();
    return say(problem(error, () => location.reload()));
  }
  await loadMap();
  await startJobs(onJobEnd);
}

start();
