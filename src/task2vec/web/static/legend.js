// What the colours mean, with a button for every group; origins are told by a ring.

import { button, draw, get, make } from "./dom.js";
import { unfold } from "./glossary.js";
import { WAYS, mix } from "./looks.js";
import { colourBy, currentLooks, isHidden, toggleGroup } from "./map.js";
import { trace } from "./marks_canvas.js";
import { state, watch } from "./state.js";
import { watchTheme } from "./theme.js";
import { count, percent, short } from "./words.js";

const place = get("legend");
const TSNE =
  "t-SNE is a method that draws neighbours together; perplexity is about how many neighbours of each task it heeds.";
let way = "dataset";

export function startLegend() {
  watch((_, changed) => {
    if (changed.has("points") || changed.has("view")) show();
  });
  watchTheme(() => {
    if (currentLooks()) show();
  });
}

function show() {
  place.hidden = state.view !== "map" || !state.points.length;
  if (place.hidden) return;
  const looks = currentLooks();
  place.replaceChildren(chooser(), looks.ramp ? ramp(looks.ramp) : groups(looks.groups), origins());
}

function chooser() {
  const select = make(
    "select",
    { id: "colour-by", on: { change: (event) => choose(event.target.value) } },
    Object.entries(WAYS).map(([value, { name }]) => make("option", { value, selected: value === way }, name)),
  );
  return make("p", { className: "row" }, make("label", { htmlFor: "colour-by" }, "colour by"), select);
}

function choose(value) {
  way = value;
  colourBy(value);
  show();
  get("colour-by").focus();
}

function groups(list) {
  return make(
    "div",
    { className: "groups" },
    list.map((group) => {
      const toggle = button(
        "",
        () => {
          toggleGroup(group.key);
          toggle.setAttribute("aria-pressed", String(!isHidden(group.key)));
        },
        { attributes: { "aria-pressed": String(!isHidden(group.key)), title: "Show or hide" } },
        swatch(group),
        make("span", { className: "word" }, group.name),
        make("span", { className: "quiet" }, count(group.count)),
      );
      return toggle;
    }),
  );
}

/** The mark of a group in its colour, as an image for the eye alone. */
export function swatch({ colour, mark }) {
  const canvas = make("canvas", { width: 32, height: 32, attributes: { "aria-hidden": "true" } }),
    pen = canvas.getContext("2d");
  trace(pen, mark, 16, 16, 10);
  pen.fillStyle = colour;
  pen.fill();
  return canvas;
}

function ramp({ colours, ends, isShare, unknown, none }) {
  if (!ends) return make("p", { className: "quiet" }, `${none} for these tasks`);
  const words = isShare ? (value) => percent(value, 0) : short;
  const bars = Array.from({ length: 40 }, (_, k) =>
    draw("rect", { x: k, y: 0, width: 1.05, height: 1, fill: mix(colours, k / 39) }),
  );
  const picture = draw(
    "svg",
    {
      viewBox: "0 0 40 1",
      preserveAspectRatio: "none",
      "shape-rendering": "crispEdges",
      class: "ramp",
      role: "img",
      "aria-label": `from ${words(ends[0])} (left) to ${words(ends[2])} (right)`,
    },
    ...bars,
  );
  return make(
    "div",
    {},
    picture,
    make(
      "div",
      { className: "ends" },
      ends.map((value) => make("span", {}, words(value))),
    ),
    unknown ? make("p", { className: "quiet" }, `grey: ${none} (${count(unknown)})`) : null,
  );
}

function origins() {
  const own = state.points.filter(({ origin }) => origin === "library").length;
  const ring = draw(
    "svg",
    { viewBox: "0 0 20 20", class: "ring", "aria-hidden": "true" },
    draw("circle", { cx: 10, cy: 10, r: 4.5, class: "dot" }),
    draw("circle", { cx: 10, cy: 10, r: 8.5, class: "hoop" }),
  );
  const words = own
    ? `ringed: in your library (${count(own)}); without a ring: come with task2vec`
    : "all of these come with task2vec";
  return make(
    "div",
    {},
    make("p", { className: "row quiet" }, own ? ring : null, make("span", {}, words)),
    reading(state.method),
  );
}

/** How to read the map, and the words for how it was made. */
function reading(method) {
  const isNear = method?.startsWith("t-SNE");
  return unfold(
    "How to read this map",
    make("p", {}, "Tasks that are alike to the network that embedded them lie side by side."),
    isNear
      ? make(
          "p",
          {},
          "Only who is near whom counts: directions mean nothing, nor do distances across the map. " +
            "The panel and the matrix have the real ones.",
        )
      : null,
    make(
      "p",
      {},
      "Those that come with task2vec were embedded by its makers, who also measured how well each expert does on " +
        "them: recommendations go by these measurements.",
    ),
    method ? make("p", {}, `Made by: ${method}. `, isNear ? TSNE : "") : null,
  );
}
