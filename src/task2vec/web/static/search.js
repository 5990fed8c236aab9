// The search box: arrows move through the results, Enter opens one, Escape closes them, "/" focuses the box.

import { findTasks } from "./api.js";
import { count, get, make, plural } from "./dom.js";
import { announce, formatOrigin, ownStar } from "./parts.js";
import { isOwn, open, state } from "./state.js";

const MOST = 12;
const box = get("search"),
  list = get("found");
let found = [],
  active = -1,
  timer = 0,
  control = null;

export function startSearch() {
  const isOutside = (element) => !get("finder").contains(element);
  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, 120);
  });
  box.addEventListener("focus", () => {
    if (box.value.trim() && list.hidden) look();
  });
  box.addEventListener("keydown", onKey);
  document.addEventListener("pointerdown", (event) => {
    if (isOutside(event.target)) close();
  });
  get("finder").addEventListener("focusout", (event) => {
    if (isOutside(event.relatedTarget)) close();
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, select, textarea");
    if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    box.focus();
    box.select();
  });
}

async function look() {
  const words = box.value.trim();
  control?.abort();
  if (!words) return close();
  control = new AbortController();
  try {
    const { total, tasks } = await findTasks({ q: words, space: state.space, limit: MOST }, control.signal);
    show(tasks, total);
  } catch (error) {
    if (error.name !== "AbortError") say(error.what ?? "The search failed.");
  }
}

const note = (text) => make("li.quiet", { role: "presentation" }, text);

function say(text) {
  found = [];
  active = -1;
  list.replaceChildren(note(text));
  openList();
  announce(text);
}

function show(tasks, total) {
  if (!tasks.length) return say("No task matches by name, dataset, tag or class.");
  found = tasks;
  const name = (task) => make("span.word", isOwn(task) ? ownStar() : null, task.name);
  const row = (task, number) => {
    const on = {
      pointerdown: (event) => event.preventDefault(),
      click: () => choose(number),
      pointermove: () => mark(number),
    };
    const detail = `${task.dataset ?? formatOrigin(task.origin)}, ${plural(task.images, "image")}`;
    return make("li", { id: `found-${number}`, role: "option", on }, name(task), make("span.quiet", detail));
  };
  list.replaceChildren(...tasks.map(row));
  if (total > tasks.length) list.append(note(`and ${count(total - tasks.length)} more: keep typing`));
  openList();
  mark(0);
  announce(plural(total, "task found", "tasks found"));
}

function openList() {
  list.hidden = false;
  box.setAttribute("aria-expanded", "true");
}

function close() {
  clearTimeout(timer);
  control?.abort();
  list.hidden = true;
  box.setAttribute("aria-expanded", "false");
  box.removeAttribute("aria-activedescendant");
}

function mark(number) {
  active = number;
  list.querySelectorAll("[role=option]").forEach((item, k) => item.setAttribute("aria-selected", String(k === number)));
  box.setAttribute("aria-activedescendant", `found-${number}`);
  get(`found-${number}`)?.scrollIntoView({ block: "nearest" });
}

function choose(number) {
  const task = found[number];
  if (!task) return;
  close();
  box.value = "";
  open(task.id);
  get("panel").focus({ preventScroll: false });
}

function onKey(event) {
  const isOpen = !list.hidden,
    moves = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in moves && found.length) {
    if (isOpen) mark((active + moves[event.key] + found.length) % found.length);
    else look();
  } else if (event.key === "Enter") {
    if (isOpen) choose(active);
    else look();
  } else if (event.key === "Escape") {
    if (isOpen) close();
    else box.value = "";
  } else return;
  event.preventDefault();
}
