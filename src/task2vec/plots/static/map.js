// The map of tasks on one canvas: marks, names, lines to neighbours, moving and zooming by mouse, fingers and keys.

import { button, count, cut, make } from "./dom.js";

// The colours and marks of plots/figures.py, in its order.
const COLOURS = [
  "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
  "#2f2a9c", "#773311", "#00505e", "#a8327d", "#d9cf3a", "#a9b1ba",
];
const LIGHTER = { "#2f2a9c": "#8d88f0", "#773311": "#c07a50", "#00505e": "#3fa9ba" }; // on a dark page
const OWN_COLOURS = { light: "#d6002a", dark: "#ff6b7d" }; // of no group
const OWN_SIZE = 2; // times the size of other marks
const MARKS = ["circle", "square", "up", "diamond", "down", "plus", "cross", "hexagon"];

const polygon = (corners, start) =>
  Array.from({ length: corners }, (_, k) => {
    const angle = start + (2 * Math.PI * k) / corners;
    return [Math.sin(angle), -Math.cos(angle)];
  });
const PLUS = [
  [-0.35, -1], [0.35, -1], [0.35, -0.35], [1, -0.35], [1, 0.35], [0.35, 0.35],
  [0.35, 1], [-0.35, 1], [-0.35, 0.35], [-1, 0.35], [-1, -0.35], [-0.35, -0.35],
];
const STAR = polygon(10, 0).map(([x, y], k) => (k % 2 ? [0.45 * x, 0.45 * y] : [x, y]));
const CORNERS = {
  star: STAR,
  square: polygon(4, Math.PI / 4),
  up: polygon(3, 0),
  diamond: polygon(4, 0),
  down: polygon(3, Math.PI),
  hexagon: polygon(6, Math.PI / 6),
  plus: PLUS,
  cross: PLUS.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]),
};

/** Whether the page is dark: by the reader's choice, else by the system's. */
export const isDark = () =>
  document.documentElement.style.colorScheme
    ? document.documentElement.style.colorScheme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;

/** The value of a colour of the style sheet for an element. */
export function resolveColour(element, name) {
  element.style.color = `var(${name})`;
  return getComputedStyle(element).color;
}

/** The colour and mark of a group, by its number. */
export function chooseLook(number) {
  const lap = Math.floor(number / COLOURS.length),
    colour = COLOURS[number % COLOURS.length];
  return { colour: isDark() ? (LIGHTER[colour] ?? colour) : colour, mark: MARKS[(number + lap) % MARKS.length] };
}

/** The colour and mark of the reader's own tasks: no group has them. */
export const chooseOwnLook = () => ({ colour: isDark() ? OWN_COLOURS.dark : OWN_COLOURS.light, mark: "star" });

/** Adds the outline of a mark to the current path. */
function addMark(pen, mark, x, y, size) {
  const corners = CORNERS[mark];
  if (!corners) {
    pen.moveTo(x + size * 0.95, y);
    pen.arc(x, y, size * 0.95, 0, 2 * Math.PI);
    return;
  }
  const last = corners.length - 1; // back to the start by a line: closePath would walk over all marks before
  pen.moveTo(x + corners[last][0] * size * 1.1, y + corners[last][1] * size * 1.1);
  for (let k = 0; k <= last; k += 1) pen.lineTo(x + corners[k][0] * size * 1.1, y + corners[k][1] * size * 1.1);
}

/** A legend: one button per group { key, name, count, colour, mark } that shows or hides it. */
export function groupButtons(groups, hidden, toggle) {
  const swatch = ({ colour, mark }) => {
    const canvas = make("canvas", { width: 32, height: 32, "aria-hidden": "true" }),
      pen = canvas.getContext("2d");
    pen.beginPath();
    addMark(pen, mark, 16, 16, 10);
    pen.fillStyle = colour;
    pen.fill();
    return canvas;
  };
  const one = (group) => {
    const press = () => {
      if (!hidden.delete(group.key)) hidden.add(group.key);
      element.setAttribute("aria-pressed", String(!hidden.has(group.key)));
      toggle();
    };
    const options = { "aria-pressed": String(!hidden.has(group.key)), title: "Show or hide" };
    const name = make("span.word", group.name),
      number = make("span.quiet", count(group.count));
    const element = button("", swatch(group), press, options, name, number);
    return element;
  };
  return make("div.groups", groups.map(one));
}

const CROWD = 700; // marks in view, beyond which only chosen tasks are named
const MOST_NAMES = 250;
const FEW = 60; // so many of the reader's own tasks are named even in a crowd, and over marks
const EDGE = 20;

/**
 * A map. Points are { id, x, y, name, isOwn, colour, mark }; those of the reader (`isOwn`) are larger and drawn on top.
 * `describe(point)` returns the children of the tooltip; `open(point or null)` is called for a click or Enter, and with
 * null for a click beside all marks or Escape.
 */
export class TaskMap {
  constructor(canvas, tip, { describe, open }) {
    Object.assign(this, { canvas, tip, describe, open, pen: canvas.getContext("2d") });
    Object.assign(this, { x: 0, y: 0, scale: 1, whole: 1, width: 1, height: 1, reach: 6 });
    Object.assign(this, { points: [], batches: [], chosen: [], neighbours: [], over: null });
    Object.assign(this, { frame: 0, isUnfit: true, isAway: false, widths: new Map(), colours: new Map() });
    this.followPointers();
    this.followKeys();
    let size = "";
    new ResizeObserver(() => {
      const now = `${canvas.clientWidth} ${canvas.clientHeight}`;
      if (now === size || !canvas.clientWidth) return;
      this.isUnfit ||= this.isWhole || !size;
      size = now;
      this.redraw();
    }).observe(canvas);
  }

  get isWhole() {
    return this.scale === this.whole;
  }

  /** Shows these points; new ones are fitted into the canvas. */
  show(points, { isNew = false } = {}) {
    this.points = [...points].sort((a, b) => a.isOwn - b.isOwn);
    const batches = Map.groupBy(this.points, ({ isOwn, colour, mark }) => `${isOwn} ${colour} ${mark}`);
    this.batches = [...batches.values()];
    this.isUnfit ||= isNew;
    this.redraw();
  }

  /** Rings the chosen ids, brings the first into view, and draws lines from it to the second or to its neighbours. */
  choose(ids, neighbours = []) {
    this.isAway ||= ids[0] !== this.chosen[0];
    Object.assign(this, { chosen: ids, neighbours });
    this.redraw();
  }

  fit() {
    this.isUnfit = true;
    this.redraw();
  }

  /** Zooms by a factor; what lies under (left, top) stays there. */
  zoom(factor, left = this.width / 2, top = this.height / 2) {
    const scale = Math.max(this.whole / 4, Math.min(this.whole * 400, this.scale * factor)),
      right = left - this.width / 2,
      up = this.height / 2 - top;
    this.x += right / this.scale - right / scale;
    this.y += up / this.scale - up / scale;
    this.scale = scale;
    this.redraw();
  }

  /** Where a point stands on the canvas. */
  where({ x, y }) {
    return [this.width / 2 + (x - this.x) * this.scale, this.height / 2 - (y - this.y) * this.scale];
  }

  find(id) {
    return this.points.find((point) => point.id === id);
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  /** A colour of the style sheet, looked up once per theme: a canvas cannot resolve light-dark() itself. */
  resolve(name) {
    const key = `${name} ${isDark()}`;
    if (!this.colours.has(key)) this.colours.set(key, resolveColour(this.canvas, name));
    return this.colours.get(key);
  }

  fitNow() {
    this.isUnfit = false;
    const span = (values) => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
    const [left, right] = span(this.points.map(({ x }) => x)),
      [bottom, top] = span(this.points.map(({ y }) => y));
    [this.x, this.y] = [(left + right) / 2, (bottom + top) / 2];
    const margin = Math.min(110, this.width / 5), // for names
      scale = Math.min((this.width - margin) / (right - left), (this.height - 90) / (top - bottom));
    this.scale = this.whole = Number.isFinite(scale) && scale > 0 ? scale : 1;
  }

  reveal(point) {
    const [left, top] = this.where(point);
    if (left < 14 || top < 14 || left > this.width - 14 || top > this.height - 14) [this.x, this.y] = [point.x, point.y];
  }

  paint() {
    this.frame = 0;
    const { canvas, pen } = this;
    if (!canvas.clientWidth) return; // another view is open
    const ratio = window.devicePixelRatio || 1;
    [this.width, this.height] = [canvas.clientWidth, canvas.clientHeight];
    const [wide, high] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    if (this.isUnfit && this.points.length) this.fitNow();
    const first = this.find(this.chosen[0]);
    if (this.isAway && first) this.reveal(first);
    if (first) this.isAway = false;
    this.reach = Math.max(
      3.2,
      Math.min(
        7,
        Math.min(this.width, this.height) / 70,
        (100 / Math.sqrt(this.points.length || 1)) * Math.sqrt(this.scale / this.whole),
      ),
    );
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    this.drawLines(first);
    const inside = this.drawMarks();
    this.drawRings();
    this.drawNames(inside);
    canvas.dataset.drawn = inside.length;
  }

  drawLines(from) {
    const ends = (this.chosen[1] ? [this.chosen[1]] : this.neighbours).map((id) => this.find(id)).filter(Boolean);
    if (!from) return;
    const { pen } = this;
    pen.strokeStyle = this.resolve("--accent");
    pen.lineWidth = this.chosen[1] ? 2 : 1.2;
    ends.forEach((point, rank) => {
      pen.globalAlpha = Math.max(0.2, 0.75 - 0.08 * rank);
      pen.beginPath();
      pen.moveTo(...this.where(from));
      pen.lineTo(...this.where(point));
      pen.stroke();
    });
    pen.globalAlpha = 1;
  }

  /** Draws the marks in view, one path per colour and mark; returns them as [point, left, top]. */
  drawMarks() {
    const { pen, reach, width, height, scale } = this,
      rim = this.resolve("--rim"),
      inside = [];
    pen.lineWidth = 1;
    for (const batch of this.batches) {
      pen.beginPath();
      for (const point of batch) {
        const left = width / 2 + (point.x - this.x) * scale,
          top = height / 2 - (point.y - this.y) * scale;
        if (left < -EDGE || top < -EDGE || left > width + EDGE || top > height + EDGE) continue;
        inside.push([point, left, top]);
        addMark(pen, point.mark, left, top, point.isOwn ? OWN_SIZE * reach : reach);
      }
      pen.fillStyle = batch[0].colour;
      pen.fill();
      pen.strokeStyle = rim;
      if (this.points.length <= CROWD || batch[0].isOwn) pen.stroke(); // in a crowd, rims cost more than all marks
    }
    return inside;
  }

  drawRings() {
    const { pen } = this;
    pen.strokeStyle = this.resolve("--accent");
    for (const [id, wide] of [[this.over?.id, 1.5], ...this.chosen.map((id) => [id, 3])]) {
      const point = this.find(id);
      if (!point) continue;
      pen.beginPath();
      pen.arc(...this.where(point), this.reach * (point.isOwn ? 1.3 * OWN_SIZE : 2.1), 0, 2 * Math.PI);
      pen.lineWidth = wide;
      pen.stroke();
    }
  }

  /** Names beside the marks where there is room: the chosen ones first, then neighbours, one's own, all others. */
  drawNames(inside) {
    const { pen, reach, width } = this,
      isCrowd = inside.length > CROWD,
      always = new Set([this.over?.id, ...this.chosen]),
      near = new Set(this.neighbours);
    const room = (point) => reach * (always.has(point.id) ? 2.2 : point.isOwn ? 0.9 * OWN_SIZE : 1); // rings are wider
    const ranks = [[], [], [], []];
    for (const one of inside) {
      const { id, isOwn } = one[0];
      ranks[always.has(id) ? 0 : near.has(id) ? 1 : isOwn ? 2 : 3].push(one);
    }
    const areFew = ranks[2].length <= FEW;
    if (isCrowd) ranks[3] = [];
    if (isCrowd && !areFew) ranks[2] = [];
    const box = ([point, x, y]) => [x - room(point), y - room(point), x + room(point), y + room(point)];
    const taken = [],
      marks = isCrowd ? [] : inside.map(box);
    Object.assign(pen, { font: "12px system-ui, sans-serif", textBaseline: "middle", lineWidth: 3, lineJoin: "round" });
    const [paper, ink] = [this.resolve("--paper"), this.resolve("--ink")];
    for (const [point, x, y] of ranks.flat().slice(0, MOST_NAMES)) {
      const name = cut(point.name, 30),
        wide = this.measure(name),
        gap = room(point) + 4;
      const spots = [
        [x + gap, y],
        [x - gap - wide, y],
        [x - wide / 2, y - gap - 5],
        [x - wide / 2, y + gap + 5],
      ];
      const inView = ([left]) => left >= 2 && left + wide <= width - 2;
      const covered = ([left, middle], boxes) =>
        boxes.filter((one) => one[0] < left + wide && one[2] > left && one[1] < middle + 7 && one[3] > middle - 7).length;
      const free = spots.filter((spot) => inView(spot) && !covered(spot, taken)).map((spot) => [covered(spot, marks), spot]);
      const [least, best] = free.sort((a, b) => a[0] - b[0])[0] ?? [];
      const spot =
        (least === 0 || (point.isOwn && areFew) ? best : null) ??
        (always.has(point.id) ? (spots.find(inView) ?? spots[0]) : null);
      if (!spot) continue;
      taken.push([spot[0], spot[1] - 7, spot[0] + wide, spot[1] + 7]);
      pen.strokeStyle = paper;
      pen.strokeText(name, ...spot);
      pen.fillStyle = ink;
      pen.fillText(name, ...spot);
    }
  }

  measure(name) {
    if (this.widths.size > 20000) this.widths.clear();
    if (!this.widths.has(name)) this.widths.set(name, this.pen.measureText(name).width);
    return this.widths.get(name);
  }

  /** The task nearest to a position on the canvas. */
  pick(x, y, limit) {
    let best = null,
      least = limit * limit;
    for (const point of this.points) {
      const [left, top] = this.where(point),
        apart = (left - x) ** 2 + (top - y) ** 2;
      if (apart < least) [best, least] = [point, apart];
    }
    return best;
  }

  hover(point, x = 0, y = 0) {
    const { tip, canvas } = this;
    if (!point && !this.over) return;
    this.over = point;
    canvas.classList.toggle("is-over", Boolean(point));
    tip.hidden = !point;
    if (point) {
      tip.replaceChildren(...this.describe(point));
      const left = Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 6),
        top = y + 14 + tip.offsetHeight > canvas.clientHeight ? y - tip.offsetHeight - 14 : y + 14;
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${Math.max(4, top)}px`;
    }
    this.redraw();
  }

  /** Goes to the next task in a direction of the screen. */
  step(right, down) {
    const start = this.over ?? this.find(this.chosen[0]);
    if (!start) return this.points.length ? this.hover(this.points[0], ...this.where(this.points[0])) : null;
    const [x, y] = this.where(start);
    let next = null,
      least = Infinity;
    for (const point of this.points) {
      const [left, top] = this.where(point),
        along = (left - x) * right + (top - y) * down,
        far = along + 2 * (Math.abs((left - x) * down) + Math.abs((top - y) * right));
      if (point !== start && along > 0 && far < least) [next, least] = [point, far];
    }
    if (!next) return;
    this.reveal(next);
    this.canvas.scrollIntoView({ block: "nearest" }); // on a narrow screen, an opened task has scrolled it away
    this.hover(next, ...this.where(next));
  }

  followPointers() {
    const { canvas } = this,
      pointers = new Map();
    let moved = 0;
    const spot = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const onDown = (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      if (!pointers.size) moved = 0;
      pointers.set(event.pointerId, spot(event));
    };
    const onMove = (event) => {
      const [x, y] = spot(event),
        before = pointers.get(event.pointerId);
      if (!before) return this.hover(this.pick(x, y, this.reach + 6), x, y);
      moved += Math.hypot(x - before[0], y - before[1]);
      if (pointers.size === 2) {
        const [u, v] = [...pointers].find(([id]) => id !== event.pointerId)[1];
        this.zoom(Math.hypot(x - u, y - v) / (Math.hypot(before[0] - u, before[1] - v) || 1), (x + u) / 2, (y + v) / 2);
      } else if (moved > 4) {
        canvas.classList.add("is-dragged");
        this.x -= (x - before[0]) / this.scale;
        this.y += (y - before[1]) / this.scale;
        this.hover(null);
        this.redraw();
      }
      pointers.set(event.pointerId, [x, y]);
    };
    const onUp = (event) => {
      if (event.type === "pointerup" && pointers.size === 1 && pointers.has(event.pointerId) && moved <= 4)
        this.open(this.pick(...spot(event), this.reach + (event.pointerType === "touch" ? 16 : 6)));
      pointers.delete(event.pointerId);
      canvas.classList.remove("is-dragged");
    };
    const onWheel = (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...spot(event));
    };
    canvas.addEventListener("pointerdown", onDown);
    canvas.addEventListener("pointermove", onMove);
    canvas.addEventListener("pointerup", onUp);
    canvas.addEventListener("pointercancel", onUp);
    canvas.addEventListener("pointerleave", () => pointers.size || this.hover(null));
    canvas.addEventListener("blur", () => this.hover(null));
    canvas.addEventListener("wheel", onWheel, { passive: false });
  }

  followKeys() {
    const enter = () => this.over && this.open(this.over);
    const keys = {
      ArrowRight: () => this.step(1, 0),
      ArrowLeft: () => this.step(-1, 0),
      ArrowDown: () => this.step(0, 1),
      ArrowUp: () => this.step(0, -1),
      Enter: enter,
      " ": enter,
      Escape: () => {
        this.hover(null);
        this.open(null);
      },
      "+": () => this.zoom(1.5),
      "=": () => this.zoom(1.5),
      "-": () => this.zoom(1 / 1.5),
      0: () => this.fit(),
    };
    this.canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
}

/** The three buttons of a map. */
export const zoomButtons = (map) =>
  make(
    "div",
    { id: "zoom", role: "group", "aria-label": "Zoom" },
    button("", "+", () => map.zoom(1.5), { "aria-label": "Zoom in" }),
    button("", "−", () => map.zoom(1 / 1.5), { "aria-label": "Zoom out" }),
    button("", "↺", () => map.fit(), { "aria-label": "Show the whole map" }),
  );
