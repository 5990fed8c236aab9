// Two tasks side by side: their distance, and where in the network it comes from.

import { compareTasks, readMatrix, readTask } from "./api.js";
import { button, distance, facts, isNumber, make, percent, plural, short } from "./dom.js";
import { announce, fill, pairBar, shareBar } from "./parts.js";
import { findPoint, go, state, watch } from "./state.js";

const LAYERS = 10,
  FILTERS = 10,
  SAMPLE = 200; // tasks of a matrix
// By the fraction of pairs that are farther apart.
const SIMILARITY = [
  [0.9, "Very similar"],
  [0.65, "Fairly similar"],
  [0.35, "Moderately similar"],
  [0.1, "Fairly dissimilar"],
  [0, "Very dissimilar"],
];
let latest = null,
  known = null;

watch((changed) => {
  if (changed.has("points") && latest?.sentence.isConnected) showMeaning();
});

export function showComparison(place, first, second) {
  const readName = async (id, signal) => findPoint(id)?.name ?? (await readTask(id, signal)).name;
  const read = async (signal) => {
    const names = [first, second].map((id) => readName(id, signal));
    const [answer, ...found] = await Promise.all([compareTasks(first, second, signal), ...names]);
    return { answer, names: found };
  };
  return fill(place, read, show, "Comparing …");
}

function show({ answer, names: [first, second] }) {
  announce(`The distance between ${first} and ${second} is ${distance(answer.distance)}`);
  const sentence = make("p.sentence", { id: "meaning" });
  latest = { answer, sentence };
  showMeaning();
  const back = () => go({ with: null });
  const name = (kind, text, click) => make("p.both", make(`span.key.${kind}`), button(".link.word.name", text, click));
  return [
    make("div.head", make("h2", "Two tasks"), button(".plain", "×", back, { "aria-label": "Back to the first task" })),
    name("filled", first, back),
    name("second", second, () => go({ task: answer.second, with: null })),
    sentence,
    make("p.figure", distance(answer.distance), make("span", isWithinNoise(answer) ? "distance: within noise" : "distance")),
    facts([
      ["noise", distance(answer.noise) ?? "unknown"],
      ["first → second", distance(answer.first_to_second)],
      ["second → first", distance(answer.second_to_first)],
    ]),
    make(
      "p.quiet",
      "The distance is 0 if every filter of the network matters equally for both tasks. The asymmetric distances " +
        "subtract 0.15 times the distance of the source from a trivial task, so a complex source counts as closer.",
    ),
    make(
      "div.actions",
      button("", "Swap", () => go({ task: answer.second, with: answer.first })),
      button("", "Compare with another task …", () => go({ with: null, isPicking: true })),
    ),
    layers(answer.layers),
    filters(answer.filters, [first, second]),
  ];
}

const isWithinNoise = ({ distance: apart, noise }) => isNumber(noise) && apart <= noise;

/** What the distance means, in one sentence before all numbers; again when the map is there. */
async function showMeaning() {
  const { answer, sentence } = latest;
  sentence.textContent = explainDistance(answer, null);
  const pairs = isWithinNoise(answer) ? null : await readPairs([answer.first, answer.second]);
  if (pairs) sentence.textContent = explainDistance(answer, pairs);
}

function explainDistance({ distance: apart, noise }, pairs) {
  if (isWithinNoise({ distance: apart, noise }))
    return "For this network they may be the same task: two estimates of a single task can be this far apart by chance.";
  if (!pairs)
    return isNumber(noise)
      ? "They differ by more than chance: two estimates of a single task are closer together."
      : "The larger the distance, the more they differ.";
  const farther = pairs.values.filter((value) => value > apart).length / pairs.values.length;
  const [, how] = SIMILARITY.find(([least]) => farther >= least);
  const most = (share) => (share > 0.985 ? "nearly all" : `${percent(share, 0)} of all`);
  const than = farther >= 0.5 ? `nearer than ${most(farther)}` : `farther apart than ${most(1 - farther)}`;
  return `${how}: they are ${than} ${pairs.isAll ? "pairs of tasks on this map" : "pairs in a sample of this map"}.`;
}

/** The distances of all pairs on the map, or of a sample; null if these tasks are not on it. */
async function readPairs(ids) {
  const { points, space } = state;
  if (!ids.every((id) => findPoint(id))) return null;
  if (known?.points === points) return known;
  const every = Math.ceil(points.length / SAMPLE),
    some = points.filter((_, number) => number % every === 0).map(({ id }) => id);
  try {
    const { values } = await readMatrix({ space, ids: some.join(",") });
    known = { points, isAll: every === 1, values: values.flatMap((row, k) => row.slice(k + 1)) };
    return known;
  } catch {
    return null; // the comparison does without it
  }
}

function layers(list) {
  const top = Math.max(...list.map(({ share }) => share)),
    rest = list.slice(LAYERS);
  const row = ({ name, share, filters: number }) =>
    make(
      "li",
      make("span.word.mono", { title: plural(number, "filter") }, name),
      make("span.number", percent(share)),
      shareBar(share, top, `${percent(share)} of the difference`),
    );
  const sum = percent(rest.reduce((total, { share }) => total + share, 0));
  return make(
    "section",
    { id: "layers", "aria-label": "Layers that differ most" },
    make("h3", "Layers that differ most"),
    make("ul.counts", list.slice(0, LAYERS).map(row)),
    rest.length ? make("p.quiet", `the other ${plural(rest.length, "layer")} contribute ${sum}`) : null,
  );
}

function filters(list, [first, second]) {
  const row = (one) =>
    make(
      "li",
      make("span.word.mono", `${one.layer} #${one.number}`),
      make("span.number", percent(one.share, 2)),
      pairBar(one.first, one.second, `${first}: ${short(one.first)}; ${second}: ${short(one.second)}`),
    );
  return make(
    "section",
    { "aria-label": "Filters that differ most" },
    make("h3", "Filters that differ most"),
    make("p.quiet", "Fisher information for each task, on a logarithmic scale; the number is the filter's share of the difference."),
    make("ul.counts", list.slice(0, FILTERS).map(row)),
  );
}
