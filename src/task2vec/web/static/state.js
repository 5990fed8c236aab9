// What is selected, kept in the hash: every view has an address of its own (#task=ID&with=ID&view=matrix, #task=ID&tab=report).

export const VIEWS = ["map", "list", "matrix", "models"];
export const TABS = ["overview", "report"];
const IN_HASH = ["task", "with", "tab", "view", "space"];

export const state = {
  task: null,
  with: null,
  tab: "overview",
  view: "map",
  space: null,
  points: [],
  method: null,
  status: null,
  isPicking: false,
};

const listeners = new Set();

/** Calls `listener(changed)` after every change; `changed` is the set of changed names. */
export const watch = (listener) => listeners.add(listener);

/** Changes the state, and the address with it. */
export function go(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => state[name] !== changes[name]));
  if (!changed.size) return;
  Object.assign(state, changes);
  if (IN_HASH.some((name) => changed.has(name))) writeHash();
  for (const listener of listeners) listener(changed);
}

/** Opens a task; while a second one is being picked, it is compared with the first. */
export function open(id, more = {}) {
  if (state.isPicking && state.task && id !== state.task) go({ with: id, isPicking: false, ...more });
  else go({ task: id, with: null, tab: TABS[0], isPicking: false, ...more });
}

/** Whether a task is in the reader's library, and not bundled with task2vec. */
export const isOwn = ({ origin }) => origin === "library";

export const findPoint = (id) => state.points.find((point) => point.id === id) ?? null;

export function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1)),
    oneOf = (names, name) => (names.includes(name) ? name : names[0]);
  const changes = {
    task: hash.get("task"),
    with: hash.get("with"),
    tab: oneOf(TABS, hash.get("tab")),
    view: oneOf(VIEWS, hash.get("view")),
  };
  return hash.get("space") ? { ...changes, space: hash.get("space") } : changes;
}

function makeHash(view) {
  const hash = new URLSearchParams();
  if (state.task) hash.set("task", state.task);
  if (state.task && state.with) hash.set("with", state.with);
  if (state.task && state.tab !== TABS[0]) hash.set("tab", state.tab);
  if (view) hash.set("view", view);
  const isDefault = state.status?.spaces.find(({ id }) => id === state.space)?.is_default ?? true;
  if (state.space && !isDefault) hash.set("space", state.space);
  return `#${hash}`;
}

function writeHash() {
  const hash = makeHash(state.view === "map" ? null : state.view);
  if (hash === (location.hash || "#")) return;
  history.pushState(null, "", hash === "#" ? location.pathname + location.search : hash);
}

/** The address of a view with the same selection. */
export const address = (view) => makeHash(view);
