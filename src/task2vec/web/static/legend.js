// What the colours of the map mean: groups that can be hidden, or a ramp; and how to read the map.

import { count, get, isNumber, make, percent, plural, short, unfold } from "./dom.js";
import { chooseLook, chooseOwnLook, groupButtons, isDark } from "./map.js";
import { mix, ramp } from "./parts.js";
import { isOwn, state, watch } from "./state.js";

// Viridis without its last tenth, which is lost on white paper.
const RAMP = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#a5db36"];
const DARK_RAMP = ["#5b3d8a", "#5a55a8", "#4f6fb5", "#4289b8", "#36a1b0", "#36b79b", "#58cb7c", "#8fdc5a", "#d3e34a"];
const SHADES = 48;
const SHOWN_GROUPS = 6; // the rest is folded
const OWN = Symbol("the reader's own tasks"); // a group that no dataset can be called like
const NONE = { colour: "#8a94a0", mark: "circle" };
const WAYS = {
  dataset: { none: "no dataset" },
  taxon: { none: "no taxon" },
  error: { none: "no known error", value: (point) => point.head_error, show: (value) => percent(value, 0) },
  norm: { none: "no known norm", value: (point) => point.norm, show: short, isLog: true },
};
const hidden = new Set();
let way = "dataset",
  onChange = () => {};

export function startLegend(show) {
  onChange = show;
  watch((changed) => {
    if (changed.has("view")) get("legend").hidden = state.view !== "map" || !state.points.length;
  });
}

/** The points of the map with their colours and marks; draws the legend, unless a group was just toggled. */
export function colourPoints({ isToggle = false } = {}) {
  const looks = WAYS[way].value ? byNumber(WAYS[way]) : byGroup(way),
    keyOf = (point) => (isOwn(point) ? OWN : looks.key(point));
  get("legend").hidden = state.view !== "map" || !state.points.length;
  if (!isToggle) get("legend").replaceChildren(chooser(), ownButton(), looks.legend, howToRead());
  return state.points
    .filter((point) => !hidden.has(keyOf(point)))
    .map((point) => ({ ...point, isOwn: isOwn(point), ...looks.of(point) }));
}

/** The reader's own tasks, before all groups. */
function ownButton() {
  const size = state.points.filter(isOwn).length,
    group = { key: OWN, name: "your library", count: size, ...chooseOwnLook() };
  return size ? groupButtons([group], hidden, toggle) : "";
}

function chooser() {
  const choose = (event) => {
    way = event.target.value;
    hidden.clear();
    onChange();
    get("colour-by").focus();
  };
  const options = Object.keys(WAYS).map((value) => make("option", { value, selected: value === way }, value));
  const select = make("select", { id: "colour-by", on: { change: choose } }, options);
  return make("p.row", make("label", { htmlFor: "colour-by" }, "colour by"), select);
}

function byGroup(property) {
  const bundled = state.points.filter((point) => !isOwn(point)),
    key = (point) => point[property] ?? null,
    members = Map.groupBy(bundled, key),
    size = (group) => members.get(group).length;
  // The largest groups get the first colours, which are the easiest to distinguish.
  const names = [...members.keys()].filter((name) => name !== null);
  names.sort((a, b) => size(b) - size(a) || a.localeCompare(b));
  const looks = new Map([...names.map((name, number) => [name, chooseLook(number)]), [null, NONE]]);
  const groups = (members.has(null) ? [...names, null] : names).map((group) => ({
    key: group,
    name: group ?? WAYS[property].none,
    count: size(group),
    ...looks.get(group),
  }));
  const rest = groups.slice(SHOWN_GROUPS),
    title = `${plural(rest.length, "more group")} with ${plural(rest.reduce((sum, group) => sum + group.count, 0), "task")}`;
  const legend = make(
    "div",
    groupButtons(groups.slice(0, SHOWN_GROUPS), hidden, toggle),
    rest.length ? unfold(title, groupButtons(rest, hidden, toggle)) : null,
  );
  return { key, of: (point) => (isOwn(point) ? chooseOwnLook() : looks.get(key(point))), legend };
}

const toggle = () => onChange({ isToggle: true }); // the legend stays, and the focus with it

function byNumber({ value, none, show, isLog }) {
  const scale = isLog ? (number) => Math.log(Math.max(number, 1e-30)) : (number) => number,
    back = isLog ? Math.exp : (number) => number;
  const values = state.points.map(value).filter(isNumber).map(scale).sort((a, b) => a - b);
  const [low, high] = [0.01, 0.99].map((share) => values[Math.round(share * (values.length - 1))]);
  const colours = isDark() ? DARK_RAMP : RAMP;
  const of = (point) => {
    const mark = isOwn(point) ? chooseOwnLook().mark : "circle";
    if (!isNumber(value(point))) return { ...NONE, mark };
    const share = high > low ? Math.max(0, Math.min(1, (scale(value(point)) - low) / (high - low))) : 0.5;
    return { colour: mix(colours, Math.round(share * SHADES) / SHADES), mark };
  };
  const key = () => null; // only the reader's own can be hidden
  if (!values.length) return { key, of, legend: make("p.quiet", `${none} for these tasks`) };
  const ends = [low, (low + high) / 2, high].map((number) => show(back(number))),
    unknown = state.points.length - values.length;
  const legend = make(
    "div",
    ramp((share) => mix(colours, share), `from ${ends[0]} (left) to ${ends[2]} (right)`),
    make("div.ends", ends.map((end) => make("span", end))),
    unknown ? make("p.quiet", `grey: ${none} (${count(unknown)})`) : null,
  );
  return { key, of, legend };
}

function howToRead() {
  const isTsne = state.method?.startsWith("t-SNE");
  return unfold(
    "How to read this map",
    make("p", "Tasks with similar embeddings are close together. Stars are tasks of your library; the others are bundled with task2vec."),
    isTsne
      ? make(
          "p",
          "Only neighbourhoods are meaningful: directions and long distances are not. " +
            "The panel and the matrix show the actual distances.",
        )
      : null,
    make(
      "p",
      "The authors embedded the bundled tasks and measured the error of each model on them. The order in which " +
        "models are proposed for a task follows from these measurements.",
    ),
    make(
      "p",
      `Method: ${state.method}. `,
      isTsne
        ? "t-SNE is a method that keeps neighbours together; perplexity is roughly the number of neighbours it considers for each task."
        : "",
    ),
  );
}
