// The map: marks below, names and lines above, one camera for both.

import { Camera } from "./camera.js";
import { get, make, style, facts } from "./dom.js";
import { drawNames } from "./labels.js";
import { chooseLooks } from "./looks.js";
import { startCanvas } from "./marks_canvas.js";
import { startWebgl } from "./marks_webgl.js";
import { followFingers, followKeys } from "./map_moves.js";
import { go, open, state, watch } from "./state.js";
import { watchTheme } from "./theme.js";
import { count, origin, percent, short } from "./words.js";

const camera = new Camera();
const hidden = new Set();
const stage = get("view-map"),
  above = get("names"),
  below = get("marks"),
  tip = get("tip"),
  pen = above.getContext("2d");
let marks = null,
  looks = null,
  shown = [],
  over = null,
  neighbours = [],
  way = "dataset",
  frame = 0,
  reach = 6,
  isStale = true,
  isUnfit = true,
  isHome = false;

export const isDark = () => style("color-scheme") === "dark";
export const currentLooks = () => looks;
export const isHidden = (key) => hidden.has(key);

/** Chooses what colours mean. */
export function colourBy(name) {
  way = name;
  hidden.clear();
  refresh();
}

export function toggleGroup(key) {
  if (!hidden.delete(key)) hidden.add(key);
  refresh();
}

/** Lines go from the open task to these. */
export function showNeighbours(ids) {
  neighbours = ids;
  redraw();
}

function refresh() {
  looks = chooseLooks(state.points, way, isDark());
  shown = state.points.filter((point) => !hidden.has(looks.key(point)) || !looks.groups.length);
  shown.sort((a, b) => (a.origin === "library") - (b.origin === "library")); // one's own on top
  isStale = true;
  redraw();
}

export const redraw = () => {
  frame ||= requestAnimationFrame(paint);
};

function resize() {
  camera.width = above.clientWidth || 1;
  camera.height = above.clientHeight || 1;
  const ratio = window.devicePixelRatio || 1;
  for (const canvas of [above, below]) {
    const wide = Math.round(camera.width * ratio),
      high = Math.round(camera.height * ratio);
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  }
  return ratio;
}

function paint() {
  frame = 0;
  if (stage.hidden) return;
  const ratio = resize(),
    { width, height } = camera;
  // A map that arrives while another view is open has no size yet: it is fitted when it is first seen.
  if (isUnfit && shown.length) fitNow();
  if (isHome && find(state.task)) camera.reveal(find(state.task));
  isHome = false;
  const paper = style("--paper"),
    ink = style("--ink"),
    rim = style("--rim");
  reach = Math.max(
    3.2,
    Math.min(
      7,
      Math.min(width, height) / 70,
      (100 / Math.sqrt(shown.length || 1)) * Math.sqrt(camera.scale / camera.whole),
    ),
  );
  if (isStale)
    marks.load(
      shown.map((point) => ({ x: point.x, y: point.y, isRinged: point.origin === "library", ...looks.of(point) })),
    );
  isStale = false;
  marks.paint({ view: camera, width, height, ratio, reach, rim, ink });
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const inside = shown
    .map((point) => [point, ...camera.where(point)])
    .filter(([, x, y]) => x > -20 && y > -20 && x < width + 20 && y < height + 20);
  drawLines(style("--accent"));
  drawRings();
  const always = new Set([over?.id, state.task, state.with]);
  drawNames(pen, inside, { first: new Set([...always, ...neighbours]), always, reach, width, paper, ink });
  above.dataset.drawn = inside.length;
  above.dataset.renderer = marks.name;
}

const find = (id) => shown.find((point) => point.id === id);

function drawLines(colour) {
  const from = find(state.task);
  if (!from) return;
  pen.strokeStyle = colour;
  const ends = state.with ? [state.with] : neighbours;
  ends
    .map(find)
    .filter(Boolean)
    .forEach((point, rank) => {
      pen.globalAlpha = Math.max(0.2, 0.75 - 0.08 * rank);
      pen.lineWidth = state.with ? 2 : 1.2;
      pen.beginPath();
      pen.moveTo(...camera.where(from));
      pen.lineTo(...camera.where(point));
      pen.stroke();
    });
  pen.globalAlpha = 1;
}

function drawRings() {
  for (const [id, wide] of [
    [over?.id, 1.5],
    [state.task, 3],
    [state.with, 3],
  ]) {
    const point = find(id);
    if (!point) continue;
    pen.beginPath();
    pen.arc(...camera.where(point), reach * 2.1, 0, 2 * Math.PI);
    pen.lineWidth = wide;
    pen.strokeStyle = style("--accent");
    pen.stroke();
  }
}

/** The task nearest to a place of the screen. */
function pick(x, y, limit) {
  let best = null,
    least = limit * limit;
  for (const point of shown) {
    const [left, top] = camera.where(point),
      apart = (left - x) ** 2 + (top - y) ** 2;
    if (apart < least) [best, least] = [point, apart];
  }
  return best;
}

function hover(point, x, y) {
  if (over === point && !point) return;
  over = point;
  above.classList.toggle("is-over", Boolean(point));
  tip.hidden = !point;
  if (point) {
    tip.replaceChildren(
      make("div", { className: "name" }, point.name),
      facts([
        ["dataset", point.dataset],
        ["taxon", point.taxon],
        ["images", count(point.images)],
        ["classes", count(point.classes)],
        ["head error", percent(point.head_error)],
        ["norm", short(point.norm)],
        ["origin", origin(point.origin)],
      ]),
    );
    const left = Math.min(x + 14, stage.clientWidth - tip.offsetWidth - 6);
    const top = y + 14 + tip.offsetHeight > stage.clientHeight ? y - tip.offsetHeight - 14 : y + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }
  redraw();
}

/** From task to task in a direction of the screen. */
function step(right, down) {
  const start = over ?? find(state.task);
  if (!start) return shown.length && hover(shown[0], ...camera.where(shown[0]));
  const [x, y] = camera.where(start);
  let next = null,
    least = Infinity;
  for (const point of shown) {
    const [left, top] = camera.where(point),
      along = (left - x) * right + (top - y) * down;
    const far = along + 2 * (Math.abs((left - x) * down) + Math.abs((top - y) * right));
    if (point !== start && along > 0 && far < least) [next, least] = [point, far];
  }
  if (!next) return;
  camera.reveal(next);
  above.scrollIntoView({ block: "nearest" }); // on a narrow screen, an opened task has scrolled it away
  hover(next, ...camera.where(next));
}

const zoom = (...how) => {
  camera.zoom(...how);
  redraw();
};
const fit = () => {
  isUnfit = true;
  redraw();
};

function fitNow() {
  camera.fit(shown);
  isUnfit = false;
}

export function startMap() {
  marks =
    startWebgl(below, () => {
      isStale = true;
      redraw();
    }) ?? startCanvas(below);
  followFingers(above, {
    hover: (x, y) => hover(pick(x, y, reach + 6), x, y),
    move: (right, down) => {
      camera.move(right, down);
      hover(null);
      redraw();
    },
    zoom,
    leave: () => hover(null),
    press: (x, y, isTouch) => {
      const point = pick(x, y, reach + (isTouch ? 16 : 6));
      if (point) open(point.id);
      else if (!state.isPicking) go({ task: null, with: null });
    },
  });
  followKeys(above, {
    step,
    zoom,
    fit,
    enter: () => over && open(over.id),
    escape: () => {
      hover(null);
      go({ task: null, with: null, isPicking: false });
    },
  });
  get("nearer").addEventListener("click", () => zoom(1.5));
  get("farther").addEventListener("click", () => zoom(1 / 1.5));
  get("whole").addEventListener("click", fit);
  watchTheme(refresh);
  let size = "";
  new ResizeObserver(() => {
    const now = `${above.clientWidth} ${above.clientHeight}`,
      wasWhole = camera.isWhole || !size;
    if (now === size || !above.clientWidth) return;
    size = now;
    isUnfit ||= wasWhole;
    redraw();
  }).observe(stage);
  watch((_, changed) => {
    if (changed.has("points")) {
      refresh();
      isUnfit ||= camera.isWhole || changed.has("space");
    }
    if (changed.has("task")) neighbours = [];
    isHome ||= changed.has("task") || changed.has("points");
    redraw();
  });
  refresh();
}

/** For tests and for the console: where a task stands on the screen. */
export const whereIs = (id) => {
  const point = find(id),
    box = above.getBoundingClientRect();
  if (!point) return null;
  const [x, y] = camera.where(point);
  return [box.left + x, box.top + y];
};
