// All against all: a matrix of distances in the order of its dendrogram. A click on a cell compares its two tasks.

import { readMatrix, readNearest } from "./api.js";
import { drawTree, layTree } from "./dendrogram.js";
import { draw, get, make, style } from "./dom.js";
import { mix } from "./looks.js";
import { isDark } from "./map.js";
import { empty, fill } from "./notices.js";
import { go, state, watch } from "./state.js";
import { watchTheme } from "./theme.js";
import { cut, distance } from "./words.js";

const MOST = 200,
  FIRST = 60,
  AROUND = 30;
const LIGHT = ["#0b3c5d", "#1f6f9f", "#5fa4c8", "#a9cfe2", "#e2eef4", "#fbf7ee"];
const DARK = ["#f2e6b1", "#8fd0d6", "#3f9cc0", "#2b6a96", "#21425f", "#1a2530"];
const SLANT = Math.PI / 2.6; // of the names below the columns
const place = get("view-matrix");
let which = "first",
  matrix = null,
  at = null,
  parts = null;

export function startMatrix() {
  watch((_, changed) => {
    if (state.view !== "matrix") return;
    if (changed.has("view")) arrive();
    if (changed.has("view") || changed.has("points")) show();
    else if (changed.has("task") && which === "around") show();
    else if (changed.has("task") || changed.has("with")) paint();
  });
  watchTheme(paint);
  new ResizeObserver(paint).observe(place);
}

const groups = () => {
  const counts = new Map();
  for (const { dataset } of state.points) if (dataset) counts.set(dataset, (counts.get(dataset) ?? 0) + 1);
  return [...counts].filter(([, number]) => number > 2).map(([name]) => name);
};

async function wanted(signal) {
  if (which === "around" && state.task) {
    const { neighbours } = await readNearest(state.task, AROUND, signal);
    return [state.task, ...neighbours.map(({ id }) => id)];
  }
  if (which.startsWith("of "))
    return state.points
      .filter(({ dataset }) => dataset === which.slice(3))
      .slice(0, MOST)
      .map(({ id }) => id);
  if (which === "own")
    return state.points
      .filter(({ origin }) => origin === "library")
      .slice(0, MOST)
      .map(({ id }) => id);
  return null;
}

/** Whoever comes with an open task finds it in the matrix; from then on the choice is theirs. */
function arrive() {
  if (which === "first" && state.task && !state.points.slice(0, FIRST).some(({ id }) => id === state.task))
    which = "around";
}

function show() {
  if (which === "around" && !state.task) which = "first";
  const option = (value, name) => make("option", { value, selected: value === which }, name);
  const choice = make(
    "select",
    {
      id: "which",
      on: {
        change: (event) => {
          which = event.target.value;
          show();
          get("which").focus();
        },
      },
    },
    option("first", state.points.length > FIRST ? `the first ${FIRST} tasks` : "all tasks"),
    state.task ? option("around", `the open task and its ${AROUND} nearest`) : null,
    state.points.some(({ origin }) => origin === "library") ? option("own", "your library") : null,
    groups().map((name) => option(`of ${name}`, `of ${name}`)),
  );
  const body = make("div", { className: "matrix" });
  place.replaceChildren(
    make("h2", {}, "Who is like whom"),
    make("p", { className: "row" }, make("label", { htmlFor: "which" }, "tasks"), choice),
    body,
  );
  matrix = null;
  fill(
    body,
    async (signal) => {
      const ids = await wanted(signal);
      return readMatrix({ space: state.space, ids: ids?.join(",") }, signal);
    },
    build,
    "Measuring distances …",
  );
}

function build(answer) {
  if (answer.ids.length < 2) return empty("A matrix needs two tasks or more.");
  matrix = { ...answer, tree: layTree(answer.merges, answer.order) };
  const off = answer.values.flatMap((row, k) => row.filter((_, other) => other !== k)).sort((a, b) => a - b);
  matrix.low = off[Math.floor(0.01 * off.length)];
  matrix.high = off[Math.floor(0.99 * (off.length - 1))];
  at = null;
  const canvas = make("canvas", {
    tabIndex: 0,
    on: { pointermove: hover, pointerleave: () => mark(null), click: choose, keydown: onKey },
    attributes: {
      role: "application",
      "aria-label": "Matrix of distances. Arrow keys go from cell to cell, Enter compares the two tasks.",
    },
  });
  const note = make(
    "p",
    { className: "cell-note", attributes: { role: "status" } },
    "Point at a cell, or go there with the arrow keys; a click compares its two tasks.",
  );
  parts = { canvas, note };
  queueMicrotask(paint);
  return [note, scale(), make("div", { className: "wide" }, canvas)];
}

function scale() {
  const bars = Array.from({ length: 40 }, (_, k) =>
    draw("rect", { x: k, y: 0, width: 1.05, height: 1, fill: mix(isDark() ? DARK : LIGHT, k / 39) }),
  );
  return make(
    "div",
    { className: "scale" },
    make("span", {}, distance(matrix.low)),
    draw(
      "svg",
      {
        viewBox: "0 0 40 1",
        preserveAspectRatio: "none",
        "shape-rendering": "crispEdges",
        class: "ramp",
        "aria-hidden": "true",
      },
      ...bars,
    ),
    make("span", {}, distance(matrix.high)),
  );
}

function measure() {
  const room = place.clientWidth - 32,
    isNarrow = room < 600,
    total = matrix.order.length;
  const tree = isNarrow ? 40 : 90,
    names = isNarrow ? 110 : 190,
    lean = Math.ceil(names * Math.cos(SLANT)) + 8; // the last names stand out so far to the right
  const cell = Math.max(13, Math.min(30, Math.floor((room - tree - names - lean) / total)));
  return {
    tree,
    names,
    cell,
    left: tree + names,
    top: 4,
    total,
    wide: tree + names + cell * total + lean,
    high: 4 + cell * total + Math.ceil(names * Math.sin(SLANT)) + 8,
  };
}

function paint() {
  if (!matrix || !parts || place.hidden) return;
  const { canvas } = parts,
    shape = measure(),
    { cell, left, top, total } = shape,
    ratio = window.devicePixelRatio || 1;
  parts.shape = shape;
  [canvas.width, canvas.height] = [Math.round(shape.wide * ratio), Math.round(shape.high * ratio)];
  [canvas.style.width, canvas.style.height] = [`${shape.wide}px`, `${shape.high}px`];
  const pen = canvas.getContext("2d"),
    colours = isDark() ? DARK : LIGHT,
    { order, values, low, high } = matrix;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, shape.wide, shape.high);
  order.forEach((row, down) =>
    order.forEach((column, right) => {
      const share = row === column || high <= low ? 0 : (values[row][column] - low) / (high - low);
      pen.fillStyle = mix(colours, Math.max(0, Math.min(1, share)));
      pen.fillRect(left + right * cell, top + down * cell, cell, cell);
    }),
  );
  drawTree(pen, matrix.tree, { left: 2, right: shape.tree, top, cell, colour: style("--quiet") });
  drawLabels(pen, shape);
  if (at) outline(pen, shape, at);
  const chosen = [state.task, state.with].map((id) => order.indexOf(matrix.ids.indexOf(id)));
  if (chosen[0] >= 0 && chosen[1] >= 0) outline(pen, shape, chosen);
  canvas.dataset.drawn = total;
}

function drawLabels(pen, { cell, left, top, total, tree, names }) {
  const size = Math.min(12, cell - 1),
    longest = Math.floor(names / (0.54 * size));
  pen.font = `${size}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  matrix.order.forEach((leaf, place) => {
    const isOpen = [state.task, state.with].includes(matrix.ids[leaf]);
    pen.fillStyle = style(isOpen || at?.includes(place) ? "--accent" : "--ink");
    const name = cut(matrix.names[leaf], longest);
    pen.fillText(name, tree + 4, top + (place + 0.5) * cell, names - 8);
    pen.save();
    pen.translate(left + (place + 0.5) * cell, top + cell * total + 6);
    pen.rotate(SLANT);
    pen.fillText(name, 0, 0, names - 8);
    pen.restore();
  });
}

function outline(pen, { cell, left, top }, [down, right]) {
  pen.strokeStyle = style("--accent");
  pen.lineWidth = 2;
  pen.strokeRect(left + right * cell + 1, top + down * cell + 1, cell - 2, cell - 2);
}

function cellOf(event) {
  const { cell, left, top, total } = parts.shape,
    box = parts.canvas.getBoundingClientRect();
  const right = Math.floor((event.clientX - box.left - left) / cell),
    down = Math.floor((event.clientY - box.top - top) / cell);
  return right >= 0 && down >= 0 && right < total && down < total ? [down, right] : null;
}

function mark(cell) {
  if (String(cell) === String(at)) return;
  at = cell;
  if (cell) {
    const [row, column] = cell.map((place) => matrix.order[place]);
    parts.note.textContent =
      row === column
        ? matrix.names[row]
        : `${matrix.names[row]} and ${matrix.names[column]}: ${distance(matrix.values[row][column])}`;
  }
  paint();
}

const hover = (event) => mark(cellOf(event));

function choose(event) {
  const cell = event.clientX === undefined ? at : cellOf(event);
  if (!cell) return;
  const [first, second] = cell.map((place) => matrix.ids[matrix.order[place]]);
  go(first === second ? { task: first, with: null } : { task: first, with: second });
}

function onKey(event) {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] },
    total = matrix.order.length;
  if (moves[event.key])
    mark(at ? at.map((value, k) => Math.max(0, Math.min(total - 1, value + moves[event.key][k]))) : [0, 0]);
  else if (event.key === "Enter" || event.key === " ") choose({});
  else return;
  event.preventDefault();
}
