// What stands where an answer will stand: waiting, nothing there, or what went wrong and what mends it.

import { button, make } from "./dom.js";

export const waiting = (text = "Reading …") =>
  make("p", { className: "waiting", attributes: { role: "status" } }, text);

export const empty = (...words) => make("div", { className: "empty" }, ...words.map((text) => make("p", {}, text)));

/** An error in its three parts; words between backticks are commands. */
export function problem(error, retry = null) {
  const box = make(
    "div",
    { className: "problem", attributes: { role: "alert" } },
    make("p", { className: "what" }, ...withCode(error.what ?? String(error))),
  );
  if (error.why) box.append(make("p", {}, ...withCode(error.why)));
  if (error.mend) box.append(make("p", {}, ...withCode(error.mend)));
  if (retry) box.append(button("Try again", retry));
  return box;
}

export function withCode(text) {
  return String(text)
    .split("`")
    .map((piece, number) => (number % 2 ? make("code", {}, piece) : piece));
}

/** Fills `place` with what `read` brings, unless something newer was asked for meanwhile. */
export async function fill(place, read, show, text) {
  place.latest?.abort();
  const control = new AbortController();
  place.latest = control;
  place.setAttribute("aria-busy", "true");
  place.replaceChildren(waiting(text));
  try {
    const answer = await read(control.signal);
    if (place.latest === control) place.replaceChildren(...[show(answer)].flat());
  } catch (error) {
    if (error.name !== "AbortError" && place.latest === control) {
      place.replaceChildren(problem(error, () => fill(place, read, show, text)));
      if (!error.what) throw error;
    }
  } finally {
    if (place.latest === control) place.removeAttribute("aria-busy");
  }
}
