// What is looked at: kept in the hash, so that every view has an address of its own (#task=ID&with=ID&view=matrix).

export const VIEWS = ["map", "list", "matrix", "experts", "embed"];
const KEPT = ["task", "with", "view", "space"];

export const state = {
  task: null,
  with: null,
  view: "map",
  space: null,
  points: [],
  method: null,
  status: null,
  isPicking: false,
};

const listeners = new Set();

/** Calls `listener(state, changed)` after every change; `changed` is the set of names that are new. */
export const watch = (listener) => listeners.add(listener);

/** Changes part of what is looked at, and the address with it. */
export function go(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => state[name] !== changes[name]));
  if (!changed.size) return;
  Object.assign(state, changes);
  if (KEPT.some((name) => changed.has(name))) writeHash();
  for (const listener of listeners) listener(state, changed);
}

/** Opens a task; while a second one is being picked, it is compared with the first. */
export function open(id, more = {}) {
  if (state.isPicking && state.task && id !== state.task) go({ with: id, isPicking: false, ...more });
  else go({ task: id, with: null, isPicking: false, ...more });
}

export const findPoint = (id) => state.points.find((point) => point.id === id) ?? null;

export function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  const view = hash.get("view");
  const changes = { task: hash.get("task"), with: hash.get("with"), view: VIEWS.includes(view) ? view : "map" };
  if (hash.get("space")) changes.space = hash.get("space");
  return changes;
}

function writeHash() {
  const hash = new URLSearchParams();
  if (state.task) hash.set("task", state.task);
  if (state.task && state.with) hash.set("with", state.with);
  if (state.view !== "map") hash.set("view", state.view);
  if (state.space && !isDefault(state.space)) hash.set("space", state.space);
  const next = hash.size ? `#${hash}` : location.pathname + location.search;
  if (`#${hash}` !== (location.hash || "#")) history.pushState(null, "", next);
}

export const isDefault = (space) => state.status?.spaces.find((one) => one.id === space)?.is_default ?? true;

/** The address of a view that keeps what is selected. */
export function address(view) {
  const hash = new URLSearchParams();
  if (state.task) hash.set("task", state.task);
  if (state.task && state.with) hash.set("with", state.with);
  hash.set("view", view);
  if (state.space && !isDefault(state.space)) hash.set("space", state.space);
  return `#${hash}`;
}
