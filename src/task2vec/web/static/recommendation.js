// Which expert suits a task: the sentence, and predicted errors with their intervals.

import { readRecommendation } from "./api.js";
import { intervalBar } from "./bars.js";
import { button, make } from "./dom.js";
import { explain } from "./glossary.js";
import { fill, withCode } from "./notices.js";
import { address } from "./state.js";
import { percent, range } from "./words.js";

const MOST = 6;
const TRAIN = [
  ["half", "half of the images"],
  ["5", "5 images per class"],
];
// Until somebody chooses, the server does, by how many images the task has.
export const chosenTrain = { value: null };

/** The section of a task's panel. */
export function showRecommendation(id) {
  const body = make("div");
  const load = () =>
    fill(
      body,
      (signal) => readRecommendation(id, chosenTrain.value, signal),
      (answer) => {
        markTrain(choice, answer.train);
        return show(answer);
      },
      "Asking for a recommendation …",
    );
  const choice = trainSwitch(load);
  const section = make(
    "section",
    { id: "recommendation", attributes: { "aria-label": "Recommended experts" } },
    make("h3", {}, "Which expert to use"),
    choice,
    body,
  );
  load();
  return section;
}

/** How much a task would be trained on: it changes which expert is best. */
export function trainSwitch(onChange) {
  const group = make("div", { className: "switch", attributes: { role: "group", "aria-label": "Training images" } });
  for (const [value, name] of TRAIN) {
    group.append(
      button(
        name,
        () => {
          chosenTrain.value = value;
          markTrain(group, value);
          onChange();
        },
        { value },
      ),
    );
  }
  markTrain(group, chosenTrain.value);
  return group;
}

export function markTrain(group, value) {
  for (const one of group.children) one.setAttribute("aria-pressed", String(one.value === value));
}

function show(answer) {
  const predicted = answer.experts.filter(({ error }) => Number.isFinite(error));
  const experts = predicted.slice(0, MOST),
    isStaticShown = experts.some(({ name }) => name === answer.static);
  const standing = predicted.find(({ name }) => name === answer.static);
  if (!isStaticShown && standing) experts.push(standing);
  const top = Math.max(...experts.map(({ high, error }) => high ?? error)) * 1.02 || 1;
  return [
    make("p", { className: answer.is_sure ? "sentence" : "sentence is-unsure" }, ...withCode(answer.sentence)),
    make(
      "ol",
      { className: "experts" },
      experts.map((expert) => row(expert, top, answer)),
    ),
    make(
      "p",
      { className: "quiet" },
      `Dot: predicted error; bar: its interval; the scale ends at ${percent(top, 0)}. `,
      answer.basis ? `It goes by ${lower(answer.basis)}. ` : "",
      make("a", { href: address("experts") }, `All ${answer.experts.length} experts in a table`),
    ),
    explain(wordsOf(experts, answer)),
    notes(answer.notes ?? []),
    experts[0]?.load ? loading(experts[0]) : null,
  ].filter(Boolean);
}

const lower = (text) => String(text).replace(/\.$/, "");

const tag = (text) => make("span", { className: "tag" }, text);

const isMeasured = ({ measured }) => typeof measured === "number";

/** The words of these rows that not everybody knows. */
const wordsOf = (experts, { static: standing }) => [
  ...(experts.some(({ name }) => name === standing) ? ["static choice"] : []),
  ...(experts.some(isMeasured) ? ["measured"] : []),
  ...(experts.some((one) => one.is_loadable === false) ? ["train it"] : []),
  ...(experts.some(({ kind }) => kind === "generic") ? ["generic"] : []),
];

function row(expert, top, { static: standing }) {
  const words = `${expert.name}: ${percent(expert.error)}, ${range(expert.low, expert.high) ?? "no interval"}`;
  return make(
    "li",
    { value: expert.rank },
    make(
      "span",
      { className: "word" },
      expert.name,
      expert.name === standing ? tag("static choice") : null,
      isMeasured(expert) ? tag("measured") : null,
      expert.is_loadable === false ? tag("train it") : null,
    ),
    make("span", { className: "number", title: range(expert.low, expert.high) ?? "" }, percent(expert.error)),
    intervalBar(expert, top, words, expert.rank === 1),
  );
}

function notes(list) {
  return list.length
    ? make(
        "ul",
        { className: "notes quiet" },
        list.map((text) => make("li", {}, ...withCode(text))),
      )
    : null;
}

function loading({ name, load }) {
  return make(
    "details",
    {},
    make("summary", {}, `How to get ${name}`),
    make("pre", { tabIndex: 0 }, make("code", {}, load)),
  );
}
