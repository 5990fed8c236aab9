// Names beside the marks: the selected ones first, then one's own, then whoever finds room.

import { cut } from "./words.js";

const CROWD = 700;
const MOST = 250;
const FEW = 60; // so many of one's own are named even in a crowd, and over marks
const widths = new Map();

function measure(pen, name) {
  if (!widths.has(name)) {
    if (widths.size > 20000) widths.clear();
    widths.set(name, pen.measureText(name).width);
  }
  return widths.get(name);
}

/** Draws names; `inside` are [point, left, top] in sight, `first` the ids that are named whatever the crowd. */
export function drawNames(pen, inside, { first, always, reach, width, paper, ink }) {
  const isCrowd = inside.length > CROWD;
  const isOwn = ({ origin }) => origin === "library";
  const room = (point) => reach * (always.has(point.id) ? 2.2 : isOwn(point) ? 1.8 : 1); // rings are wider
  const rank = (point) => (always.has(point.id) ? 0 : first.has(point.id) ? 1 : isOwn(point) ? 2 : 3);
  const ranks = [[], [], [], []];
  for (const one of inside) ranks[rank(one[0])].push(one);
  if (isCrowd) ranks[3] = [];
  const areFew = ranks[2].length <= FEW;
  if (isCrowd && !areFew) ranks[2] = [];
  const taken = [],
    marks = isCrowd
      ? []
      : inside.map(([point, x, y]) => [x - room(point), y - room(point), x + room(point), y + room(point)]);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.lineWidth = 3;
  pen.lineJoin = "round";
  for (const [point, x, y] of ranks.flat().slice(0, MOST)) {
    const name = cut(point.name, 30),
      wide = measure(pen, name),
      gap = room(point) + 4;
    const places = [
      [x + gap, y],
      [x - gap - wide, y],
      [x - wide / 2, y - gap - 5],
      [x - wide / 2, y + gap + 5],
    ];
    const inSight = ([left]) => left >= 2 && left + wide <= width - 2;
    const covered = ([left, middle], boxes) =>
      boxes.filter((box) => box[0] < left + wide && box[2] > left && box[1] < middle + 7 && box[3] > middle - 7).length;
    const open = places.filter((one) => inSight(one) && !covered(one, taken)).map((one) => [covered(one, marks), one]);
    const [least, best] = open.sort((a, b) => a[0] - b[0])[0] ?? [];
    const place =
      (least === 0 || (isOwn(point) && areFew) ? best : null) ??
      (always.has(point.id) ? (places.find(inSight) ?? places[0]) : null);
    if (!place) continue;
    taken.push([place[0], place[1] - 7, place[0] + wide, place[1] + 7]);
    pen.strokeStyle = paper;
    pen.strokeText(name, ...place);
    pen.fillStyle = ink;
    pen.fillText(name, ...place);
  }
}
