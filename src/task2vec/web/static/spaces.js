// Spaces: embeddings of different probes, sizes or methods are not compared, so each space has a map of its own.

import { get, make } from "./dom.js";
import { unfold } from "./glossary.js";
import { go, state, watch } from "./state.js";

export function startSpaces() {
  watch((_, changed) => {
    if (changed.has("status") || changed.has("space")) show();
  });
}

function show() {
  get("spaces")?.remove();
  const spaces = state.status?.spaces ?? [];
  if (spaces.length < 2) return;
  const select = make(
    "select",
    { id: "space", on: { change: (event) => go({ space: event.target.value, task: null, with: null, points: [] }) } },
    spaces.map(({ id, name, tasks }) =>
      make("option", { value: id, selected: id === state.space }, `${name} (${tasks})`),
    ),
  );
  get("legend").before(
    make(
      "div",
      { id: "spaces" },
      make("p", { className: "row" }, make("label", { htmlFor: "space" }, "space"), select),
      unfold(
        "What is a space?",
        make(
          "p",
          {},
          "Tasks can be compared where they were embedded alike: by the same network, at the same size of images, by " +
            "the same method (in brackets). All that were make one space, which has a map of its own.",
        ),
      ),
    ),
  );
}
