// What the colours of the map mean: groups that can be hidden, or a ramp; and how to read the map.

import { count, get, isNumber, make, percent, short, unfold } from "./dom.js";
import { chooseLook, groupButtons, isDark } from "./map.js";
import { draw, mix, ramp } from "./parts.js";
import { state, watch } from "./state.js";

// Viridis without its last tenth, which is lost on white paper.
const RAMP = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#a5db36"];
const DARK_RAMP = ["#5b3d8a", "#5a55a8", "#4f6fb5", "#4289b8", "#36a1b0", "#36b79b", "#58cb7c", "#8fdc5a", "#d3e34a"];
const SHADES = 48;
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

/** The points of the map with their colours, marks and rings; draws the legend, unless a group was just toggled. */
export function colourPoints({ isToggle = false } = {}) {
  const looks = WAYS[way].value ? byNumber(WAYS[way]) : byGroup(way);
  get("legend").hidden = state.view !== "map" || !state.points.length;
  if (!isToggle) get("legend").replaceChildren(chooser(), looks.legend, origins());
  return state.points
    .filter((point) => !looks.key || !hidden.has(looks.key(point)))
    .map((point) => ({ ...point, isOwn: point.origin === "library", ...looks.of(point) }));
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

function byGroup(name) {
  const key = (point) => point[name] ?? null,
    members = Map.groupBy(state.points, key),
    size = (one) => members.get(one).length;
  // The largest groups get the first colours, which are the easiest to distinguish.
  const names = [...members.keys()].filter((one) => one !== null);
  names.sort((a, b) => size(b) - size(a) || a.localeCompare(b));
  const looks = new Map([...names.map((one, number) => [one, chooseLook(number)]), [null, NONE]]);
  const groups = (members.has(null) ? [...names, null] : names).map((one) => ({
    key: one,
    name: one ?? WAYS[name].none,
    count: size(one),
    ...looks.get(one),
  }));
  return { key, of: (point) => looks.get(key(point)), legend: groupButtons(groups, hidden, toggle) };
}

const toggle = () => onChange({ isToggle: true }); // the legend stays, and the focus with it

function byNumber({ value, none, show, isLog }) {
  const scale = isLog ? (number) => Math.log(Math.max(number, 1e-30)) : (number) => number,
    back = isLog ? Math.exp : (number) => number;
  const values = state.points.map(value).filter(isNumber).map(scale).sort((a, b) => a - b);
  const [low, high] = [0.01, 0.99].map((share) => values[Math.round(share * (values.length - 1))]);
  const colours = isDark() ? DARK_RAMP : RAMP;
  const of = (point) => {
    if (!isNumber(value(point))) return NONE;
    const share = high > low ? Math.max(0, Math.min(1, (scale(value(point)) - low) / (high - low))) : 0.5;
    return { colour: mix(colours, Math.round(share * SHADES) / SHADES), mark: "circle" };
  };
  if (!values.length) return { of, legend: make("p.quiet", `${none} for these tasks`) };
  const ends = [low, (low + high) / 2, high].map((number) => show(back(number))),
    unknown = state.points.length - values.length;
  const legend = make(
    "div",
    ramp((share) => mix(colours, share), `from ${ends[0]} (left) to ${ends[2]} (right)`),
    make("div.ends", ends.map((end) => make("span", end))),
    unknown ? make("p.quiet", `grey: ${none} (${count(unknown)})`) : null,
  );
  return { of, legend };
}

function origins() {
  const own = state.points.filter(({ origin }) => origin === "library").length;
  const ring = draw(
    "svg",
    { viewBox: "0 0 20 20", class: "ring", "aria-hidden": "true" },
    draw("circle", { cx: 10, cy: 10, r: 4.5, class: "dot" }),
    draw("circle", { cx: 10, cy: 10, r: 8.5, class: "hoop" }),
  );
  const text = own
    ? `ringed: in your library (${count(own)}); without a ring: bundled with task2vec`
    : "all of these tasks are bundled with task2vec";
  return make("div", make("p.row.quiet", own ? ring : null, make("span", text)), howToRead());
}

function howToRead() {
  const isTsne = state.method?.startsWith("t-SNE");
  return unfold(
    "How to read this map",
    make("p", "Tasks with similar embeddings are close together."),
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
