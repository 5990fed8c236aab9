// The search box: arrows walk the results, Enter opens one, Escape closes them, "/" comes here from anywhere.

import { findTasks } from "./api.js";
import { get, make, tell } from "./dom.js";
import { open, state } from "./state.js";
import { count, origin, plural } from "./words.js";

const MOST = 12;
const box = get("search"),
  list = get("found");
let found = [],
  active = -1,
  timer = 0,
  control = null;

export function startSearch() {
  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, 120);
  });
  box.addEventListener("focus", () => {
    if (box.value.trim() && list.hidden) look();
  });
  box.addEventListener("keydown", onKey);
  document.addEventListener("pointerdown", (event) => {
    if (!get("finder").contains(event.target)) close();
  });
  get("finder").addEventListener("focusout", (event) => {
    if (!get("finder").contains(event.relatedTarget)) close();
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

function say(text) {
  found = [];
  active = -1;
  list.replaceChildren(make("li", { className: "quiet", attributes: { role: "presentation" } }, text));
  openList();
  tell(text);
}

function show(tasks, total) {
  if (!tasks.length) return say("No task has that in its name, dataset or classes.");
  found = tasks;
  active = 0;
  list.replaceChildren(
    ...tasks.map((task, number) =>
      make(
        "li",
        {
          id: `found-${number}`,
          attributes: { role: "option" },
          on: {
            pointerdown: (event) => event.preventDefault(),
            click: () => choose(number),
            pointermove: () => mark(number),
          },
        },
        make("span", { className: "word" }, task.name),
        make(
          "span",
          { className: "quiet" },
          [task.dataset ?? origin(task.origin), plural(task.images ?? 0, "image")].join(", "),
        ),
      ),
    ),
  );
  if (total > tasks.length) {
    list.append(
      make(
        "li",
        { className: "quiet", attributes: { role: "presentation" } },
        `and ${count(total - tasks.length)} more: type on`,
      ),
    );
  }
  openList();
  mark(0);
  tell(plural(total, "task found", "tasks found"));
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
  [...list.querySelectorAll("[role=option]")].forEach((item, k) =>
    item.setAttribute("aria-selected", String(k === number)),
  );
  const item = get(`found-${number}`);
  if (!item) return;
  box.setAttribute("aria-activedescendant", item.id);
  item.scrollIntoView({ block: "nearest" });
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
  const isOpen = !list.hidden;
  const moves = { ArrowDown: 1, ArrowUp: -1 };
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
