// Parts that several views share: notices, explanations of terms, bars, sortable tables.

import { button, facts, get, isNumber, make, present, unfold } from "./dom.js";

/** An SVG element, where everything is an attribute. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...present(children));
  return element;
}

/** A message for screen readers. */
export function announce(text) {
  get("announcement").textContent = text;
}

/** On a narrow screen, scrolls to an element above or below; the focus stays where it is. */
export function bring(element) {
  if (!matchMedia("(max-width: 760px)").matches) return;
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "start", behavior: isCalm ? "auto" : "smooth" });
}

export const waiting = (text = "Loading …") => make("p.waiting", { role: "status" }, text);
export const empty = (...texts) => make("div.empty", texts.map((text) => make("p", text)));

/** Text in which words between backticks are code. */
export const withCode = (text) =>
  String(text)
    .split("`")
    .map((piece, number) => (number % 2 ? make("code", piece) : piece));

/** An error in its three parts. */
export const problem = (error, retry = null) =>
  make(
    "div.problem",
    { role: "alert" },
    make("p.what", withCode(error.what ?? String(error))),
    [error.why, error.fix].filter(Boolean).map((text) => make("p", withCode(text))),
    retry ? button("", "Try again", retry) : null,
  );

/** Fills `place` with what `read` returns, unless something newer was asked for meanwhile. */
export async function fill(place, read, show, text) {
  place.latest?.abort();
  const control = new AbortController();
  place.latest = control;
  const isWanted = () => place.latest === control && place.isConnected; // else it is a late answer
  place.setAttribute("aria-busy", "true");
  place.replaceChildren(waiting(text));
  try {
    const answer = await read(control.signal);
    if (isWanted()) place.replaceChildren(...[show(answer)].flat().filter(Boolean));
  } catch (error) {
    if (error.name === "AbortError" || !isWanted()) return;
    place.replaceChildren(problem(error, () => fill(place, read, show, text)));
    if (!error.what) throw error;
  } finally {
    if (place.latest === control) place.removeAttribute("aria-busy");
  }
}

/** The mark of a task of the reader's own, as on the map. */
export const ownStar = () => make("span.own", { role: "img", "aria-label": "your library: " }, "★");

export const formatOrigin = (value) => (value === "bundled" ? "bundled with task2vec" : "your library");

const TERMS = {
  "head error": "how often a linear classifier on the network's features misclassifies images it has not seen",
  norm: "how much the network's weights matter for the task; by itself no measure of difficulty",
  noise: "how far apart two estimates of this task are by chance; unknown until it is embedded from its images",
  "bundled with task2vec": "embedded by the authors, who also measured the error of each model on it",
  recommended: "the cheapest of the models that cannot be told apart from the one with the lowest error",
  tie: "its error cannot be told apart from the lowest one on these images",
  generic: "pretrained on ImageNet, a large dataset of everyday photos, and not fine-tuned",
  network: "another network pretrained on ImageNet",
  whole: "fine-tuned on a whole dataset",
  half: "fine-tuned on half of the classes of a dataset",
  taxon: "fine-tuned on one branch of a dataset's taxonomy",
  label: "fine-tuned on one label set",
};

/** A list of terms to unfold; unknown ones are left out. */
export function explain(names, title = "What these terms mean") {
  const known = names.filter((name) => TERMS[name]);
  return known.length ? unfold(title, facts(known.map((name) => [name, TERMS[name]]))) : null;
}

const WIDE = 320;

const bar = (kind, high, label, ...children) =>
  draw(
    "svg",
    { viewBox: `0 0 ${WIDE} ${high}`, preserveAspectRatio: "none", class: `bar ${kind}`, role: "img", "aria-label": label },
    ...children,
  );

/** An error with its interval, on a scale from 0 to `top`. */
export function intervalBar({ error, low, high }, top, label, isBest) {
  const x = (value) => Math.max(0, Math.min(WIDE, (WIDE * value) / top)).toFixed(1);
  const width = Math.max(1, x(high) - x(low));
  return draw(
    "svg",
    { viewBox: `-5 0 ${WIDE + 10} 14`, class: isBest ? "bar is-best" : "bar", role: "img", "aria-label": label },
    draw("line", { x1: 0, x2: WIDE, y1: 7, y2: 7, class: "rail" }),
    isNumber(low) && isNumber(high) ? draw("rect", { x: x(low), width, y: 4, height: 6, rx: 3, class: "interval" }) : null,
    draw("circle", { cx: x(error), cy: 7, r: 4, class: "middle" }),
  );
}

/** A fraction of `top` as a filled bar. */
export const shareBar = (value, top, label) =>
  bar(
    "share",
    8,
    label,
    draw("rect", { x: 0, y: 0, width: WIDE, height: 8, class: "ground" }),
    draw("rect", { x: 0, y: 0, width: top > 0 ? Math.max(0.5, (WIDE * value) / top) : 0, height: 8, class: "filled" }),
  );

/** Two numbers on one logarithmic scale. */
export function pairBar(first, second, label) {
  const logs = [first, second].map((value) => Math.log10(Math.max(value, 1e-12))),
    low = Math.min(...logs) - 0.3;
  const width = (value) => Math.max(2, (WIDE * (value - low)) / (Math.max(...logs) - low));
  return bar(
    "pair",
    14,
    label,
    draw("rect", { x: 0, y: 0, width: width(logs[0]), height: 6, class: "filled" }),
    draw("rect", { x: 0, y: 8, width: width(logs[1]), height: 6, class: "second" }),
  );
}

/** A colour ramp; `mix(share)` is its colour. */
export const ramp = (mix, label) =>
  draw(
    "svg",
    { viewBox: "0 0 40 1", preserveAspectRatio: "none", "shape-rendering": "crispEdges", class: "ramp", role: "img", "aria-label": label },
    ...Array.from({ length: 40 }, (_, k) => draw("rect", { x: k, y: 0, width: 1.05, height: 1, fill: mix(k / 39) })),
  );

/** The colour at a fraction of the way along a list of colours. */
export function mix(colours, share) {
  const channels = (hex) => [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));
  const place = share * (colours.length - 1),
    from = Math.min(colours.length - 2, Math.floor(place)),
    [a, b] = [channels(colours[from]), channels(colours[from + 1])];
  const hex = (value, k) => Math.round(value + (b[k] - value) * (place - from)).toString(16).padStart(2, "0");
  return `#${a.map(hex).join("")}`;
}

const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);

/** A table sorted by a click on a heading, or in the given order; columns are { name, value(row), cell(row)?, isText?, title? }. */
export function sortable(columns, rows, { caption, by = 0, isDown = false, most = Infinity }) {
  const body = make("tbody");
  const press = (number) => {
    [by, isDown] = [number, by === number ? !isDown : false];
    show();
    announce(`sorted by ${columns[by].name}, ${isDown ? "largest" : "smallest"} first`);
  };
  const heads = columns.map(({ name, isText, title = "" }, number) =>
    make(isText ? "th" : "th.number", { scope: "col", title }, button("", name, () => press(number))),
  );
  const cell = (row) => (column) => make(column.isText ? "td.word" : "td.number", (column.cell ?? column.value)(row) ?? "–");
  function show() {
    const value = (row) => (by === null ? 0 : (columns[by].value(row) ?? null));
    const known = rows.filter((row) => value(row) !== null).sort((a, b) => (isDown ? -1 : 1) * compare(value(a), value(b)));
    const unknown = rows.filter((row) => value(row) === null); // last in either direction
    heads.forEach((head, number) =>
      head.setAttribute("aria-sort", number !== by ? "none" : isDown ? "descending" : "ascending"),
    );
    body.replaceChildren(...[...known, ...unknown].slice(0, most).map((row) => make("tr", columns.map(cell(row)))));
  }
  show();
  const table = make("table.sortable", make("caption.unseen", caption), make("thead", make("tr", heads)), body);
  return make("div.wide", { tabIndex: 0, role: "region", "aria-label": caption }, table);
}
