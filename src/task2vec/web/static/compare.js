// Two tasks side by side: how far apart, and where in the network the difference lies.

import { compareTasks, readTask } from "./api.js";
import { pairBar, shareBar } from "./bars.js";
import { button, facts, make, tell } from "./dom.js";
import { fill } from "./notices.js";
import { readPairs } from "./pairs.js";
import { findPoint, go, watch } from "./state.js";
import { distance, percent, plural, short } from "./words.js";

const LAYERS = 10,
  FILTERS = 10;
// From the share of pairs that lie farther apart.
const LIKENESS = [
  [0.9, "Very much alike"],
  [0.65, "Rather alike"],
  [0.35, "Neither alike nor unlike"],
  [0.1, "Rather unlike"],
  [0, "Very unlike"],
];
let latest = null;

watch((_, changed) => {
  if (changed.has("points") && latest?.sentence.isConnected) sayMeaning();
});

export function showComparison(place, first, second) {
  const name = async (id, signal) => findPoint(id)?.name ?? (await readTask(id, signal)).name;
  return fill(
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
  const sentence = make("p", { className: "sentence", id: "meaning" });
  latest = { answer, sentence };
  sayMeaning();
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
    sentence,
    make(
      "p",
      { className: "figure" },
      distance(answer.distance),
      make("span", {}, isWithinNoise(answer) ? "apart: within noise" : "apart"),
    ),
    facts([
      ["noise", distance(answer.noise)],
      ["first → second", distance(answer.asymmetric?.there)],
      ["second → first", distance(answer.asymmetric?.back)],
    ]),
    make(
      "p",
      { className: "quiet" },
      "The distance says how differently the filters of the network matter to the two: 0 would be no difference. " +
        "The directed ones are less by 0.15 times how far the source is from a task without any information: " +
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

const isWithinNoise = ({ distance: apart, noise }) => typeof noise === "number" && apart <= noise;

/** Says what the distance means, in one sentence, before all numbers; said again when the map is there. */
async function sayMeaning() {
  const { answer, sentence } = latest;
  sentence.textContent = word(answer, null);
  const pairs = isWithinNoise(answer) ? null : await readPairs([answer.first, answer.second]);
  if (pairs) sentence.textContent = word(answer, pairs);
}

function word({ distance: apart, noise }, pairs) {
  if (isWithinNoise({ distance: apart, noise }))
    return "They may be one and the same task to this network: two estimates of one task can lie as far apart by chance.";
  if (!pairs)
    return typeof noise === "number"
      ? "They differ: they lie farther apart than two estimates of one task would by chance."
      : "The larger the distance, the more they differ; 0 would be no difference.";
  const farther = pairs.values.filter((value) => value > apart).length / pairs.values.length;
  const [, how] = LIKENESS.find(([least]) => farther >= least);
  const than = farther >= 0.5 ? `nearer than ${most(farther)}` : `farther apart than ${most(1 - farther)}`;
  return `${how}: they lie ${than} ${pairs.isAll ? "pairs of tasks on this map" : "pairs of a sample of this map"}.`;
}

const most = (share) => (share > 0.985 ? "nearly all" : `${percent(share, 0)} of all`);

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
