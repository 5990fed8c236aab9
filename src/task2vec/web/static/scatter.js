// Predicted test errors against parameters: every model is a mark with its interval, and carries the key of its list.

import { millions, percent, range, short } from "./dom.js";
import { draw } from "./parts.js";

const [WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM] = [330, 220, 36, 20, 8, 36],
  MARK = 13; // the width of a mark, and the least room between two

/** Models { key, model, error, low, high, params, isZoo } on a logarithmic axis; errors reach from 0 to `top`. */
export function scatter(models, top, label) {
  const logs = models.map(({ params }) => Math.log10(params)),
    middle = (Math.min(...logs) + Math.max(...logs)) / 2,
    half = Math.max(0.3, 0.55 * (Math.max(...logs) - Math.min(...logs)));
  const x = (params) => LEFT + ((Math.log10(params) - middle + half) / (2 * half)) * (WIDE - LEFT - RIGHT);
  const y = (error) => TOP + (1 - error / top) * (HIGH - TOP - BOTTOM);
  const sizes = (half > 1.2 ? [1] : [1, 2, 5]).flatMap((digit) => Array.from({ length: 13 }, (_, power) => digit * 10 ** power)),
    step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25].find((one) => top / one <= 5) ?? 0.5;
  const shares = Array.from({ length: Math.floor(top / step) + 1 }, (_, number) => number * step);
  const text = (words, attributes) => draw("text", attributes, words);
  return draw(
    "svg",
    { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "scatter", role: "img", "aria-label": label },
    ...shares.flatMap((one) => [
      draw("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(one), y2: y(one), class: "rail" }),
      text(percent(one, 0), { x: LEFT - 4, y: y(one) + 4, "text-anchor": "end" }),
    ]),
    ...sizes
      .filter((one) => x(one) >= LEFT && x(one) <= WIDE - RIGHT)
      .map((one) => text(`${short(one / 1e6)} M`, { x: x(one), y: HIGH - BOTTOM + 15, "text-anchor": "middle" })),
    text("parameters (logarithmic)", { x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 5, "text-anchor": "middle" }),
    ...place(models, x).map(({ one, at }) => mark(one, at, y)),
  );
}

/** Where the marks stand: those of equal size are moved beside each other, within the axes. */
function place(models, x) {
  const placed = models.map((one) => ({ one, at: x(one.params) })).sort((a, b) => a.at - b.at);
  placed.forEach((mark, number) => (mark.at = Math.max(mark.at, (placed[number - 1]?.at ?? 0) + MARK)));
  placed.forEach((mark, number) => (mark.at = Math.min(mark.at, WIDE - RIGHT - MARK * (placed.length - number - 0.5))));
  return placed;
}

function mark({ key, model, error, low, high, params, isZoo }, at, y) {
  const interval = range(low, high);
  return draw(
    "g",
    { class: isZoo ? "is-zoo" : "" },
    draw("title", {}, `${model}: ${percent(error)}${interval ? ` (${interval})` : ""}, ${millions(params)} parameters`),
    interval ? draw("line", { x1: at, x2: at, y1: y(low), y2: y(high), class: "interval" }) : null,
    draw("rect", { x: at - MARK / 2, y: y(error) - MARK / 2, width: MARK, height: MARK, rx: isZoo ? 2 : MARK / 2 }),
    draw("text", { x: at, y: y(error) + 3.5, "text-anchor": "middle" }, key),
  );
}
