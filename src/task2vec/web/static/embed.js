// A folder becomes a task: choose one of those that the server may read, and start.

import { readFolders, startJob } from "./api.js";
import { get, make } from "./dom.js";
import { follow, isBusy } from "./jobs.js";
import { empty, fill, problem, withCode } from "./notices.js";
import { state, watch } from "./state.js";
import { plural } from "./words.js";

const MOST = 400;
const place = get("view-embed");

export function startEmbed() {
  watch((_, changed) => { if (state.view === "embed" && (changed.has("view") || changed.has("status"))) show(); });
}

function show() {
  const status = state.status;
  if (!status) return;
  if (place.querySelector("form") && status.can_embed) return;
  const title = make("h2", {}, "Embed a folder");
  if (!status.can_embed) {
    place.replaceChildren(title, make("div", { className: "empty" },
      make("p", {}, "This server may not read any folder of images yet."),
      make("p", {}, ...withCode("Stop it and start it again with the folder that holds your tasks, each a folder of class folders: ")),
      make("pre", { tabIndex: 0 }, make("code", {}, "task2vec serve --root DIR")),
      make("p", {}, ...withCode("Or embed a folder from the command line: `task2vec embed DIR`. It appears here after a reload."))));
    return;
  }
  const body = make("div");
  place.replaceChildren(title, make("p", { className: "quiet" },
    "A task is a folder with one folder of images per class. It is read where it lies; the server looks only below the folders it was allowed."), body);
  fill(body, async () => (await Promise.all(status.roots.map(async (root) => ({ root, ...(await readFolders(root.id)) })))), form, "Looking for folders …");
}

function form(roots) {
  const folders = roots.flatMap(({ root, folders: list }) => inOrder(list, root));
  if (!folders.length) return empty("There is no folder with images below the folders that this server may read.");
  const filter = make("input", { id: "folder-filter", type: "search", autocomplete: "off", on: { input: () => choices() } });
  const list = make("div", { className: "folders", attributes: { role: "radiogroup", "aria-label": "Folders" } });
  const name = make("input", { id: "task-name", type: "text", maxLength: 100, autocomplete: "off" });
  const start = make("button", { type: "submit", className: "main", disabled: true }, "Embed");
  const trouble = make("div");
  let chosen = null;

  const choices = () => {
    const words = filter.value.trim().toLowerCase();
    const fit = folders.filter((folder) => !words || folder.path.toLowerCase().includes(words));
    list.replaceChildren(...fit.slice(0, MOST).map((folder) => row(folder, words, chosen, (one) => {
      chosen = one;
      name.placeholder = one.name;
      start.disabled = false;
    })));
    if (!fit.length) list.append(make("p", { className: "quiet" }, "No folder has that in its name."));
    if (fit.length > MOST) list.append(make("p", { className: "quiet" }, `and ${plural(fit.length - MOST, "more folder")}: filter to see them`));
  };
  const submit = async (event) => {
    event.preventDefault();
    if (!chosen || start.disabled) return;
    trouble.replaceChildren();
    start.disabled = true;
    try {
      const job = await startJob(chosen.id, name.value.trim());
      if (!isBusy()) follow(job);
    } catch (error) {
      trouble.replaceChildren(problem(error));
    } finally {
      start.disabled = false;
    }
  };
  choices();
  return make("form", { on: { submit } },
    make("p", { className: "row" }, make("label", { htmlFor: "folder-filter" }, "filter"), filter), list,
    make("p", { className: "row" }, make("label", { htmlFor: "task-name" }, "name"), name, start), trouble);
}

/** Folders as a tree laid flat: each after its parent, with its depth and its path of names. */
function inOrder(list, root) {
  const known = new Set(list.map(({ id }) => id)), below = new Map();
  for (const folder of list) {
    const parent = known.has(folder.parent) ? folder.parent : null;
    below.set(parent, [...(below.get(parent) ?? []), folder]);
  }
  const flat = [];
  const walk = (parent, depth, path) => {
    const next = (below.get(parent) ?? []).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    for (const folder of next) {
      flat.push({ ...folder, depth, path: `${path}/${folder.name}`, root: root.name });
      walk(folder.id, depth + 1, `${path}/${folder.name}`);
    }
  };
  walk(null, 0, "");
  return flat;
}

function row(folder, words, chosen, choose) {
  const id = `choose-${folder.id}`, canBe = folder.images > 0;
  const mark = make("input", { type: "radio", name: "folder", id, value: folder.id, disabled: !canBe, checked: chosen?.id === folder.id,
    on: { change: () => choose(folder) } });
  const label = make("label", { htmlFor: id, className: canBe ? "" : "quiet" }, mark,
    make("span", { className: "word" }, words ? folder.path.slice(1) : folder.name), make("span", { className: "quiet number" }, canBe ? plural(folder.images, "image") : "no images"));
  if (!words) label.classList.add(`depth-${Math.min(folder.depth, 6)}`);
  return label;
}
