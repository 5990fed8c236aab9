// Elements and number formats, for the page of `task2vec serve` and the page that `task2vec map` writes. All elements are
// created here: names of tasks and classes may contain anything, so they become text, never markup.

export const get = (id) => document.getElementById(id);

const isOptions = (value) => Object.getPrototypeOf(value ?? 0) === Object.prototype;

/**
 * An element: make("p.quiet", { id: "note", on: { click } }, "text", child). Options are optional: properties, attributes
 * ("role" and names with a dash) and listeners (`on`). Strings become text; null children are left out.
 */
export function make(kind, ...rest) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  const { on = {}, ...options } = isOptions(rest[0]) ? rest.shift() : {};
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined) continue;
    if (name === "role" || name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...present(rest));
  return element;
}

export const present = (children) => children.flat(2).filter((child) => child !== null && child !== undefined);

export const button = (kind, text, click, options = {}, ...children) =>
  make(`button${kind}`, { type: "button", on: { click }, ...options }, text, ...children);

/** A list of pairs; unknown values are left out. */
export const facts = (pairs) =>
  make(
    "dl",
    pairs.flatMap(([name, value]) =>
      value === null || value === undefined || value === "" ? [] : [make("dt", name), make("dd", value)],
    ),
  );

export const unfold = (title, ...children) => make("details.meaning", make("summary", title), ...children);

// Numbers as they are read; null where there is none.
export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const format = (show) => (value, digits) => (isNumber(value) ? show(value, digits) : null);

export const count = format((value) => value.toLocaleString("en"));
export const percent = format((value, digits = 1) => `${(100 * value).toFixed(digits)}%`);
export const distance = format((value) => value.toFixed(3));
export const short = format((value) => Number(value.toPrecision(3)).toString());
export const millions = format((value) => (value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : count(value)));
export const points = format((value) => `${value >= 0 ? "+" : "−"}${(100 * Math.abs(value)).toFixed(1)}`);
export const range = (low, high) =>
  isNumber(low) && isNumber(high) ? `${(100 * low).toFixed(1)} to ${percent(high)}` : null;
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const cut = (text, longest) =>
  [...text].length > longest ? [...text].slice(0, longest - 1).join("") + "…" : text;
