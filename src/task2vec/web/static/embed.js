// A folder becomes a task: choose one of those that the server may read, and start.

import { readFolders, startJob } from "./api.js";
import { get, make } from "./dom.js";
import { layFlat } from "./folders.js";
import { take, underWay, watchJobs } from "./jobs.js";
import { empty, fill, problem, withCode } from "./notices.js";
import { state, watch } from "./state.js";
import { plural } from "./words.js";

const MOST = 400,
  NAMED = 5;
const place = get("view-embed");

export function startEmbed() {
  watchJobs(sayTurn);
  watch((_, changed) => {
    if (state.view === "embed" && (changed.has("view") || changed.has("status"))) show();
  });
}

function show() {
  const status = state.status;
  if (!status) return;
  const title = make("h2", {}, "Embed a folder");
  if (!status.can_embed) {
    place.replaceChildren(
      title,
      make(
        "div",
        { className: "empty" },
        make(
          "p",
          {},
          "This server may not read any folder of images yet. " +
            "Stop it, and start it again with the folder that holds your tasks:",
        ),
        make("pre", { tabIndex: 0 }, make("code", {}, "task2vec serve --root DIR")),
        make(
          "p",
          {},
          ...withCode(
            "Or embed a folder from the command line: `task2vec embed DIR`. It appears when you come back here.",
          ),
        ),
      ),
    );
    return;
  }
  const body = make("div");
  place.replaceChildren(
    title,
    make(
      "p",
      { className: "quiet" },
      "A task is a folder with one folder of images per class. It is read where it lies; " +
        "the server looks only below the folders it was allowed.",
    ),
    body,
  );
  fill(
    body,
    async () =>
      (await Promise.all(status.roots.map(({ id }) => readFolders(id)))).map(({ folders }) => layFlat(folders)),
    form,
    "Looking for folders …",
  );
}

function form(roots) {
  const folders = roots.flatMap(({ flat }) => flat),
    loose = unlisted(roots.flatMap((root) => root.loose));
  if (!folders.length) {
    const none = empty(
      "No task lies below the folders that this server may read.",
      "A task is a folder that holds two class folders or more, each with images.",
    );
    return loose ? [none, loose] : none;
  }
  let chosen = null;
  const filter = make("input", {
    id: "folder-filter",
    type: "search",
    autocomplete: "off",
    on: { input: () => choices() },
  });
  const list = make("div", { className: "folders", attributes: { role: "radiogroup", "aria-label": "Folders" } });
  const name = make("input", {
    id: "task-name",
    type: "text",
    maxLength: 100,
    autocomplete: "off",
    placeholder: "the folder's name",
  });
  const start = make("button", { type: "submit", className: "main", disabled: true }, "Embed"),
    trouble = make("div");
  const choose = (folder) => {
    chosen = folder;
    name.placeholder = folder.name;
    start.disabled = false;
  };
  const choices = () => {
    const words = filter.value.trim().toLowerCase(),
      fit = folders.filter(({ path }) => !words || path.toLowerCase().includes(words));
    list.replaceChildren(
      ...fit.slice(0, MOST).map((folder) => row(folder, { words, isChosen: chosen?.id === folder.id, choose })),
    );
    if (!fit.length) list.append(make("p", { className: "quiet" }, "No folder has that in its name."));
    if (fit.length > MOST)
      list.append(
        make("p", { className: "quiet" }, `and ${plural(fit.length - MOST, "more folder")}: filter to see them`),
      );
  };
  const submit = async (event) => {
    event.preventDefault();
    if (!chosen || start.disabled) return;
    start.disabled = true;
    trouble.replaceChildren();
    try {
      const job = await startJob(chosen.id, name.value.trim());
      take(job);
    } catch (error) {
      trouble.replaceChildren(problem(error));
    } finally {
      start.disabled = false;
    }
  };
  choices();
  queueMicrotask(sayTurn);
  return make(
    "form",
    { on: { submit } },
    make("p", { className: "row" }, make("label", { htmlFor: "folder-filter" }, "filter"), filter),
    list,
    loose,
    make("p", { className: "row" }, make("label", { htmlFor: "task-name" }, "name"), name, start),
    make("p", { id: "turn", className: "quiet", attributes: { role: "status" } }),
    trouble,
  );
}

/** What pressing the button brings while another folder is being embedded. */
function sayTurn() {
  const [first, ...rest] = underWay().map((name) => `“${name}”`);
  if (!get("turn")) return;
  get("turn").textContent = first
    ? `${first} is being embedded${rest.length ? `, then ${rest.join(", ")}` : ""}. ` +
      "What you start now waits for its turn; three may wait."
    : "";
}

function unlisted(paths) {
  if (!paths.length) return null;
  const rest = paths.length - NAMED;
  return make(
    "p",
    { className: "quiet", id: "unlisted" },
    `Not listed: ${plural(paths.length, "folder")} with images but without two class folders: `,
    make("span", { className: "word" }, paths.slice(0, NAMED).join(", ")),
    rest > 0 ? ` and ${plural(rest, "more", "more")}.` : ".",
  );
}

function row(folder, { words, isChosen, choose }) {
  const { canBe, isOuter } = folder,
    id = `choose-${folder.id}${canBe ? "" : "-above"}`;
  const mark = make("input", {
    type: "radio",
    name: "folder",
    id,
    disabled: !canBe,
    checked: isChosen,
    on: { change: () => choose(folder) },
  });
  const label = make(
    "label",
    { htmlFor: id, className: canBe ? "" : "quiet" },
    mark,
    make("span", { className: "word" }, words ? folder.path : folder.name),
    make(
      "span",
      { className: "quiet number" },
      canBe ? `${plural(folder.images, "image")}, ${plural(folder.classes, "class", "classes")}` : "",
    ),
    isOuter
      ? make("span", { className: "quiet hint" }, "All of it as one task? Its folders look like tasks themselves.")
      : null,
  );
  if (!words) label.classList.add(`depth-${Math.min(folder.depth, 6)}`);
  return label;
}
