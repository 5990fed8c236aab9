// How tasks look: colours and marks of task2vec/atlas/palette.py, and a ramp for numbers. The colour-blind read both.

const COLOURS = [
  "#0072b2",
  "#d55e00",
  "#009e73",
  "#cc79a7",
  "#e69f00",
  "#56b4e9",
  "#2f2a9c",
  "#773311",
  "#00505e",
  "#a8327d",
  "#d9cf3a",
  "#a9b1ba",
];
const DARK = { "#2f2a9c": "#8d88f0", "#773311": "#c07a50", "#00505e": "#3fa9ba" }; // too dark to be seen on a dark page
export const MARKS = ["circle", "square", "up", "diamond", "down", "plus", "cross", "hexagon"];
const NONE = { colour: "#8a94a0", mark: "circle" };
// Viridis without its last tenth, which is lost on white paper.
const RAMP = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#a5db36"];
const DARK_RAMP = ["#5b3d8a", "#5a55a8", "#4f6fb5", "#4289b8", "#36a1b0", "#36b79b", "#58cb7c", "#8fdc5a", "#d3e34a"];

export const WAYS = {
  dataset: { name: "dataset", none: "no dataset" },
  taxon: { name: "taxon", none: "no taxon" },
  error: { name: "error", none: "no error known", value: (point) => point.head_error, isShare: true },
  norm: { name: "norm", none: "no norm known", value: (point) => point.norm, isLog: true },
};

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** The look of every point, and what the legend says: groups (each can be hidden) or a ramp. */
export function chooseLooks(points, way, isDark) {
  return WAYS[way].value ? byNumber(points, WAYS[way], isDark) : byGroup(points, way, isDark);
}

function byGroup(points, way, isDark) {
  const counts = new Map();
  for (const point of points) counts.set(point[way] ?? null, (counts.get(point[way] ?? null) ?? 0) + 1);
  // The larger a group, the sooner its colour: the first twelve are the ones most easily told apart.
  const names = [...counts.keys()].filter((name) => name !== null);
  names.sort((a, b) => counts.get(b) - counts.get(a) || a.localeCompare(b));
  const looks = new Map(names.map((name, number) => [name, lookOf(number, isDark)]));
  looks.set(null, NONE);
  const groups = (counts.has(null) ? [...names, null] : names).map((key) => ({
    key,
    name: key ?? WAYS[way].none,
    count: counts.get(key),
    ...looks.get(key),
  }));
  return { of: (point) => looks.get(point[way] ?? null), key: (point) => point[way] ?? null, groups, ramp: null };
}

function lookOf(number, isDark) {
  const lap = Math.floor(number / COLOURS.length),
    colour = COLOURS[number % COLOURS.length];
  return { colour: isDark ? (DARK[colour] ?? colour) : colour, mark: MARKS[(number + lap) % MARKS.length] };
}

function byNumber(points, way, isDark) {
  const scale = way.isLog ? (value) => Math.log(Math.max(value, 1e-30)) : (value) => value;
  const values = points
    .map(way.value)
    .filter(isNumber)
    .map(scale)
    .sort((a, b) => a - b);
  const at = (share) => values[Math.round(share * (values.length - 1))];
  const low = at(0.01),
    high = at(0.99);
  const colours = isDark ? DARK_RAMP : RAMP;
  const of = (point) => {
    const value = way.value(point);
    if (!isNumber(value)) return NONE;
    const share = high > low ? (scale(value) - low) / (high - low) : 0.5;
    return { colour: mix(colours, Math.max(0, Math.min(1, share))), mark: "circle" };
  };
  const back = way.isLog ? Math.exp : (value) => value;
  const ends = values.length ? [back(low), back((low + high) / 2), back(high)] : null;
  const unknown = points.length - values.length;
  return {
    of,
    key: () => null,
    groups: [],
    ramp: { colours, ends, isShare: Boolean(way.isShare), unknown, none: way.none },
  };
}

export const channels = (hex) => [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));

/** The colour at a share of the way along a ramp. */
export function mix(colours, share) {
  const place = share * (colours.length - 1),
    from = Math.min(colours.length - 2, Math.floor(place)),
    rest = place - from;
  const [a, b] = [channels(colours[from]), channels(colours[from + 1])];
  return (
    "#" +
    a
      .map((value, k) =>
        Math.round(value + (b[k] - value) * rest)
          .toString(16)
          .padStart(2, "0"),
      )
      .join("")
  );
}
