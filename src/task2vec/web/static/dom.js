// Elements are made here and nowhere else. Names come from strangers: they become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const get = (id) => document.getElementById(id);

/** An element with properties, listeners (`on`), attributes (`role`, ...) and children; strings become text. */
export function make(tag, { on = {}, attributes = {}, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  return dress(element, { on, attributes }, children);
}

/** The same for SVG, where everything is an attribute. */
export function draw(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), { on: {}, attributes }, children);
}

function dress(element, { on, attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const button = (text, click, more = {}, ...children) =>
  make("button", { type: "button", on: { click }, ...more }, text, ...children);

/** A list of pairs; what is not known is left out. */
export function facts(pairs) {
  const list = make("dl");
  for (const [word, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") list.append(make("dt", {}, word), make("dd", {}, value));
  }
  return list;
}

/** Words for who cannot see the page. */
export function tell(text) {
  get("told").textContent = text;
}

/** The value of a colour or size of the style sheet. */
export const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Scrolls to what lies below or above on a narrow screen (see layout.css); the focus stays where it is. */
export function bring(element) {
  if (!matchMedia("(max-width: 760px)").matches) return;
  element.scrollIntoView({ block: "start", behavior: isCalm() ? "auto" : "smooth" });
}
