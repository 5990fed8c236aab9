// Two tasks side by side: how far apart, and where in the network the difference lies.

import { compareTasks, readTask } from "./api.js";
import { pairBar, shareBar } from "./bars.js";
import { button, facts, make, tell } from "./dom.js";
import { fill } from "./notices.js";
import { findPoint, go } from "./state.js";
import { distance, percent, plural, short } from "./words.js";

const LAYERS = 10,
  FILTERS = 10;

export function showComparison(place, first, second) {
  const name = async (id, signal) => findPoint(id)?.name ?? (await readTask(id, signal)).name;
  fill(
    place,
    async (signal) => {
      const [answer, ...names] = await Promise.all([
        compareTasks(first, second, signal),
        name(first, signal),
        name(second, signal),
      ]);
      return { answer, names };
    },
    show,
    "Comparing …",
  );
}

function show({ answer, names: [first, second] }) {
  tell(`${first} and ${second} are ${distance(answer.distance)} apart`);
  const isNoise = answer.noise !== null && answer.noise !== undefined && answer.distance <= answer.noise;
  return [
    make(
      "div",
      { className: "head" },
      make("h2", {}, "Two tasks"),
      button("×", () => go({ with: null }), {
        className: "plain",
        attributes: { "aria-label": "Back to the first task" },
      }),
    ),
    make(
      "p",
      { className: "both" },
      make("span", { className: "key filled" }),
      button(first, () => go({ with: null }), { className: "link word name" }),
    ),
    make(
      "p",
      { className: "both" },
      make("span", { className: "key second" }),
      button(second, () => go({ task: answer.second, with: null }), { className: "link word name" }),
    ),
    make(
      "p",
      { className: "figure" },
      distance(answer.distance),
      make("span", {}, isNoise ? "apart: within noise" : "apart"),
    ),
    facts([
      ["noise", distance(answer.noise)],
      ["first → second", distance(answer.asymmetric?.there)],
      ["second → first", distance(answer.asymmetric?.back)],
    ]),
    make(
      "p",
      { className: "quiet" },
      "The directed distances are less by 0.15 times how far the source is from the trivial task: " +
        "the richer the source, the nearer.",
    ),
    make(
      "div",
      { className: "actions" },
      button("Swap", () => go({ task: answer.second, with: answer.first })),
      button("Compare with another …", () => go({ with: null, isPicking: true })),
    ),
    layers(answer.layers ?? []),
    filters(answer.filters ?? [], [first, second]),
  ];
}

function layers(list) {
  if (!list.length) return null;
  const top = Math.max(...list.map(({ share }) => share));
  const rows = list
    .slice(0, LAYERS)
    .map(({ name, share, filters: number }) =>
      make(
        "li",
        {},
        make("span", { className: "word mono", title: plural(number, "filter") }, name),
        make("span", { className: "number" }, percent(share)),
        shareBar(share, top, `${percent(share)} of the difference`),
      ),
    );
  return make(
    "section",
    { id: "layers", attributes: { "aria-label": "Layers that differ most" } },
    make("h3", {}, "Layers that differ most"),
    make("ul", { className: "counts" }, rows),
    list.length > LAYERS
      ? make(
          "p",
          { className: "quiet" },
          `the other ${plural(list.length - LAYERS, "layer")} make up ${percent(
            list.slice(LAYERS).reduce((sum, { share }) => sum + share, 0),
          )}`,
        )
      : null,
  );
}

function filters(list, [first, second]) {
  if (!list.length) return null;
  const rows = list
    .slice(0, FILTERS)
    .map((one) =>
      make(
        "li",
        {},
        make("span", { className: "word mono" }, `${one.layer} #${one.number}`),
        make("span", { className: "number" }, percent(one.share, 2)),
        pairBar(one.first, one.second, `${first}: ${short(one.first)}; ${second}: ${short(one.second)}`),
      ),
    );
  return make(
    "section",
    { attributes: { "aria-label": "Filters that differ most" } },
    make("h3", {}, "Filters that differ most"),
    make(
      "p",
      { className: "quiet" },
      "Fisher information of each task, on a logarithmic scale; the number is the filter's share of the difference.",
    ),
    make("ul", { className: "counts" }, rows),
  );
}
