// Small bars for numbers: an interval with its middle, and a share.

import { draw } from "./dom.js";

const WIDE = 320,
  HIGH = 14;

/** A predicted error with its interval, on a scale from 0 to `top`. */
export function intervalBar({ error, low, high }, top, label, isBest = false) {
  const x = (value) => Math.max(0, Math.min(WIDE, (WIDE * value) / top)).toFixed(1);
  const parts = [draw("line", { x1: 0, x2: WIDE, y1: HIGH / 2, y2: HIGH / 2, class: "rail" })];
  if (Number.isFinite(low) && Number.isFinite(high)) {
    parts.push(
      draw("rect", {
        x: x(low),
        width: Math.max(1, x(high) - x(low)),
        y: 4,
        height: HIGH - 8,
        rx: 3,
        class: "interval",
      }),
    );
  }
  parts.push(draw("circle", { cx: x(error), cy: HIGH / 2, r: 4, class: "middle" }));
  return draw(
    "svg",
    { viewBox: `-5 0 ${WIDE + 10} ${HIGH}`, class: isBest ? "bar is-best" : "bar", role: "img", "aria-label": label },
    ...parts,
  );
}

/** A share of `top` as a filled bar. */
export function shareBar(value, top, label) {
  const wide = top > 0 ? Math.max(0.5, (WIDE * value) / top) : 0;
  return draw(
    "svg",
    { viewBox: `0 0 ${WIDE} 8`, preserveAspectRatio: "none", class: "bar share", role: "img", "aria-label": label },
    draw("rect", { x: 0, y: 0, width: WIDE, height: 8, class: "ground" }),
    draw("rect", { x: 0, y: 0, width: wide.toFixed(1), height: 8, class: "filled" }),
  );
}

/** Two numbers on one logarithmic scale, as two bars from the left. */
export function pairBar(first, second, label) {
  const logs = [first, second].map((value) => Math.log10(Math.max(value, 1e-12))),
    low = Math.min(...logs) - 0.3,
    high = Math.max(...logs);
  const wide = (value) => (high > low ? Math.max(2, (WIDE * (value - low)) / (high - low)) : WIDE).toFixed(1);
  return draw(
    "svg",
    { viewBox: `0 0 ${WIDE} 14`, preserveAspectRatio: "none", class: "bar pair", role: "img", "aria-label": label },
    draw("rect", { x: 0, y: 0, width: wide(logs[0]), height: 6, class: "filled" }),
    draw("rect", { x: 0, y: 8, width: wide(logs[1]), height: 6, class: "second" }),
  );
}
