// Names beside the marks: the selected ones first, then whoever finds room.

import { cut } from "./words.js";

const CROWD = 700;
const MOST = 250;
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
  const room = ({ id, origin }) => reach * (always.has(id) ? 2.2 : origin === "library" ? 1.8 : 1); // rings are wider
  const important = inside.filter(([point]) => first.has(point.id));
  const others = isCrowd ? [] : inside.filter(([point]) => !first.has(point.id)).slice(0, MOST);
  const taken = isCrowd
    ? []
    : inside.map(([point, x, y]) => [x - room(point), y - room(point), x + room(point), y + room(point)]);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.lineWidth = 3;
  pen.lineJoin = "round";
  for (const [point, x, y] of [...important, ...others]) {
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
    const isFree = ([left, middle]) =>
      !taken.some((box) => box[0] < left + wide && box[2] > left && box[1] < middle + 7 && box[3] > middle - 7);
    const place =
      places.find((one) => inSight(one) && isFree(one)) ??
      (always.has(point.id) ? (places.find(inSight) ?? places[0]) : null);
    if (!place) continue;
    taken.push([place[0], place[1] - 7, place[0] + wide, place[1] + 7]);
    pen.strokeStyle = paper;
    pen.strokeText(name, ...place);
    pen.fillStyle = ink;
    pen.fillText(name, ...place);
  }
}
