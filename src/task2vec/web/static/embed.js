// Embedding a folder: choose one that the server may read, start a job, and follow it. Other jobs wait for their turn.

import { cancelJob, readFolders, readJob, readJobs, startJob } from "./api.js";
import { button, get, make, percent, plural } from "./dom.js";
import { announce, empty, fill, problem, withCode } from "./parts.js";
import { state, watch } from "./state.js";

const MOST = 400,
  NAMED = 5;
const place = get("view-embed"),
  progress = get("progress");

export function startEmbed() {
  watch((changed) => {
    if (state.view === "embed" && (changed.has("view") || changed.has("status"))) show();
  });
}

// --- the form ----------------------------------------------------------------------------------------------------------

function show() {
  const { status } = state;
  if (!status) return;
  const body = make("div");
  place.replaceChildren(make("h2", "Embed a folder"), body);
  if (!status.can_embed) {
    body.append(
      make(
        "div.empty",
        make("p", "This server has no access to image folders yet. Restart it with the folder that contains your tasks:"),
        make("pre", { tabIndex: 0 }, make("code", "task2vec serve --root DIR")),
        make("p", withCode("Or embed a folder on the command line: `task2vec embed DIR`. It appears here when you return.")),
      ),
    );
    return;
  }
  body.before(
    make(
      "p.quiet",
      "A task is a folder with one subfolder of images per class. It is embedded in the same space as the bundled tasks, so " +
        "it appears among them and models can be recommended for it.",
    ),
  );
  const read = async () => {
    const answers = await Promise.all(status.roots.map(({ id }) => readFolders(id)));
    return answers.map(({ folders }) => layFlat(folders));
  };
  fill(body, read, form, "Listing folders …");
}

/** Whether a folder could be a task: two class folders or more, with images. */
const isTask = ({ images, classes }) => images > 0 && classes > 1;

/**
 * Tasks and the folders that lead to them, each after its parent, with depth and path; `canBe` marks those that can be
 * chosen. A folder of tasks could itself be a task with these as its classes: it comes again after them, as `isOuter`.
 * `loose` are the paths of all other folders with images, without class folders of tasks.
 */
function layFlat(list) {
  const known = new Map(list.map((folder) => [folder.id, folder])),
    below = Map.groupBy(list, ({ parent }) => (known.has(parent) ? parent : null)),
    above = (folder) => known.get(folder.parent),
    outer = new Set();
  for (const folder of list.filter(isTask))
    for (let one = above(folder); one && !outer.has(one.id); one = above(one)) outer.add(one.id);
  const isListed = (folder) => isTask(folder) || outer.has(folder.id);
  const flat = [];
  const walk = (parent, depth, path) => {
    const next = (below.get(parent) ?? []).filter(isListed);
    next.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    for (const folder of next) {
      const one = { ...folder, depth, path: path ? `${path}/${folder.name}` : folder.name },
        isOuter = outer.has(folder.id);
      flat.push({ ...one, canBe: !isOuter });
      walk(folder.id, depth + 1, one.path);
      if (isOuter && isTask(folder)) flat.push({ ...one, depth: depth + 1, canBe: true, isOuter });
    }
  };
  walk(null, 0, "");
  const isInTask = (folder) => {
    const up = above(folder);
    return Boolean(up) && ((isTask(up) && !outer.has(up.id)) || isInTask(up));
  };
  const isLoose = (folder) => folder.images > 0 && !isListed(folder) && !isInTask(folder);
  const pathOf = (folder) => (above(folder) ? `${pathOf(above(folder))}/${folder.name}` : folder.name);
  const loose = list.filter((folder) => isLoose(folder) && !(above(folder) && isLoose(above(folder)))).map(pathOf);
  return { flat, loose };
}

function form(roots) {
  const folders = roots.flatMap(({ flat }) => flat),
    loose = unlisted(roots.flatMap((root) => root.loose));
  if (!folders.length)
    return [empty("The folders that this server can read contain no tasks.", "A task needs at least two class folders with images."), loose];
  let chosen = null;
  const list = make("div.folders", { role: "radiogroup", "aria-label": "Folders" }),
    filter = make("input", { id: "folder-filter", type: "search", autocomplete: "off", on: { input: () => choices() } }),
    name = make("input", { id: "task-name", type: "text", maxLength: 100, autocomplete: "off", placeholder: "the folder's name" }),
    start = make("button.main", { type: "submit", disabled: true }, "Embed"),
    trouble = make("div");
  const choose = (folder) => {
    chosen = folder;
    name.placeholder = folder.name;
    start.disabled = false;
  };
  const choices = () => {
    const words = filter.value.trim().toLowerCase(),
      fit = folders.filter(({ path }) => !words || path.toLowerCase().includes(words));
    list.replaceChildren(...fit.slice(0, MOST).map((folder) => row(folder, { words, isChosen: chosen?.id === folder.id, choose })));
    if (!fit.length) list.append(make("p.quiet", "No folder name matches."));
    if (fit.length > MOST) list.append(make("p.quiet", `and ${plural(fit.length - MOST, "more folder")}: filter the list to see them`));
  };
  const submit = async (event) => {
    event.preventDefault();
    if (!chosen || start.disabled) return;
    start.disabled = true;
    trouble.replaceChildren();
    try {
      take(await startJob(chosen.id, name.value.trim()));
    } catch (error) {
      trouble.replaceChildren(problem(error));
    } finally {
      start.disabled = false;
    }
  };
  choices();
  queueMicrotask(showTurn);
  return make(
    "form",
    { on: { submit } },
    make("p.row", make("label", { htmlFor: "folder-filter" }, "filter"), filter),
    list,
    loose,
    make("p.row", make("label", { htmlFor: "task-name" }, "name"), name, start),
    make("p.quiet", { id: "turn", role: "status" }),
    trouble,
  );
}

function row(folder, { words, isChosen, choose }) {
  const { canBe, isOuter } = folder,
    id = `choose-${folder.id}${canBe ? "" : "-above"}`;
  const on = { change: () => choose(folder) },
    size = canBe ? `${plural(folder.images, "image")}, ${plural(folder.classes, "class", "classes")}` : "";
  const label = make(
    canBe ? "label" : "label.quiet",
    { htmlFor: id },
    make("input", { type: "radio", name: "folder", id, disabled: !canBe, checked: isChosen, on }),
    make("span.word", words ? folder.path : folder.name),
    make("span.quiet.number", size),
    isOuter ? make("span.quiet.hint", "Embed the whole folder as one task? Its subfolders look like tasks themselves.") : null,
  );
  if (!words) label.classList.add(`depth-${Math.min(folder.depth, 6)}`);
  return label;
}

function unlisted(paths) {
  if (!paths.length) return null;
  const rest = paths.length - NAMED;
  return make(
    "p.quiet",
    { id: "unlisted" },
    `Not listed: ${plural(paths.length, "folder")} with images but without two class folders: `,
    make("span.word", paths.slice(0, NAMED).join(", ")),
    rest > 0 ? ` and ${rest} more.` : ".",
  );
}

/** What the button will do while another folder is being embedded. */
function showTurn() {
  if (!get("turn")) return;
  const names = followed ? [followed.name, ...[...ours].filter(([id]) => id !== followed.id).map(([, name]) => name)] : [];
  const [first, ...rest] = names.map((name) => `“${name}”`);
  get("turn").textContent = first
    ? `${first} is being embedded${rest.length ? `, then ${rest.join(", ")}` : ""}. ` +
      "A new job is queued; at most three can wait."
    : "";
}

// --- jobs --------------------------------------------------------------------------------------------------------------

const isOver = ({ state: one }) => ["done", "failed", "cancelled"].includes(one);
const ours = new Map(); // names of the jobs that were started on this page and have not ended, by id
let followed = null,
  line = null,
  stage = "",
  onEnd = () => {};

/** Follows the jobs that were running when the page was opened. */
export async function startJobs(whenDone) {
  onEnd = whenDone;
  await followNext();
}

/** A job that was started here: shown at once, or after those before it. */
function take(job) {
  ours.set(job.id, job.name);
  if (followed) return showTurn();
  progress.replaceChildren(); // notices of earlier jobs
  follow(job);
}

async function followNext() {
  const { jobs } = await readJobs();
  const job = jobs.findLast((one) => !isOver(one) || ours.has(one.id)); // the newest come first
  if (job && !followed) follow(job);
}

/** Shows a job until it ends. */
function follow(job) {
  followed = job;
  stage = "";
  if (isOver(job)) return end(job);
  showJob(job);
  showTurn();
  poll(job);
}

async function poll(job) {
  try {
    for (let news = await readJob(job.id); followed === job; news = await readJob(job.id)) {
      showJob(news);
      if (isOver(news)) return end(news);
      await new Promise((done) => setTimeout(done, 700));
    }
  } catch (error) {
    end({ ...job, state: "failed", error });
  }
}

function showJob(job) {
  if (isOver(job) || followed?.id !== job.id) return;
  progress.hidden = false;
  if (!line?.isConnected) {
    line = make(
      "div",
      make("span.word", { id: "job-name" }),
      make("progress", { "aria-labelledby": "job-name" }),
      make("span.number", { id: "job-part" }),
      button("", "Cancel", () => cancelJob(followed.id).catch(() => {}), { id: "cancel" }),
    );
    progress.prepend(line);
  }
  const bar = line.querySelector("progress");
  if (job.total > 0) [bar.max, bar.value] = [job.total, job.done];
  else bar.removeAttribute("value");
  get("job-name").textContent =
    job.state === "waiting" ? `“${job.name}” is waiting for its turn` : `Embedding “${job.name}”: ${job.stage}`;
  get("job-part").textContent = job.total > 0 ? percent(job.done / job.total, 0) : "";
  if (job.stage !== stage) announce(get("job-name").textContent);
  stage = job.stage;
}

function end(job) {
  const isOurs = ours.delete(followed.id);
  followed = null;
  line?.remove();
  progress.hidden = !progress.children.length;
  if (job.state === "failed") notify(problem(job.error ?? { what: "The embedding failed." }));
  if (job.state === "cancelled") notify(make("span", { role: "status" }, `“${job.name}” was cancelled; nothing was added to the library.`));
  showTurn();
  onEnd({ ...job, isOurs });
  followNext().catch(() => {}); // the next request reports a server that does not respond
}

/** A notice below the progress that stays until it is closed; `action` is one more button. */
export function notify(content, action = null) {
  const close = () => {
    notice.remove();
    progress.hidden = !progress.children.length;
  };
  const act = () => {
    close();
    action.run();
  };
  const notice = make("div", content, action ? button("", action.name, act) : null, button("", "Close", close));
  progress.append(notice);
  progress.hidden = false;
}
