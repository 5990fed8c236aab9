// The distance matrix in the order of its tree. A click on a cell compares its two tasks.

import { readMatrix, readNearest } from "./api.js";
import { cut, distance, get, make } from "./dom.js";
import { isDark, resolveColour } from "./map.js";
import { empty, fill, mix, ramp } from "./parts.js";
import { go, isOwn, state, watch } from "./state.js";

const MOST = 200,
  FIRST = 60,
  AROUND = 30;
const LIGHT = ["#0b3c5d", "#1f6f9f", "#5fa4c8", "#a9cfe2", "#e2eef4", "#fbf7ee"];
const DARK = ["#f2e6b1", "#8fd0d6", "#3f9cc0", "#2b6a96", "#21425f", "#1a2530"];
const SLANT = Math.PI / 2.6; // of the names below the columns
const HINT = "Point at a cell or use the arrow keys; click to compare its two tasks.";
const place = get("view-matrix"),
  body = make("div.matrix"); // one for all drawings, so that a late answer to an earlier question is dropped
let chosenTasks = "first", // tasks: "first", "around" the open one, "own", or "of DATASET"
  matrix = null,
  marked = null, // the ids of the two tasks of the marked cell
  isFocused = false, // whether the canvas has the keyboard, which a new drawing keeps
  parts = null;

/** Returns a function that paints the matrix again. */
export function startMatrix() {
  watch((changed) => {
    if (state.view !== "matrix") return;
    if (changed.has("view")) arrive();
    if (changed.has("view") || changed.has("points")) show();
    else if (changed.has("task") && chosenTasks === "around") show();
    else if (changed.has("task") || changed.has("with")) paint();
  });
  new ResizeObserver(paint).observe(place);
  return paint;
}

/** A reader who comes with an open task finds it in the matrix; from then on the choice is theirs. */
function arrive() {
  if (chosenTasks === "first" && state.task && !listFirst().some(({ id }) => id === state.task))
    chosenTasks = "around";
}

/** The tasks that the matrix opens with: the server lists the reader's own first. */
const listFirst = () => state.points.slice(0, FIRST);

async function chooseIds(signal) {
  if (chosenTasks === "around" && state.task) {
    const { neighbours } = await readNearest(state.task, AROUND, signal);
    return [state.task, ...neighbours.map(({ id }) => id)];
  }
  if (chosenTasks === "first") return state.points.length ? listFirst().map(({ id }) => id) : null;
  const isWanted = (point) => (chosenTasks === "own" ? isOwn(point) : point.dataset === chosenTasks.slice(3));
  return state.points.filter(isWanted).slice(0, MOST).map(({ id }) => id);
}

function show() {
  if (chosenTasks === "around" && !state.task) chosenTasks = "first";
  const onChange = (event) => {
    chosenTasks = event.target.value;
    show();
    get("which").focus();
  };
  const option = (value, name) => make("option", { value, selected: value === chosenTasks }, name);
  const datasets = Map.groupBy(state.points, ({ dataset }) => dataset ?? "");
  const large = [...datasets].filter(([name, members]) => name && members.length > 2);
  const choice = make(
    "select",
    { id: "which", on: { change: onChange } },
    option("first", state.points.length <= FIRST ? "all tasks" : `the first ${FIRST} tasks${state.points.some(isOwn) ? ", yours first" : ""}`),
    state.task ? option("around", `the open task and its ${AROUND} nearest`) : null,
    state.points.some(isOwn) ? option("own", "your library") : null,
    large.map(([name]) => option(`of ${name}`, `tasks of ${name}`)),
  );
  const label = make("label", { htmlFor: "which" }, "tasks");
  isFocused ||= Boolean(parts) && document.activeElement === parts.canvas;
  place.replaceChildren(make("h2", "Distances between tasks"), make("p.row", label, choice), body);
  matrix = null;
  const read = async (signal) =>
    readMatrix({ space: state.space, ids: (await chooseIds(signal))?.join(",") }, signal);
  fill(body, read, build, "Computing distances …");
}

function build(answer) {
  if (answer.ids.length < 2) return empty("A matrix needs at least two tasks.");
  const off = answer.values.flatMap((row, k) => row.filter((_, other) => other !== k)).sort((a, b) => a - b),
    [low, high] = [0.01, 0.99].map((share) => off[Math.floor(share * (off.length - 1))]);
  matrix = { ...answer, tree: layTree(answer.merges, answer.order), low, high };
  // Under a pointer at rest the page may scroll to the cell that the keyboard marked.
  const point = (event) => (event.movementX || event.movementY) && mark(event.type === "pointerleave" ? null : cellOf(event));
  const on = { pointermove: point, pointerleave: point, click: choose, keydown: onKey };
  const label = "Matrix of distances. Arrow keys move from cell to cell, Enter compares the two tasks.";
  const canvas = make("canvas", { tabIndex: 0, role: "application", "aria-label": label, on }),
    note = make("p.cell-note", { role: "status" }),
    bar = ramp((share) => mix(isDark() ? DARK : LIGHT, share), "from near to far"),
    scale = make("div.scale", make("span", distance(low)), bar, make("span", distance(high)));
  parts = { canvas, note };
  if (!locate()) marked = null;
  note.textContent = describe();
  queueMicrotask(() => {
    paint();
    if (isFocused && document.activeElement === document.body) canvas.focus();
    isFocused = false;
  });
  return [note, scale, make("div.wide", canvas)];
}

/** The merges of SciPy's linkage as brackets; heights from 0 to 1. */
function layTree(merges, order) {
  const nodes = new Map(order.map((leaf, row) => [leaf, { at: row + 0.5, height: 0 }])),
    top = merges.reduce((most, [, , height]) => Math.max(most, height), 0) || 1;
  return merges.map(([a, b, height], number) => {
    const [first, second] = [nodes.get(a), nodes.get(b)];
    nodes.set(order.length + number, { at: (first.at + second.at) / 2, height: height / top });
    return { first, second, height: height / top };
  });
}

function measure() {
  const room = place.clientWidth - 32,
    isNarrow = room < 600,
    total = matrix.order.length;
  const tree = isNarrow ? 40 : 90,
    names = isNarrow ? 110 : 190,
    lean = Math.ceil(names * Math.cos(SLANT)) + 8; // the last names extend so far to the right
  const cell = Math.max(13, Math.min(30, Math.floor((room - tree - names - lean) / total)));
  const wide = tree + names + cell * total + lean,
    high = 4 + cell * total + Math.ceil(names * Math.sin(SLANT)) + 8;
  return { tree, names, cell, left: tree + names, top: 4, total, wide, high };
}

const resolve = (name) => resolveColour(parts.canvas, name);

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
  drawTree(pen, shape);
  drawLabels(pen, shape);
  pen.strokeStyle = resolve("--accent");
  pen.lineWidth = 2;
  for (const [down, right] of [locate(), locate([state.task, state.with])].filter(Boolean))
    pen.strokeRect(left + right * cell + 1, top + down * cell + 1, cell - 2, cell - 2);
  canvas.dataset.drawn = total;
}

function drawTree(pen, { tree, top, cell }) {
  const x = (height) => tree - 3 - height * (tree - 6),
    y = (row) => top + row * cell;
  pen.strokeStyle = resolve("--quiet");
  pen.lineWidth = 1;
  pen.beginPath();
  for (const { first, second, height } of matrix.tree) {
    pen.moveTo(x(first.height), y(first.at));
    pen.lineTo(x(height), y(first.at));
    pen.lineTo(x(height), y(second.at));
    pen.lineTo(x(second.height), y(second.at));
  }
  pen.stroke();
}

function drawLabels(pen, { cell, left, top, total, tree, names }) {
  const size = Math.min(12, cell - 1),
    longest = Math.floor(names / (0.54 * size)),
    [ink, accent] = [resolve("--ink"), resolve("--accent")],
    strong = [state.task, state.with, ...(marked ?? [])];
  pen.font = `${size}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  matrix.order.forEach((leaf, row) => {
    pen.fillStyle = strong.includes(matrix.ids[leaf]) ? accent : ink;
    const name = cut(matrix.names[leaf], longest);
    pen.fillText(name, tree + 4, top + (row + 0.5) * cell, names - 8);
    pen.save();
    pen.translate(left + (row + 0.5) * cell, top + cell * total + 6);
    pen.rotate(SLANT);
    pen.fillText(name, 0, 0, names - 8);
    pen.restore();
  });
}

function cellOf(event) {
  const { cell, left, top, total } = parts.shape,
    box = parts.canvas.getBoundingClientRect();
  const right = Math.floor((event.clientX - box.left - left) / cell),
    down = Math.floor((event.clientY - box.top - top) / cell);
  return right >= 0 && down >= 0 && right < total && down < total ? [down, right] : null;
}

/** The row and column of two tasks on the screen, null where one is not in the matrix. */
function locate(pair = marked) {
  const cell = pair?.map((id) => matrix.order.indexOf(matrix.ids.indexOf(id)));
  return cell && !cell.includes(-1) ? cell : null;
}

function describe() {
  if (!marked) return HINT;
  const [row, column] = marked.map((id) => matrix.ids.indexOf(id)),
    [first, second] = [matrix.names[row], matrix.names[column]];
  return row === column ? first : `${first} and ${second}: ${distance(matrix.values[row][column])}`;
}

function mark(cell) {
  const pair = cell?.map((one) => matrix.ids[matrix.order[one]]) ?? null;
  if (String(pair) === String(marked)) return;
  marked = pair;
  if (pair) parts.note.textContent = describe();
  paint();
}

function choose(event) {
  const cell = event.clientX === undefined ? locate() : cellOf(event);
  if (!cell) return;
  const [first, second] = cell.map((one) => matrix.ids[matrix.order[one]]);
  go({ task: first, with: first === second ? null : second });
}

function onKey(event) {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] },
    last = matrix.order.length - 1,
    at = locate();
  if (moves[event.key])
    mark(at ? at.map((value, k) => Math.max(0, Math.min(last, value + moves[event.key][k]))) : [0, 0]);
  else if (event.key === "Enter" || event.key === " ") choose({});
  else return;
  event.preventDefault();
}
